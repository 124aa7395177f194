"""A state machine that does the same to the model and to a store, and compares everything after each step."""

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests import strategies as some

from penstock.backends import Backend, ClaimRequest, Failure
from penstock.backends.contract.overview import Overview
from penstock.errors import PenstockError, ReportErrors, StaleAttemptError
from penstock.job import Job, JobStatus, JournalEntry
from penstock.lifecycle import Verb, allows
from penstock.testing import ManualClock, ModelBackend, check_invariants, check_store

MAX_JOBS = 14

#: What the model says in its own words; a store may word it differently.
_MODEL_WORDS = ("its lifetime is over", "its execution time is over", "attempt ", "the job ")

_SINGLE_REPORTS: dict[Verb, Callable[[Backend, str, int | None, Any], Any]] = {
    Verb.COMPLETE: lambda b, i, a, x: b.complete_job(i, x["data"], attempt=a),
    Verb.FAIL: lambda b, i, a, x: b.fail_job(
        i, x["message"], attempt=a, category=x["category"], code=x["code"], retry_after=x["retry_after"]
    ),
    Verb.STOP: lambda b, i, a, x: b.stop_job(i, x["message"], attempt=a),
    Verb.STOP_WITH_RETRY: lambda b, i, a, x: b.stop_job_with_retry(i, x["message"], attempt=a),
    Verb.MARK_UNKNOWN_STOPPED: lambda b, i, a, x: b.mark_job_unknown_stopped(i, x["message"], attempt=a),
    Verb.ACKNOWLEDGE: lambda b, i, a, x: b.acknowledge_cancellation(i, x["executing"], attempt=a),
}

_PLURAL_REPORTS: dict[Verb, Callable[[Backend, list[str], dict[str, int], Any], Any]] = {
    Verb.COMPLETE: lambda b, i, a, x: b.complete_jobs(dict.fromkeys(i, x["data"]), attempts=a),
    Verb.FAIL: lambda b, i, a, x: b.fail_jobs(
        {
            each: x["message"]
            if position % 2
            else Failure(message="other", category=x["category"], retry_after=x["retry_after"])
            for position, each in enumerate(i)
        },
        attempts=a,
        category=x["category"],
        code=x["code"],
    ),
    Verb.STOP: lambda b, i, a, x: b.stop_jobs(dict.fromkeys(i, x["message"]), attempts=a),
    Verb.STOP_WITH_RETRY: lambda b, i, a, x: b.stop_jobs_with_retry(
        dict.fromkeys(i, x["message"]), attempts=a
    ),
    Verb.MARK_UNKNOWN_STOPPED: lambda b, i, a, x: b.mark_jobs_unknown_stopped(
        dict.fromkeys(i, x["message"]), attempts=a
    ),
    Verb.RELEASE: lambda b, i, a, x: b.release_jobs(dict.fromkeys(i, x["message"]), attempts=a),
    Verb.ACKNOWLEDGE: lambda b, i, a, x: b.acknowledge_cancellations(
        dict.fromkeys(i, x["executing"]), attempts=a
    ),
}

_details = st.fixed_dictionaries(
    {
        "message": some.messages,
        "data": some.data,
        "category": some.categories,
        "code": some.sometimes(st.just("E1")),
        "retry_after": some.sometimes(st.sampled_from([1, timedelta(seconds=7)])),
        "executing": st.booleans(),
    }
)


def counted(overview: Overview) -> object:
    """All that an overview counts; since when jobs are ready depends on who has looked at the store since."""
    return (
        [(each.type, dict(each.jobs), dict(each.entered), each.ready) for each in overview.types],
        (overview.delayed, overview.waiting, overview.undelivered, overview.given_up, overview.is_blocked),
        sorted(each.running for each in overview.owners),
    )


