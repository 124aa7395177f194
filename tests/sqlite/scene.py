"""A store with jobs in every status, and a call of every verb that succeeds on it."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from penstock import FailureCategory, Job, JobStatus, Key, RetryPolicy, Timeouts
from penstock.backends import CALLBACKS, Backend, Change, ClaimRequest, Delivery
from penstock.backends.contract.selection import JobSelection
from penstock.testing import ManualClock

Call = Callable[[Backend], object]
OWNER = "owner-of-the-scene"
HOLDER = "deliverer"
URL = "https://example.com/done"


class Waiting:
    """A stream that waits for jobs of type "t": it claims in the commits of others and notes what it gets."""

    def __init__(self) -> None:
        self.got: list[Job] = []
        self.is_answered = True

    def wants(self, type: str, tags: Sequence[str]) -> bool:  # a Claimer's
        return type == "t"

    def requested(self, changes: Sequence[Change]) -> Sequence[ClaimRequest]:
        if not any(change.available and change.type == "t" for change in changes):
            return ()
        assert self.is_answered, "the outcome of the claim before is still open"
        self.is_answered = False
        return [ClaimRequest(assignee_id="stream", limit=5, types=("t",), owner=OWNER)]

    def deliver(self, jobs: Sequence[list[Job]]) -> None:
        self.is_answered = True
        self.got += [job for batch in jobs for job in batch]

    def outcome_unknown(self) -> None:
        raise AssertionError("SQLite always knows")


def limits(**seconds: float) -> Timeouts:
    return Timeouts(**{name: timedelta(seconds=value) for name, value in seconds.items()})


def build(backend: Backend, clock: ManualClock) -> None:
    """Fill a store. Type "t" is what the stream waits for; none of it is ready in the end."""
    put = backend.enqueue_job
    for name in ("running-1", "running-2", "cancelling-1", "cancelling-2", "failed", "done", "stopped"):
        put(Job(id=name, type="t", payload=b"p" * 300, tags=("x",), key=Key(f"key of {name}"), held=True))
        backend.dequeue_jobs("w", job_ids=[name])
    backend.fail_job("failed", "for good", category=FailureCategory.PERMANENT)
    backend.complete_job("done", b"result")
    backend.stop_job("stopped", "stopped")
    backend.cancel_jobs(job_ids=["cancelling-1", "cancelling-2"])
    put(Job(id="child", type="t", after=("running-1",)))
    put(Job(id="second", type="t", key=Key("key of running-1")))
    backend.enqueue_jobs(
        [Job(id=f"ready-{number}", type="r", tags=("x", "y"), payload=b"p" * 300) for number in range(3)]
    )
    for name, seconds in {
        "expiring": {"lifetime": 50},
        "lost": {"visibility": 50},
        "overdue": {"execution": 40},
    }.items():
        put(Job(id=name, type="u", held=True, timeouts=limits(**seconds), retry=RetryPolicy(max_attempts=9)))
        backend.dequeue_jobs("v", job_ids=[name])
    put(Job(id="delayed", type="u", run_at=clock.now() + timedelta(seconds=50)))
    backend.journal.register_consumer(CALLBACKS)
    backend.journal.register_consumer("lake")
    backend.journal.hold_consumer(CALLBACKS, HOLDER, 1000)
    given_up = Delivery(seq=1, event_id="e", url=URL, lane="example.com", body=b"{}", due_at=None)
    backend.outbox.save_deliveries(HOLDER, [given_up])
    backend.outbox.tick_schedule("nightly", clock.now(), after=None)
    backend.save_progress("running-1", 10)


def _jobs(name: str) -> list[Job]:
    return [
        Job(id=f"{name}-1", type="t", payload=b"p" * 5000, tags=("x", "z")),
        Job(id=f"{name}-2", type="t", after=(f"{name}-1",), key=Key("k")),
        Job(id=f"{name}-3", type="r", idempotency_key=f"key of {name}"),
    ]


#: A call of every verb that writes, by the name of the verb. Each is one transaction, all or nothing.
WRITING: dict[str, Call] = {
    "acknowledge_cancellation": lambda b: b.acknowledge_cancellation("cancelling-1", True, attempt=1),
    "acknowledge_cancellations": lambda b: b.acknowledge_cancellations(
        {"cancelling-1": True, "cancelling-2": False}
    ),
    "journal.advance_consumer": lambda b: b.journal.advance_consumer("lake", 5),
    "owners.beat": lambda b: b.owners.beat(owner_of(b)),
    "cancel_jobs": lambda b: b.cancel_jobs(["x"]),
    "owners.close": lambda b: b.owners.close(owner_of(b)),
    "complete_job": lambda b: b.complete_job("running-1", b"r" * 5000, attempt=1),
    "complete_jobs": lambda b: b.complete_jobs({"running-1": b"one", "running-2": None}),
    "delete_jobs": lambda b: b.delete_jobs(job_ids=["done", "failed"]),
    "dequeue_jobs": lambda b: b.dequeue_jobs("z", limit=2, types=["r"]),
    "dequeue_jobs_for": lambda b: b.dequeue_jobs_for(
        [ClaimRequest(assignee_id="z", types=("r",)), ClaimRequest(assignee_id="y", tags=("y",))]
    ),
    "enqueue_job": lambda b: b.enqueue_job(Job(id="new", type="t", payload=b"p" * 5000)),
    "enqueue_jobs": lambda b: b.enqueue_jobs(_jobs("new")),
    "fail_job": lambda b: b.fail_job("running-1", "boom", attempt=1),
    "fail_jobs": lambda b: b.fail_jobs({"running-1": "boom", "running-2": "boom"}),
    "journal.forget_consumer": lambda b: b.journal.forget_consumer("lake"),
    "outbox.forget_schedule": lambda b: b.outbox.forget_schedule("nightly"),
    "heartbeat": lambda b: b.heartbeat("v"),
    "journal.hold_consumer": lambda b: b.journal.hold_consumer("lake", "me", 10),
    "mark_job_unknown_stopped": lambda b: b.mark_job_unknown_stopped("running-1", "gone"),
    "mark_jobs_unknown_stopped": lambda b: b.mark_jobs_unknown_stopped(
        {"running-1": "a", "cancelling-1": "b"}
    ),
    "mark_worker_unresponsive": lambda b: b.mark_worker_unresponsive("w"),
    "owners.open": lambda b: b.owners.open(),
    "publish_jobs": lambda b: b.publish_jobs(_jobs("published"), writer="sink", batch=1),
    "redrive_jobs": lambda b: b.redrive_jobs(job_ids=["failed"]),
    "journal.register_consumer": lambda b: b.journal.register_consumer("another", seq=3),
    "release_jobs": lambda b: b.release_jobs(
        {"running-1": "a", "cancelling-1": "b"}, attempts={"running-1": 1}
    ),
    "reset_running_jobs": lambda b: b.reset_running_jobs(),
    "restart_job": lambda b: b.restart_job("stopped", "w"),
    "outbox.retry_deliveries": lambda b: b.outbox.retry_deliveries(),
    "save_checkpoint": lambda b: b.save_checkpoint("running-1", b"c" * 5000, attempt=1),
    "outbox.save_deliveries": lambda b: b.outbox.save_deliveries(HOLDER, done=[1], seq=2),
    "save_output": lambda b: b.save_output("running-1", "printed", attempt=1),
    "save_progress": lambda b: b.save_progress("running-1", 50, "half", attempt=1),
    "set_blocked": lambda b: b.set_blocked(True),
    "spawn_jobs": lambda b: b.spawn_jobs("running-2", [Job(id="spawned", type="t")], attempt=1),
    "stop_job": lambda b: b.stop_job("running-1", "enough"),
    "stop_job_with_retry": lambda b: b.stop_job_with_retry("cancelling-1", "enough"),
    "stop_jobs": lambda b: b.stop_jobs({"running-1": "a", "cancelling-2": "b"}),
    "stop_jobs_with_retry": lambda b: b.stop_jobs_with_retry({"cancelling-1": "a", "cancelling-2": "b"}),
    "submit_jobs": lambda b: b.submit_jobs([Job(id="submitted", type="t", payload=b"p" * 5000)]),
    "runtime.take_upkeep": lambda b: b.runtime.take_upkeep(timedelta(seconds=2)),
    "outbox.tick_schedule": lambda b: b.outbox.tick_schedule(
        "nightly", b.now(), [Job(id="nightly", type="t")], after=b.now() - timedelta(seconds=100)
    ),
    "update_job": lambda b: b.update_job("ready-1", tags=["other"], priority=0),
    "update_job_status": lambda b: b.update_job_status("running-1", JobStatus.COMPLETED, b"r"),
}
#: Verbs of several transactions, each all or nothing.
IN_STEPS: dict[str, Call] = {
    "journal.archive": lambda b: b.journal.archive(1),
    "cleanup_expired_jobs": lambda b: b.cleanup_expired_jobs(timedelta(seconds=1)),
    "maintain": lambda b: b.maintain(),
}
READING: dict[str, Call] = {
    "outbox.count_deliveries": lambda b: b.outbox.count_deliveries(),
    "reading.count_jobs": lambda b: (b.reading.count_jobs(), b.reading.count_jobs(["x"])),
    "reading.count_keyed": lambda b: b.reading.count_keyed("key of running-1"),
    "outbox.due_deliveries": lambda b: b.outbox.due_deliveries(),
    "reading.examine": lambda b: b.reading.examine(),
    "reading.find_ids": lambda b: b.reading.find_ids("run"),
    "journal.get_archive": lambda b: b.journal.get_archive(),
    "get_job": lambda b: b.get_job("running-1"),
    "get_job_stats": lambda b: (b.get_job_stats(), b.get_job_stats(["x"]), b.get_job_stats(["x", "y"])),
    "get_jobs": lambda b: b.get_jobs(["running-1", "done"]),
    "reading.get_output": lambda b: b.reading.get_output("running-1"),
    "owners.has": lambda b: b.owners.has("nobody"),
    "runtime.has_work": lambda b: b.runtime.has_work(["t", "r"]),
    "is_blocked": lambda b: b.is_blocked(),
    "journal.history": lambda b: b.journal.history("done"),
    "reading.jobs_span": lambda b: b.reading.jobs_span(),
    "journal.span": lambda b: b.journal.span(),
    "journal.list_consumers": lambda b: b.journal.list_consumers(),
    "outbox.list_deliveries": lambda b: b.outbox.list_deliveries(),
    "list_jobs": lambda b: (
        b.list_jobs(),
        b.list_jobs(tags=["x", "y"]),
        b.list_jobs(status=JobStatus.RUNNING),
    ),
    "reading.list_keyed": lambda b: b.reading.list_keyed("key of running-1", upto=1000),
    "outbox.list_schedules": lambda b: b.outbox.list_schedules(),
    "runtime.next_due": lambda b: b.runtime.next_due(),
    "runtime.next_steps": lambda b: b.runtime.next_steps(["running-1", "done"]),
    "reading.overview": lambda b: b.reading.overview(),
    "outbox.read_ends": lambda b: b.outbox.read_ends(0),
    "read_journal": lambda b: b.read_journal(),
    "runtime.ready_filters": lambda b: b.runtime.ready_filters(),
    "runtime.released": lambda b: b.runtime.released({"running-1": 1}),
    "reading.select_jobs": lambda b: b.reading.select_jobs(JobSelection(statuses=("running",))),
    "runtime.statuses": lambda b: b.runtime.statuses(["running-1", "done"]),
    "journal.store_id": lambda b: b.journal.store_id(),
    "runtime.unresponsive": lambda b: b.runtime.unresponsive(["w"]),
}
#: What asks the disk for nothing, or never fails by it.
APART = {
    "close",
    "joined",
    "location",
    "now",
    "runtime.has_foreign_changes",  # "maybe", if the store cannot tell
    "runtime.is_new",
    "runtime.listen",
    "runtime.poll_seconds",
    "runtime.serve",
    "runtime.watch",
}


def owner_of(backend: Any) -> str:
    """Return the only owner in the scene."""
    return str(backend.reading.overview().owners[0].id)