class StoreMachine(RuleBasedStateMachine):
    """Several workers, clock moves, keys, dependencies, cancels, retries, leases, upkeep and crashes.

    Args:
        open_store: opens the store under test; again and again on the same store if `can_reopen`.
    """

    def __init__(self, open_store: Callable[..., Backend], *, can_reopen: bool) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.new_ids: deque[str] = deque()
        self.model = ModelBackend(self.clock, new_id=self.new_ids.popleft)
        self.open_store = open_store
        self.can_reopen = can_reopen
        self.store = open_store(clock=self.clock)
        self.rows: list[JournalEntry] = []
        self.owners: list[tuple[str, str]] = []
        self.created = 0
        self.archived = 0

    def teardown(self) -> None:
        self.store.close()

    # -- picking --------------------------------------------------------------------------------------------

    @property
    def last_seq(self) -> int:
        """The last number read: rows of one commit may be numbered in another order, those of two may not."""
        return self.rows[-1].seq if self.rows else 0

    @property
    def jobs(self) -> dict[str, Job]:
        return {job_id: row.job for job_id, row in self.model._state.rows.items()}

    def pick(self, data: st.DataObject, wanted: Callable[[Job], bool] = lambda job: True) -> str:
        """Return the id of a job, mostly of one that is wanted, now and then of any or of none."""
        jobs = self.jobs
        liked = [job.id for job in jobs.values() if wanted(job)]
        pools = [st.sampled_from([*jobs, some.MISSING])]
        pools += [st.sampled_from(liked)] * (4 if liked else 0)
        return data.draw(st.one_of(*reversed(pools)), label="job")

    def pick_many(self, data: st.DataObject, wanted: Callable[[Job], bool] = lambda job: True) -> list[str]:
        count = data.draw(st.integers(1, 3), label="count")
        return list(dict.fromkeys(self.pick(data, wanted) for _ in range(count)))

    def attempt_of(self, data: st.DataObject, job_id: str) -> int | None:
        """Return no fence, the right attempt, or a wrong one."""
        job = self.jobs.get(job_id)
        current = job.attempt if job else 1
        wrong = max(0, current - 1)
        return data.draw(st.sampled_from([None, current, current, wrong]), label="attempt")

    # -- doing the same to both -----------------------------------------------------------------------------

    def both(self, call: Callable[[Backend], Any], *, loose: bool = False) -> Any:
        """Run a call on the store and on the model; outcomes must be the same."""
        theirs, ours = outcome(call, self.store), outcome(call, self.model)
        if loose:
            theirs, ours = loosened(theirs), loosened(ours)
        assert_equal(theirs, ours)
        return ours

    # -- submission -----------------------------------------------------------------------------------------

    def draw_job(self, data: st.DataObject, known: Sequence[str], job_id: str) -> Job:
        fields = data.draw(some.job_fields, label="fields")
        if data.draw(st.integers(0, 3), label="delayed?") == 0:
            fields["run_at"] = self.clock.now() + data.draw(some.steps, label="delay")
        if known and data.draw(st.integers(0, 2), label="dependent?") == 0:
            field = data.draw(st.sampled_from(["after", "after", "after_any"]))
            ids = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
            fields[field] = tuple(ids)
            if data.draw(st.integers(0, 3)) == 0:
                fields["after_any"] = (data.draw(st.sampled_from(known)),)
        return Job(**{"id": job_id, "type": "mail", **fields})

    def next_id(self) -> str:
        self.created += 1
        return f"j{self.created}"

    @precondition(lambda self: len(self.jobs) < MAX_JOBS)
    @rule(data=st.data())
    def enqueue(self, data: st.DataObject) -> None:
        known = list(self.jobs)
        unused = [row.job_id for row in self.rows if row.verb in ("delete", "cleanup")]
        job_id = self.next_id()
        if unused and data.draw(st.booleans(), label="use an id again?"):
            job_id = data.draw(st.sampled_from(unused))
        elif known and data.draw(st.integers(0, 15)) == 0:
            job_id = data.draw(st.sampled_from(known), label="taken id")
        job = self.draw_job(data, [each for each in known if each != job_id], job_id)
        self.both(lambda backend: backend.enqueue_job(job))

    @precondition(lambda self: len(self.jobs) < MAX_JOBS)
    @rule(data=st.data())
    def enqueue_batch(self, data: st.DataObject) -> None:
        fresh = [self.next_id() for _ in range(data.draw(st.integers(1, 4), label="size"))]
        known = [*self.jobs, *fresh, *([some.MISSING] if data.draw(st.integers(0, 9)) == 0 else [])]
        jobs = [self.draw_job(data, known, job_id) for job_id in fresh]
        self.both(lambda backend: backend.enqueue_jobs(jobs))

    @precondition(lambda self: len(self.jobs) < MAX_JOBS)
    @rule(data=st.data())
    def spawn(self, data: st.DataObject) -> None:
        parent_id = self.pick(data, lambda job: job.status is JobStatus.RUNNING)
        attempt = self.attempt_of(data, parent_id)
        fresh = [self.next_id() for _ in range(data.draw(st.integers(1, 2), label="size"))]
        # Without idempotency keys: the journal does not tell that a job waits for one that was there before.
        jobs = [
            msgspec.structs.replace(
                self.draw_job(data, [*self.jobs, *fresh], job_id), idempotency_key=None, unique=None
            )
            for job_id in fresh
        ]
        self.both(lambda backend: backend.spawn_jobs(parent_id, jobs, attempt=attempt))

    @rule(blocked=st.sampled_from([False, False, True]))
    def set_blocked(self, blocked: bool) -> None:
        self.both(lambda backend: backend.set_blocked(blocked))

    # -- claiming -------------------------------------------------------------------------------------------

    def draw_claim(self, data: st.DataObject) -> ClaimRequest:
        owner = None
        if self.owners and data.draw(st.booleans(), label="for an owner?"):
            owner = data.draw(st.sampled_from(range(len(self.owners))), label="owner")
        job_ids = None
        if data.draw(st.integers(0, 3), label="by id?") == 0:
            job_ids = self.pick_many(data, lambda job: job.held)
        return ClaimRequest(
            assignee_id=data.draw(some.workers),
            tags=data.draw(some.sometimes(some.tags)) or (),
            limit=data.draw(st.integers(1, 4)),
            types=data.draw(some.sometimes(st.lists(some.types, max_size=2, unique=True))),
            key=data.draw(some.sometimes(some.keys)),
            job_ids=job_ids,
            owner=None if owner is None else str(owner),
            pushed=data.draw(st.booleans()),
            revives=data.draw(st.booleans()),
        )

    def with_owner(self, backend: Backend, request: ClaimRequest) -> ClaimRequest:
        if request.owner is None:
            return request
        pair = self.owners[int(request.owner)]
        return msgspec.structs.replace(request, owner=pair[backend is self.model])

    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        request = self.draw_claim(data)

        def call(backend: Backend) -> list[Job]:
            given = msgspec.structs.asdict(self.with_owner(backend, request))
            by_hand = {name: value for name, value in given.items() if name not in ("pushed", "revives")}
            return backend.dequeue_jobs(**by_hand)

        self.both(call)

    @rule(data=st.data())
    def claim_for_several(self, data: st.DataObject) -> None:
        requests = [self.draw_claim(data) for _ in range(data.draw(st.integers(1, 3)))]
        self.both(
            lambda backend: backend.dequeue_jobs_for([self.with_owner(backend, each) for each in requests])
        )

    @rule(worker=some.workers, limit=st.integers(1, 8))
    def claim_anything(self, worker: str, limit: int) -> None:
        self.both(lambda backend: backend.dequeue_jobs(worker, limit=limit))

    @rule(data=st.data(), worker=some.workers)
    def restart(self, data: st.DataObject, worker: str) -> None:
        job_id = self.pick(data, lambda job: job.held and job.status is JobStatus.STOPPED)
        self.both(lambda backend: backend.restart_job(job_id, worker))

    # -- reports --------------------------------------------------------------------------------------------

    @rule(data=st.data(), verb=st.sampled_from(list(_SINGLE_REPORTS)), details=_details)
    def report(self, data: st.DataObject, verb: Verb, details: dict[str, Any]) -> None:
        job_id = self.pick(data, lambda job: allows(verb, job.status))
        attempt = self.attempt_of(data, job_id)
        self.both(lambda backend: _SINGLE_REPORTS[verb](backend, job_id, attempt, details))

    @rule(data=st.data(), verb=st.sampled_from(list(_PLURAL_REPORTS)), details=_details)
    def report_many(self, data: st.DataObject, verb: Verb, details: dict[str, Any]) -> None:
        job_ids = self.pick_many(data, lambda job: allows(verb, job.status))
        attempts = {job_id: self.attempt_of(data, job_id) for job_id in job_ids}
        fences = {job_id: attempt for job_id, attempt in attempts.items() if attempt is not None}
        self.both(lambda backend: _PLURAL_REPORTS[verb](backend, job_ids, fences, details))

    @rule(data=st.data(), details=_details)
    def update_status(self, data: st.DataObject, details: dict[str, Any]) -> None:
        job_id = self.pick(data, lambda job: allows(Verb.UPDATE_STATUS, job.status))
        attempt = self.attempt_of(data, job_id)
        job = self.jobs.get(job_id)
        liked = [each for each in JobStatus if job and allows(Verb.UPDATE_STATUS, job.status, each)]
        target = data.draw(
            st.one_of(st.sampled_from(liked or list(JobStatus)), some.statuses), label="target"
        )
        message = details["message"] if details["executing"] else ""
        self.both(
            lambda backend: backend.update_job_status(
                job_id, target, details["data"], message, attempt=attempt
            ),
            loose=True,
        )

    @rule(data=st.data(), percent=st.sampled_from([0, 50, 100]), text=some.sometimes(some.messages))
    def save_progress(self, data: st.DataObject, percent: int, text: str | None) -> None:
        job_id = self.pick(data, lambda job: job.status.holds_slot)
        attempt = self.attempt_of(data, job_id)
        self.both(lambda backend: backend.save_progress(job_id, percent, text, attempt=attempt))

    @rule(data=st.data())
    def save_checkpoint(self, data: st.DataObject) -> None:
        job_id = self.pick(data, lambda job: job.status.holds_slot)
        attempt = self.attempt_of(data, job_id)
        self.both(lambda backend: backend.save_checkpoint(job_id, b"state", attempt=attempt))

    # -- cancelling, losing, upkeep -------------------------------------------------------------------------

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        tags = data.draw(some.sometimes(some.tags)) or ()
        job_ids = self.pick_many(data, lambda job: not job.status.is_final)
        self.both(lambda backend: tuple(map(sorted, backend.cancel_jobs(tags, job_ids))))

    @rule(worker=some.workers)
    def worker_is_lost(self, worker: str) -> None:
        self.both(lambda backend: backend.mark_worker_unresponsive(worker))

    @rule()
    def reset(self) -> None:
        self.both(lambda backend: backend.reset_running_jobs())

    @rule(data=st.data(), worker=some.workers)
    def heartbeat(self, data: st.DataObject, worker: str) -> None:
        jobs = None
        if data.draw(st.booleans(), label="some only?"):
            picked = self.pick_many(data, lambda job: job.status.holds_slot)
            jobs = {job_id: self.attempt_of(data, job_id) or 1 for job_id in picked}
        self.both(lambda backend: backend.heartbeat(worker, jobs=jobs))

    @precondition(lambda self: len(self.owners) < 3)
    @rule()
    def open_owner(self) -> None:
        self.owners.append((self.store.owners.open(), self.model.owners.open()))

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), close=st.booleans())
    def tend_owner(self, data: st.DataObject, close: bool) -> None:
        pair = data.draw(st.sampled_from(self.owners))
        if close:
            self.both(lambda backend: backend.owners.close(pair[backend is self.model]))
        else:
            self.both(lambda backend: backend.owners.beat(pair[backend is self.model]))

    @rule(step=some.steps)
    def time_passes(self, step: timedelta) -> None:
        self.clock.advance(step)

    @rule(step=some.steps)
    def time_passes_until_upkeep(self, step: timedelta) -> None:
        self.clock.advance(step)
        self.maintain()

    @rule(step=some.long_steps)
    def long_time_passes(self, step: timedelta) -> None:
        self.clock.advance(step)

    @rule()
    def maintain(self) -> None:
        self.both(lambda backend: msgspec.structs.replace(backend.maintain(), due=0))

    # -- changing and removing ------------------------------------------------------------------------------

    @rule(
        data=st.data(),
        change=st.fixed_dictionaries(
            {},
            optional={
                "priority": some.priorities,
                "tags": some.tags,
                "correlation_id": st.sampled_from([None, "other"]),
                "callback_url": st.sampled_from([None, "https://example.com/other"]),
            },
        ).filter(bool),
    )
    def update_job(self, data: st.DataObject, change: dict[str, Any]) -> None:
        job_id = self.pick(data, lambda job: not job.status.is_final)
        self.both(lambda backend: backend.update_job(job_id, **change))

    @rule(data=st.data())
    def redrive(self, data: st.DataObject) -> None:
        dead = (JobStatus.FAILED, JobStatus.DEAD_LETTER)
        by_tag = data.draw(some.sometimes(st.sampled_from(some.TAGS)))
        arguments: dict[str, Any] = {"tags": [by_tag]} if by_tag else {}
        if not by_tag:
            arguments["job_ids"] = self.pick_many(data, lambda job: job.status in dead)

        def call(backend: Backend) -> list[str]:
            made = backend.redrive_jobs(**arguments)
            if backend is self.store:
                self.new_ids.extend(made)
            return made

        self.both(call)
        self.new_ids.clear()

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        tags = data.draw(some.sometimes(some.sometimes(some.tags))) or ()
        job_ids = self.pick_many(data, lambda job: job.status.is_final)
        self.both(lambda backend: backend.delete_jobs(tags, job_ids))

    @rule(ttl=st.sampled_from([timedelta(seconds=5), timedelta(days=1)]))
    def clean_up(self, ttl: timedelta) -> None:
        self.both(lambda backend: backend.cleanup_expired_jobs(ttl))

    # -- who reads the journal ------------------------------------------------------------------------------

    @rule(name=some.consumers)
    def register_consumer(self, name: str) -> None:
        seq = self.last_seq
        self.both(lambda backend: backend.journal.register_consumer(name, seq=seq))

    @rule(name=some.consumers, holder=some.workers, lease=st.sampled_from([0, 5, 60]))
    def hold_consumer(self, name: str, holder: str, lease: float) -> None:
        self.both(lambda backend: backend.journal.hold_consumer(name, holder, lease))

    @rule(name=some.consumers, holder=some.sometimes(some.workers))
    def advance_consumer(self, name: str, holder: str | None) -> None:
        seq = self.last_seq
        self.both(lambda backend: backend.journal.advance_consumer(name, seq, holder=holder))

    @rule(name=some.consumers)
    def forget_consumer(self, name: str) -> None:
        self.both(lambda backend: backend.journal.forget_consumer(name))

    @precondition(lambda self: len(self.jobs) < MAX_JOBS)
    @rule(age=st.sampled_from([0, 10, 3600]))
    def archive(self, age: float) -> None:
        """The newest row stays: let both have the same one, and let every consumer stand where both agree."""
        newest = Job(id=self.next_id(), type="mail")
        if self.both(lambda backend: backend.enqueue_job(newest)) == newest.id:
            self.journals_are_the_same_and_sound()
            removed = self.both(lambda backend: msgspec.structs.replace(backend.journal.archive(age), upto=0))
            self.archived += removed.rows

    @precondition(lambda self: self.can_reopen)
    @rule()
    def crash(self) -> None:
        """Drop the store object between two calls and open another."""
        self.store.close()
        self.store = self.open_store(clock=self.clock)

    # -- comparing ------------------------------------------------------------------------------------------

    @invariant()
    def jobs_are_the_same(self) -> None:
        theirs, ours = self.store.list_jobs(limit=1000), self.model.list_jobs(limit=1000)
        assert_equal([job.id for job in theirs], [job.id for job in ours])
        for their, our in zip(theirs, ours, strict=True):
            assert_same(their, our, f"job {our.id}")

    @invariant()
    def statistics_are_the_same(self) -> None:
        for tags in ((), ("red",), ("blue",), ("red", "blue")):
            assert_equal(self.store.get_job_stats(tags), self.model.get_job_stats(tags))
        assert_equal(*(counted(backend.reading.overview()) for backend in (self.store, self.model)))
        assert_equal(self.store.is_blocked(), self.model.is_blocked())

    @invariant()
    def journals_are_the_same_and_sound(self) -> None:
        start = self.last_seq
        theirs = self.store.read_journal(after=start)
        ours = self.model.read_journal(after=start)
        self.rows += theirs
        assert [row.seq for row in theirs] == list(range(start + 1, start + 1 + len(theirs)))
        told = [[(row.job_id, str(row.verb), row.n) for row in rows] for rows in (theirs, ours)]
        assert sorted(told[0]) == sorted(told[1]), f"(store, model) wrote {told}"
        for job_id in {row.job_id for row in (*theirs, *ours)}:
            pairs = zip(
                [row for row in theirs if row.job_id == job_id],
                [row for row in ours if row.job_id == job_id],
                strict=True,
            )
            for their, our in pairs:
                assert_same(their, our, f"row {our.n} of {job_id} ({our.verb})")
        violations = check_invariants(self.rows, jobs=self.store.list_jobs(limit=1000))
        assert not violations, "\n".join(map(str, violations))

    @invariant()
    def what_is_left_of_the_journals_is_the_same(self) -> None:
        assert_equal(self.store.journal.list_consumers(), self.model.journal.list_consumers())
        assert_equal(self.store.journal.get_archive().rows, self.archived)
        if self.archived:
            left = [
                sorted((row.job_id, row.n) for row in backend.read_journal(limit=100_000))
                for backend in (self.store, self.model)
            ]
            assert_equal(*left)
            violations = check_store(self.store)
            assert not violations, "\n".join(map(str, violations))


def outcome(call: Callable[[Backend], Any], backend: Backend) -> Any:
    """Return what a call gives: its result, or the kinds of its errors."""
    try:
        return simple(call(backend))
    except ReportErrors as group:
        return (
            "refused",
            sorted((error.job_id, type(error).__name__) for error in group.exceptions),
            group.freed,
        )
    except PenstockError as error:
        return "refused", type(error).__name__


def simple(result: Any) -> Any:
    """Return a result with each claimed job as id and attempt; the whole jobs are compared later."""
    if isinstance(result, Job):
        return result.id, result.attempt, result.status
    if isinstance(result, list):
        return [simple(each) for each in result]
    return result


def loosened(result: Any) -> Any:
    """Return an outcome in which a stale attempt and an illegal move are the same."""
    return (
        ("refused", "InvalidTransitionError") if result == ("refused", StaleAttemptError.__name__) else result
    )


def assert_equal(theirs: Any, ours: Any) -> None:
    assert theirs == ours, f"the store says {theirs}, the model {ours}"


def assert_same(theirs: Any, ours: Any, what: str) -> None:
    their, our = comparable(theirs, ours), comparable(ours, ours)
    different = {name: (their.get(name), our.get(name)) for name in our if their.get(name) != our.get(name)}
    assert not different, f"{what}: (store, model) differ in {different}"


def comparable(value: Any, model: Any) -> dict[str, Any]:
    """Return the fields to compare of a job or row; `model` is the model's version of it."""
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    fields.pop("seq", None)
    if model.error_message.startswith(_MODEL_WORDS):
        fields["error_message"] = bool(fields["error_message"])
        fields.pop("error_code")
        if model.error_message.startswith("the job "):
            fields.pop("error_message")
            fields.pop("error_category")
    if "due_at" in fields:
        is_set = value.status.is_eligible and value.due_at is not None and value.due_at > value.recorded_at
        fields["due_at"] = value.due_at if is_set else None
    return fields


def machine_on(new_store: Callable[[str], Any], kind: str) -> StoreMachine:
    """Return a machine on a new, empty store of this kind."""
    stores = new_store(kind)
    return StoreMachine(stores, can_reopen=stores.shares_store)
