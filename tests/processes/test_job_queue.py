"""The process queue, on each registry: its machine, its hooks, its records."""

import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from tests.waiting import until

import penstock
from penstock import InvalidArgumentError, QueueClosedError
from penstock.job import ProcessStatus
from penstock.processes import (
    InvalidJobStateError,
    JobAlreadyExistsError,
    JobCommand,
    JobNotFoundError,
    JobQueue,
    JobRecord,
    JobStatus,
    JsonlRegistry,
    ProcessControlError,
    QueueJobBase,
    SimpleJob,
)

pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform == "win32", reason="needs fork")]

LONG = 30
VERSION_1 = "d0bf4c18-e186-11f1-8e16-02fc00000001"
VERSION_4 = "f490a9ba-c412-4274-84b2-438f8a0c1a12"


def new(kind, **params):
    return kind(str(uuid.uuid4()), params)


def run(queue, job):
    queue.add_job(job)
    queue.start_job(job.job_id)
    return queue.wait_for_job(job.job_id, LONG)


class Hooked(QueueJobBase):
    """Has as its result which hooks were called, in which order, in which process."""

    def note(self, what):
        self.notes = [*getattr(self, "notes", []), what]
        self.set_result({"notes": self.notes, "pid": os.getpid()})

    def on_start(self):
        self.note("on_start")
        if self.params.get("fail_in") == "on_start":
            raise RuntimeError("no start")

    def execute(self):
        self.note("execute")
        if self.params.get("error"):
            raise ValueError(self.params["error"])
        if self.params.get("wait"):
            self.set_description("Waiting")
            self.wait_for_stop(LONG)

    def on_stop(self):
        self.note("on_stop")
        if self.params.get("fail_in") == "on_stop":
            raise RuntimeError("no stop")

    def on_end(self):
        self.note("on_end")
        self.set_description("All done")

    def on_error(self, exc):
        self.note(f"on_error {type(exc).__name__}")
        if self.params.get("describe"):
            self.set_description("it was " + str(exc))


class Waiting(SimpleJob):
    supports_restart = True

    def execute(self):
        self.report_progress(10, "Waiting")
        while not self.wait_for_stop(LONG):
            continue
        self.set_result("partial")


class Sleeping(SimpleJob):
    """Never looks whether it should stop."""

    def execute(self):
        self.report_progress(1, "Sleeping")
        select.select([], [], [], LONG)

    def on_stop(self):
        self.set_result("interrupted in its sleep")


class Stubborn(SimpleJob):
    def execute(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.report_progress(1, "Stubborn")
        while True:
            signal.pause()


# -- from beginning to end -----------------------------------------------------------------------------------------


@pytest.mark.requirement("P11", "P12", "P14", "P18", "C37", "C43")
def test_a_job_completes_and_its_record_says_so(queue):
    job = new(Hooked)
    assert queue.add_job(job) == job.job_id
    first = queue.get_job_status(job.job_id)
    assert (first.status, first.progress, first.description, first.result) == (
        JobStatus.PENDING,
        0,
        None,
        None,
    )
    queue.start_job(job.job_id)
    assert queue.get_job_status(job.job_id).status in {JobStatus.RUNNING, JobStatus.COMPLETED}
    last = queue.wait_for_job(job.job_id, LONG)
    assert (last.status, last.progress, last.description) == (JobStatus.COMPLETED, 100, "All done")
    assert last.result["notes"] == ["on_start", "execute", "on_end"]
    assert last.result["pid"] != os.getpid()
    assert queue.get_job_status(job.job_id) == last
    kept = queue.registry.latest(job.job_id)
    assert (kept.status, kept.progress, kept.result) == (last.status, 100, last.result)
    assert kept.created_at == first.created_at
    assert first.created_at <= kept.updated_at


@pytest.mark.requirement("P11", "C37")
@pytest.mark.parametrize(
    ("params", "notes", "description"),
    [
        ({"error": "bad"}, ["on_start", "execute", "on_error ValueError"], "ValueError: bad"),
        ({"error": "bad", "describe": True}, ["on_start", "execute", "on_error ValueError"], "it was bad"),
        ({"fail_in": "on_start"}, ["on_start", "on_error RuntimeError"], "RuntimeError: no start"),
    ],
)
def test_whatever_raises_ends_in_error_with_its_text(jsonl_queue, params, notes, description):
    last = run(jsonl_queue, new(Hooked, **params))
    assert (last.status, last.description, last.result["notes"]) == (JobStatus.ERROR, description, notes)
    assert jsonl_queue.registry.latest(last.job_id).description == description


@pytest.mark.requirement("P11", "P12", "C44")
def test_a_stopped_job_is_interrupted_after_its_hook(queue):
    job = new(Hooked, wait=True)
    queue.add_job(job)
    queue.start_job(job.job_id)
    until(lambda: queue.get_job_status(job.job_id).description == "Waiting")
    queue.stop_job(job.job_id)
    last = queue.get_job_status(job.job_id)
    assert (last.status, last.description) == (JobStatus.INTERRUPTED, "Stopped by user")
    assert last.result["notes"] == ["on_start", "execute", "on_stop"]
    assert last.progress < 100
    assert queue.registry.latest(job.job_id).status is JobStatus.INTERRUPTED


def test_a_failing_on_stop_does_not_undo_the_stop(jsonl_queue):
    job = new(Hooked, wait=True, fail_in="on_stop")
    jsonl_queue.add_job(job)
    jsonl_queue.start_job(job.job_id)
    until(lambda: jsonl_queue.get_job_status(job.job_id).description == "Waiting")
    jsonl_queue.stop_job(job.job_id)
    last = jsonl_queue.get_job_status(job.job_id)
    assert last.status is JobStatus.INTERRUPTED
    assert last.description == "Stopped by user; on_stop failed: RuntimeError: no stop"


@pytest.mark.requirement("C41", "P12")
def test_a_job_that_supports_it_is_started_again(queue):
    job = new(Waiting)
    queue.add_job(job)
    for _ in range(2):
        queue.start_job(job.job_id)
        record = queue.get_job_status(job.job_id)
        assert (record.status, record.result) == (JobStatus.RUNNING, None)
        until(lambda: queue.get_job_status(job.job_id).progress == 10)
        queue.stop_job(job.job_id)
        assert queue.get_job_status(job.job_id).result == "partial"
    assert queue.metrics == (2, 0, 0, 2, 0)


# -- what is not possible ------------------------------------------------------------------------------------------


@pytest.mark.requirement("P15", "P12", "C40", "C41")
def test_illegal_commands_have_errors_of_their_own(queue):
    job = new(Hooked, wait=True)
    with pytest.raises(JobNotFoundError):
        queue.start_job(job.job_id)
    queue.add_job(job)
    with pytest.raises(JobAlreadyExistsError):
        queue.add_job(job)
    for verb in (queue.stop_job, queue.suspend_job, queue.resume_job):
        with pytest.raises(InvalidJobStateError, match="PENDING"):
            verb(job.job_id)
    queue.start_job(job.job_id)
    with pytest.raises(InvalidJobStateError, match="RUNNING"):
        queue.start_job(job.job_id)
    with pytest.raises(InvalidJobStateError, match="not suspended"):
        queue.resume_job(job.job_id)
    queue.stop_job(job.job_id)
    with pytest.raises(InvalidJobStateError, match="does not support a restart"):
        queue.start_job(job.job_id)
    with pytest.raises(InvalidJobStateError, match="INTERRUPTED"):
        queue.stop_job(job.job_id)
    assert queue.get_job_status(job.job_id).status is JobStatus.INTERRUPTED


@pytest.mark.requirement("P4")
@pytest.mark.parametrize(
    "job_id", ["", "7", None, 7, VERSION_1, "urn:uuid:" + VERSION_4, uuid.UUID(VERSION_4)]
)
def test_an_id_is_a_uuid_of_version_4(job_id):
    with pytest.raises(InvalidArgumentError) as caught:
        Waiting(job_id, {})
    assert caught.value.field == "job_id"


@pytest.mark.requirement("P4", "P15")
def test_one_uuid_is_one_job_however_it_is_written(queue):
    job = Waiting(VERSION_4.upper(), {})
    assert queue.add_job(job) == job.job_id == VERSION_4
    for same in (VERSION_4, VERSION_4.upper(), VERSION_4.title()):
        with pytest.raises(JobAlreadyExistsError):
            queue.add_job(Waiting(same, {}))
    upper = VERSION_4.upper()
    queue.start_job(upper)
    until(lambda: queue.get_job_status(upper).progress == 10)
    queue.suspend_job(upper)
    queue.resume_job(upper)
    queue.stop_job(upper)
    assert queue.wait_for_job(upper, LONG) == queue.get_job_status(VERSION_4)
    assert not queue.get_job_output(upper)
    assert queue.registry.latest(upper).status is JobStatus.INTERRUPTED
    queue.delete_job(upper)
    assert queue.get_jobs() == {}


class WithoutBase(SimpleJob):
    def __init__(self):
        """Leave out what the base class does."""

    def execute(self):
        """Nothing."""


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda queue: queue.add_job("job"), "job"),
        (lambda queue: queue.add_job(WithoutBase()), "job_id"),
        (lambda queue: queue.wait_for_job("x", timeout="1"), "timeout"),
        (lambda _: new(Waiting).stop_process("1"), "timeout"),
        (lambda _: JobQueue("registry.jsonl"), "registry"),
        (lambda queue: queue.stop_job("x", timeout=-1), "timeout"),
        (lambda queue: queue.stop_job("x", timeout=True), "timeout"),
        (lambda _: Waiting(str(uuid.uuid4()), [1]), "params"),
        (lambda _: JsonlRegistry(""), "path"),
    ],
)
def test_a_wrong_argument_is_named(jsonl_queue, call, field):
    with pytest.raises(InvalidArgumentError) as caught:
        call(jsonl_queue)
    assert caught.value.field == field


@pytest.mark.requirement("P3", "P5")
def test_the_numbers_of_statuses_and_commands():
    assert {status.name: int(status) for status in JobStatus} == {
        "PENDING": 0, "RUNNING": 1, "COMPLETED": 2, "ERROR": 3, "INTERRUPTED": 4,
    }  # fmt: skip
    assert {command.name: int(command) for command in JobCommand} == {
        "NONE": 0,
        "START": 1,
        "STOP": 2,
        "DELETE": 3,
    }
    assert JobStatus is ProcessStatus
    assert list(JobRecord.__dataclass_fields__) == [
        "job_id", "status", "progress", "description", "result", "created_at", "updated_at",
    ]  # fmt: skip
    with pytest.raises(AttributeError):
        JobRecord(str(uuid.uuid4()), JobStatus.PENDING, 0, None, None, None, None).progress = 1


@pytest.mark.requirement("P9", "C38")
def test_the_base_class_has_five_abstract_hooks_and_the_simple_one_has_one():
    assert QueueJobBase.__abstractmethods__ == {"execute", "on_start", "on_stop", "on_end", "on_error"}
    assert SimpleJob.__abstractmethods__ == {"execute"}
    job = new(Waiting)
    for hook in (QueueJobBase.execute, QueueJobBase.on_start, QueueJobBase.on_stop, QueueJobBase.on_end):
        with pytest.raises(NotImplementedError):
            hook(job)
    with pytest.raises(NotImplementedError):
        QueueJobBase.on_error(job, ValueError())


# -- progress, description, result ---------------------------------------------------------------------------------


class Reporting(SimpleJob):
    def execute(self):
        refused = []
        for wrong in (-1, 101, 5.0, True, "5"):
            try:
                self.report_progress(wrong)
            except ValueError:
                refused.append(repr(wrong))
        for percent in (5, 50, 30, 100, 10):
            self.report_progress(percent)
        self.set_result({"refused": refused, "before the end": self.shared_state["progress"].value})
        try:
            self.set_result({1, 2})
        except InvalidArgumentError as error:
            self.set_description(str(error))


@pytest.mark.requirement("P13", "C39")
def test_progress_never_falls_and_is_100_only_at_the_end(jsonl_queue):
    last = run(jsonl_queue, new(Reporting))
    assert last.result == {"refused": ["-1", "101", "5.0", "True", "'5'"], "before the end": 99}
    assert last.progress == 100
    assert "result must be JSON" in last.description


class WritingProgress(SimpleJob):
    """Writes its progress into the shared state itself, and goes back."""

    def execute(self):
        seen = []
        for percent in (60, 10, 100, 0):
            self.shared_state["progress"].value = percent
            seen.append(self.shared_state["progress"].value)
            self.set_result(seen)
        if self.params.get("fail"):
            raise ValueError("with all its progress")
        self.set_description("Waiting")
        self.wait_for_stop(LONG)


@pytest.mark.requirement("P13", "C39")
def test_progress_written_into_the_shared_state_never_falls_either(queue):
    job = new(WritingProgress)
    queue.add_job(job)
    queue.start_job(job.job_id)
    until(lambda: queue.get_job_status(job.job_id).description == "Waiting")
    job.shared_state["progress"].value = 10
    record = queue.get_job_status(job.job_id)
    assert (record.result, record.progress) == ([60, 60, 100, 100], 99)
    queue.stop_job(job.job_id)
    assert queue.get_job_status(job.job_id).progress == 99
    assert queue.registry.latest(job.job_id).progress == 99
    assert run(queue, new(WritingProgress, fail=True)).progress == 99


@pytest.mark.requirement("P10", "C43")
def test_progress_of_a_running_job_is_seen_live_and_reaches_the_registry(queue):
    job = new(Waiting)
    queue.add_job(job)
    queue.start_job(job.job_id)
    until(lambda: queue.get_job_status(job.job_id).progress == 10)
    until(lambda: queue.registry.latest(job.job_id).progress == 10)
    kept = queue.registry.latest(job.job_id)
    assert (kept.status, kept.description) == (JobStatus.RUNNING, "Waiting")
    queue.stop_job(job.job_id)


class Returning(SimpleJob):
    def execute(self):
        return self.params["value"]


def test_what_execute_returns_is_the_result(queue):
    assert run(queue, new(Returning, value={"a": [1, None, "ü"]})).result == {"a": [1, None, "ü"]}
    last = run(queue, new(Returning, value=(1, "two")))
    assert last.result == queue.registry.latest(last.job_id).result == [1, "two"]


def test_a_result_that_is_no_json_is_an_error(jsonl_queue):
    last = run(jsonl_queue, new(Returning, value=object()))
    assert last.status is JobStatus.ERROR
    assert "result must be JSON" in last.description


class Unprintable(Exception):  # noqa: N818 - it is named for what is wrong with it
    def __str__(self):
        raise RuntimeError("no text")


class Raising(SimpleJob):
    def execute(self):
        raise self.params["error"]


@pytest.mark.parametrize(
    ("error", "description"),
    [
        (Unprintable(), "Unprintable: <no text: its __str__ raised RuntimeError>"),
        (SystemExit(7), "SystemExit: 7"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
    ids=["unprintable", "exit", "interrupt"],
)
def test_every_exception_has_a_text(jsonl_queue, error, description):
    last = run(jsonl_queue, new(Raising, error=error))
    assert (last.status, last.description) == (JobStatus.ERROR, description)


def test_a_text_that_stores_cannot_keep_is_escaped(queue):
    last = run(queue, new(Raising, error=ValueError("nul \0 and \ud800")))
    assert last.description == "ValueError: nul \\0 and \\ud800"
    assert queue.registry.latest(last.job_id).description == last.description


def test_a_very_long_text_is_cut(jsonl_queue):
    assert len(run(jsonl_queue, new(Raising, error=ValueError("x" * 10_000_000))).description) == 65536


# -- stopping, killing, deleting -----------------------------------------------------------------------------------


@pytest.mark.requirement("C44", "P10")
def test_a_job_that_never_checks_for_a_stop_is_interrupted_long_before_the_timeout(jsonl_queue):
    job = new(Sleeping)
    jsonl_queue.add_job(job)
    jsonl_queue.start_job(job.job_id)
    until(lambda: jsonl_queue.get_job_status(job.job_id).progress == 1)
    began = time.monotonic()
    jsonl_queue.stop_job(job.job_id, timeout=20)
    assert time.monotonic() - began < 15
    last = jsonl_queue.get_job_status(job.job_id)
    assert (last.status, last.result) == (JobStatus.INTERRUPTED, "interrupted in its sleep")


@pytest.mark.requirement("P16", "C44")
def test_a_job_that_does_not_stop_is_killed_if_that_is_wanted(queue):
    job = new(Stubborn)
    queue.add_job(job)
    queue.start_job(job.job_id)
    until(lambda: queue.get_job_status(job.job_id).progress == 1)
    with pytest.raises(ProcessControlError, match=r"did not stop within 0\.1 s"):
        queue.stop_job(job.job_id, timeout=0.1, terminate=False)
    assert queue.get_job_status(job.job_id).status is JobStatus.RUNNING
    queue.stop_job(job.job_id, timeout=0.1)
    last = queue.get_job_status(job.job_id)
    assert (last.status, last.description) == (
        JobStatus.INTERRUPTED, "Stopped by user; it did not end by itself and was killed",
    )  # fmt: skip


@pytest.mark.requirement("P12", "P14", "C42")
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", ["pending", "running", "ended"])
def test_a_job_is_deleted_from_any_state(queue, kind, force):
    job = new(Waiting)
    queue.add_job(job)
    if kind != "pending":
        queue.start_job(job.job_id)
        until(lambda: queue.get_job_status(job.job_id).progress == 10)
    if kind == "ended":
        queue.stop_job(job.job_id)
    queue.delete_job(job.job_id, force=force)
    assert job.job_id not in queue.get_jobs()
    with pytest.raises(JobNotFoundError):
        queue.get_job_status(job.job_id)
    with pytest.raises(JobNotFoundError):
        queue.delete_job(job.job_id)
    kept = queue.registry.latest(job.job_id)
    if isinstance(queue.registry, JsonlRegistry):
        assert kept.description == "Deleted"
    else:
        assert kept is None
    assert queue.metrics.running == 0


class Crashing(SimpleJob):
    def execute(self):
        self.set_result("partial")
        if self.params["how"] == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGSEGV if self.params["how"] == "segfault" else signal.SIGKILL)


@pytest.mark.requirement("C43", "P8")
@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("exit", "process exited with code 3"),
        ("segfault", "process died of a segmentation fault (SIGSEGV)"),
        (
            "kill",
            "process was killed (SIGKILL), probably by another process, perhaps the kernel's out-of-memory killer",
        ),
    ],
)
def test_a_dead_process_is_an_error_with_its_cause(queue, how, cause):
    """F20."""
    last = run(queue, new(Crashing, how=how))
    assert (last.status, last.description, last.result) == (JobStatus.ERROR, cause, "partial")
    assert queue.registry.latest(last.job_id).status is JobStatus.ERROR


class DyingWithTheLock(SimpleJob):
    def execute(self):
        self.shared_state["mutex"].acquire()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.requirement("P6")
def test_a_job_killed_while_it_has_its_lock_does_not_block_its_queue(jsonl_queue):
    last = run(jsonl_queue, new(DyingWithTheLock))
    assert last.status is JobStatus.ERROR


class Counting(SimpleJob):
    def execute(self):
        for number in range(1_000_000):
            self.params["counter"].value = number
            if self.stop_requested:
                return


@pytest.mark.requirement("C45", "P14")
def test_a_suspended_job_stands_still_until_it_is_resumed(queue):
    import multiprocessing

    counter = multiprocessing.Value("q", 0, lock=False)
    job = new(Counting, counter=counter)
    queue.add_job(job)
    queue.start_job(job.job_id)
    until(lambda: counter.value > 0)
    queue.suspend_job(job.job_id)
    queue.suspend_job(job.job_id)
    record = queue.get_job_status(job.job_id)
    assert (record.status, record.description) == (JobStatus.RUNNING, "Suspended")
    assert queue.registry.latest(job.job_id).description == "Suspended"
    seen = counter.value
    assert queue.get_job_status(job.job_id).status is JobStatus.RUNNING  # its lock is free
    assert counter.value == seen
    queue.resume_job(job.job_id)
    until(lambda: counter.value > seen)
    assert queue.get_job_status(job.job_id).description == "Started"
    queue.suspend_job(job.job_id)
    queue.stop_job(job.job_id)  # also while it is suspended
    assert queue.get_job_status(job.job_id).status is JobStatus.INTERRUPTED


# -- what others do to it in the store --------------------------------------------------------------------------------

STORES = pytest.mark.parametrize(
    "registry", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


def started(queue, kind):
    job = new(kind)
    queue.add_job(job)
    queue.start_job(job.job_id)
    until(lambda: queue.get_job_status(job.job_id).description != "Started")
    return job, job._process.pid


@STORES
@pytest.mark.requirement("P12", "C59")
def test_a_job_that_is_cancelled_in_the_store_is_stopped(queue):
    job, _ = started(queue, Waiting)
    assert queue.registry.backend.cancel_jobs(job_ids=[job.job_id]) == ([job.job_id], [])
    ended = queue.wait_for_job(job.job_id, LONG)
    assert (ended.status, ended.description, ended.result) == (
        JobStatus.INTERRUPTED, "Stopped by user", "partial",
    )  # fmt: skip
    assert queue.registry.backend.get_job(job.job_id).status is penstock.JobStatus.STOPPED
    queue.start_job(job.job_id)
    queue.stop_job(job.job_id)


class FailingWhenStopped(SimpleJob):
    def execute(self):
        self.set_description("Waiting")
        self.wait_for_stop(LONG)
        raise ValueError("not so")


@STORES
@pytest.mark.requirement("P12", "C59")
def test_a_job_that_fails_while_it_is_cancelled_has_ended(queue):
    job, _ = started(queue, FailingWhenStopped)
    queue.registry.backend.cancel_jobs(job_ids=[job.job_id])
    assert queue.wait_for_job(job.job_id, LONG).description == "ValueError: not so"
    stored = queue.registry.backend.get_job(job.job_id)
    assert (stored.status, stored.error_message) == (penstock.JobStatus.STOPPED, "ValueError: not so")


@STORES
@pytest.mark.requirement("P7", "C43")
@pytest.mark.parametrize("how", ["failed", "completed", "deleted", "lost"])
def test_a_job_that_was_taken_away_in_the_store_is_killed_and_the_store_is_right(queue, how):
    job, pid = started(queue, Stubborn)
    backend, name = queue.registry.backend, job.job_id
    if how == "failed":
        backend.fail_job(name, "by an operator")
    elif how == "completed":
        backend.complete_job(name, b'"by an operator"')
    elif how == "lost":
        backend.reset_running_jobs()
    else:
        backend.stop_job(name, "by an operator")
        backend.delete_jobs(job_ids=[name])
    ended = queue.wait_for_job(name, LONG)
    assert not Path(f"/proc/{pid}").exists()
    known = queue.registry.latest(name)
    assert known == (None if how == "deleted" else ended)
    assert ended.status is (JobStatus.COMPLETED if how == "completed" else JobStatus.ERROR)
    assert queue.metrics.running == 0
    queue.delete_job(name)
    assert queue.registry.latest(name) is None


class Large(SimpleJob):
    def execute(self):
        self.set_result("part")
        self.set_description("Counting")
        return "x" * 2_000_000


@STORES
@pytest.mark.requirement("P5", "P11")
def test_a_result_that_the_store_does_not_take_is_an_error_and_not_an_endless_run(queue):
    ended = run(queue, new(Large))
    assert ended.status is JobStatus.ERROR
    assert "Counting; the result cannot be kept: result has 2000002 bytes" in ended.description
    known = queue.registry.latest(ended.job_id)
    assert (known.status, known.description) == (ended.status, ended.description)


@pytest.mark.requirement("P11")
def test_a_job_without_a_description_is_described_by_how_it_ended(queue):
    assert run(queue, new(Returning, value=1)).description == "Completed"


class WithFamily(SimpleJob):
    def execute(self):
        child = subprocess.Popen(
            [sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True
        )
        self.set_result(child.pid)
        self.report_progress(50)
        select.select([], [], [], LONG)


def test_nothing_that_a_job_started_outlives_it(jsonl_queue):
    """F21."""
    job = new(WithFamily)
    jsonl_queue.add_job(job)
    jsonl_queue.start_job(job.job_id)
    until(lambda: jsonl_queue.get_job_status(job.job_id).progress == 50)
    pid = jsonl_queue.get_job_status(job.job_id).result
    os.kill(pid, 0)
    jsonl_queue.delete_job(job.job_id, force=True)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# -- the queue itself ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("P14")
def test_the_mapping_of_jobs_cannot_be_changed(jsonl_queue):
    job = new(Waiting)
    jsonl_queue.add_job(job)
    jobs = jsonl_queue.get_jobs()
    assert dict(jobs) == {job.job_id: job}
    with pytest.raises(TypeError):
        jobs["x"] = job


@pytest.mark.requirement("P17")
def test_counters_and_logs_record_what_happened(jsonl_queue, caplog):
    caplog.set_level("INFO", "penstock.processes")
    done = run(jsonl_queue, new(Returning, value=1))
    run(jsonl_queue, new(Raising, error=ValueError("x")))
    waiting = new(Waiting)
    jsonl_queue.add_job(waiting)
    jsonl_queue.start_job(waiting.job_id)
    assert jsonl_queue.metrics == (3, 1, 1, 0, 1)
    jsonl_queue.stop_job(waiting.job_id)
    assert jsonl_queue.metrics == (3, 1, 1, 1, 0)
    events = [record.event for record in caplog.records if record.job_id == done.job_id]
    assert events == ["added", "started", "completed"]


class Printing(SimpleJob):
    def execute(self):
        print("to stdout", flush=True)
        print("to stderr", file=sys.stderr)
        os.write(1, b"x" * 3_000_000)


def test_output_is_captured_in_bounds(jsonl_queue):
    """F22."""
    job = new(Printing)
    jsonl_queue.add_job(job)
    assert not jsonl_queue.get_job_output(job.job_id)
    jsonl_queue.start_job(job.job_id)
    jsonl_queue.wait_for_job(job.job_id, LONG)
    text = jsonl_queue.get_job_output(job.job_id)
    assert text.startswith("to stdout\nto stderr\nxxx")
    assert 60_000 < len(text) < 70_000


def test_closing_stops_what_runs_and_leaves_nothing(registry):
    """F24."""
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    queue = JobQueue(registry)
    jobs = [new(Waiting), new(Sleeping)]
    for job in jobs:
        queue.add_job(job)
        queue.start_job(job.job_id)
    for job in jobs:
        is_under_way = lambda job=job, queue=queue: queue.get_job_status(job.job_id).progress > 0  # noqa: E731
        until(is_under_way)
    pids = [job._process.pid for job in jobs]
    queue.close(timeout=1)
    queue.close()
    assert all(registry.latest(job.job_id).status is JobStatus.INTERRUPTED for job in jobs)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(QueueClosedError):
        queue.add_job(new(Waiting))
    until(lambda: threading.active_count() <= threads)  # those of earlier tests may have ended meanwhile
    # a store keeps what it opened for the threads it has seen
    assert len(os.listdir("/proc/self/fd")) <= files + (0 if isinstance(registry, JsonlRegistry) else 4)


@pytest.mark.deep
def test_many_jobs_at_once(jsonl_queue):
    """F20: no zombie, no descriptor left, each with its own result."""
    before = len(os.listdir("/proc/self/fd"))
    jobs = [new(Returning, value=number) for number in range(40)]
    for job in jobs:
        jsonl_queue.add_job(job)
    for job in jobs:
        jsonl_queue.start_job(job.job_id)
    assert [jsonl_queue.wait_for_job(job.job_id, 60).result for job in jobs] == list(range(40))
    assert jsonl_queue.metrics == (40, 40, 0, 0, 0)
    # the recorder knows the end a moment before the last keeper is waited for
    until(lambda: len(os.listdir("/proc/self/fd")) <= before + 2)


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.requirement("P6")
def test_no_descriptor_outlives_its_process(jsonl_queue):
    """F20: neither of jobs that are kept nor of deleted ones, though the garbage collector never runs."""
    run(jsonl_queue, new(Returning, value=0))  # threads and pipes of the queue are there
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        for number in range(7):
            jobs = [new(Returning, value=number) for _ in range(40)]
            for job in jobs:
                jsonl_queue.add_job(job)
            assert len(os.listdir("/proc/self/fd")) <= before  # a job that waits has none either
            for job in jobs:
                jsonl_queue.start_job(job.job_id)
            for job in jobs:
                assert jsonl_queue.wait_for_job(job.job_id, 60).result == number
            for job in jobs[:20]:
                jsonl_queue.delete_job(job.job_id)
            until(lambda: len(os.listdir("/proc/self/fd")) <= before)
            assert {job.shared_state["result"].value for job in jobs} == {number}
    finally:
        gc.enable()


def test_a_process_that_cannot_start_leaves_no_descriptor(jsonl_queue, monkeypatch):
    def refuse(*_args, **_options):
        raise ProcessControlError("no process today")

    run(jsonl_queue, new(Returning, value=0))
    monkeypatch.setattr(jsonl_queue._supervisor, "fork", refuse)
    before = len(os.listdir("/proc/self/fd"))
    job = new(Returning, value=1)
    jsonl_queue.add_job(job)
    with pytest.raises(ProcessControlError, match="no process today"):
        jsonl_queue.start_job(job.job_id)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert jsonl_queue.get_job_status(job.job_id).status is JobStatus.ERROR
    assert job.shared_state["status"].value is JobStatus.ERROR


SPEC_SCRIPT = """
from penstock.processes import JobQueue, JsonlRegistry, QueueJobBase
import sys

class ExampleJob(QueueJobBase):
    def execute(self): return sum(range(self.params["n"]))
    def on_start(self): pass
    def on_stop(self): pass
    def on_end(self): pass
    def on_error(self, exc): pass

registry = JsonlRegistry(path=sys.argv[1])
queue = JobQueue(registry=registry)
job = ExampleJob(job_id=sys.argv[2], params={"n": 100})
queue.add_job(job)
queue.start_job(job.job_id)
status = queue.wait_for_job(job.job_id, 30)
print(status.status.name, status.result)
queue.close()
"""


@pytest.mark.requirement("P1", "P18")
def test_the_example_of_the_specification_runs_as_a_script_without_a_guard(tmp_path):
    script = tmp_path / "example.py"
    script.write_text(SPEC_SCRIPT)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "runtime" / "registry.jsonl", str(uuid.uuid4())],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("COMPLETED 4950\n", "")


KILLED_SCRIPT = """
import sys, subprocess, threading, uuid
import penstock
from penstock.processes import BackendRegistry, JobQueue, SimpleJob
class Job(SimpleJob):
    def execute(self):
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
        self.set_result(child.pid)
        self.report_progress(5)
        self.wait_for_stop()
backend = penstock.open_backend(sys.argv[1])
queue = JobQueue(BackendRegistry(backend))
job = Job(sys.argv[2], {})
queue.add_job(job)
queue.start_job(job.job_id)
while queue.get_job_status(job.job_id).progress != 5:
    threading.Event().wait(0.01)
print(job._process.pid, queue.get_job_status(job.job_id).result, flush=True)
threading.Event().wait()
"""


@pytest.mark.requirement("P12", "C43")
def test_the_jobs_of_a_killed_queue_are_killed_and_recorded_so(tmp_path):
    """F1, F23: the store finds that the process is gone; the job's one attempt is lost."""
    url, job_id = f"sqlite:///{tmp_path}/jobs.db", str(uuid.uuid4())
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_SCRIPT, url, job_id], stdout=subprocess.PIPE, text=True
    ) as child:
        pids = [int(pid) for pid in child.stdout.readline().split()]
        ends = [os.pidfd_open(pid) for pid in pids]
        child.kill()
    for end in ends:
        poll = select.poll()
        poll.register(end, select.POLLIN)
        assert poll.poll(10_000), "a process outlived its queue"
        os.close(end)
    with penstock.open_backend(url) as backend:
        backend.maintain()
        job = backend.get_job(job_id)
        assert (job.status, job.process_status) == (penstock.JobStatus.DEAD_LETTER, JobStatus.ERROR)


JSONL_KILLED_SCRIPT = """
import sys, threading
from penstock.processes import JobQueue, JsonlRegistry, SimpleJob
class Job(SimpleJob):
    def execute(self):
        self.wait_for_stop()
queue = JobQueue(JsonlRegistry(sys.argv[1]))
for job_id in sys.argv[2:]:
    queue.add_job(Job(job_id, {}))
queue.start_job(sys.argv[2])
print(queue.get_jobs()[sys.argv[2]]._process.pid, flush=True)
threading.Event().wait()
"""


@pytest.mark.requirement("C43")
def test_a_registry_does_not_report_a_lost_job_as_running_for_ever(tmp_path):
    """F1, F23: the next queue finds out; while the first one lives, a second leaves its jobs alone."""
    path, lost, waiting = tmp_path / "registry.jsonl", str(uuid.uuid4()), str(uuid.uuid4())
    with subprocess.Popen(
        [sys.executable, "-c", JSONL_KILLED_SCRIPT, path, lost, waiting], stdout=subprocess.PIPE, text=True
    ) as child:
        end = os.pidfd_open(int(child.stdout.readline()))
        with JobQueue(JsonlRegistry(path)) as second:
            assert second.get_job_status(lost).status is JobStatus.RUNNING
        child.kill()
    poll = select.poll()
    poll.register(end, select.POLLIN)
    assert poll.poll(10_000), "a job outlived its queue"
    os.close(end)

    def found():
        with JobQueue(JsonlRegistry(path)) as third:  # the keeper may need a moment longer than the job
            return third.get_job_status(lost).status is JobStatus.ERROR

    until(found)
    records = {record.job_id: record for record in JsonlRegistry(path).all_latest()}
    assert records[lost].description == "the process of its queue ended while it ran"
    assert records[waiting].status is JobStatus.PENDING


# -- a job without a queue -----------------------------------------------------------------------------------------


@pytest.mark.requirement("P9")
def test_a_job_controls_its_process_without_a_queue():
    job = new(Waiting)
    process = job.start_process()
    assert process.is_alive()
    assert process.exitcode is None
    with pytest.raises(InvalidJobStateError):
        job.start_process()
    until(lambda: job.shared_state["progress"].value == 10)
    job.stop_process(timeout=LONG)
    assert (process.is_alive(), process.exitcode) == (False, 0)
    assert job.shared_state["status"].value is JobStatus.INTERRUPTED
    with pytest.raises(InvalidJobStateError):
        job.stop_process()


@pytest.mark.requirement("P9", "P16")
def test_a_job_that_does_not_stop_is_terminated():
    job = new(Stubborn)
    process = job.start_process()
    until(lambda: job.shared_state["progress"].value == 1)
    with pytest.raises(ProcessControlError, match="terminate_process"):
        job.stop_process(timeout=0.05)
    job.terminate_process()
    assert process.exitcode == -signal.SIGKILL
    job.terminate_process()


def test_a_class_made_inside_a_function_runs_too(jsonl_queue):
    secret = object()

    class Local(SimpleJob):
        def execute(self):
            return secret is self.params["secret"]

    assert run(jsonl_queue, new(Local, secret=secret)).result is True


def test_records_of_an_earlier_process_can_be_read(tmp_path):
    registry = JsonlRegistry(tmp_path / "registry.jsonl")
    with JobQueue(registry) as queue:
        old = run(queue, new(Returning, value=5))
    with JobQueue(JsonlRegistry(Path(registry.path))) as queue:
        assert queue.get_job_status(old.job_id) == old
        assert queue.get_jobs() == {}
        with pytest.raises(JobAlreadyExistsError):
            queue.add_job(Returning(old.job_id, {}))
        with pytest.raises(JobNotFoundError):
            queue.start_job(old.job_id)


@pytest.mark.requirement("P12", "P14", "C42")
def test_a_job_of_an_earlier_queue_can_be_deleted_unless_it_runs_there(registry):
    with JobQueue(registry) as earlier, JobQueue(registry) as queue:
        old = run(earlier, new(Returning, value=5))
        queue.delete_job(old.job_id)
        for call in (queue.get_job_status, queue.delete_job):
            with pytest.raises(JobNotFoundError):
                call(old.job_id)
        running = new(Waiting)
        earlier.add_job(running)
        earlier.start_job(running.job_id)
        with pytest.raises(InvalidJobStateError, match="runs in another queue"):
            queue.delete_job(running.job_id, force=True)
        assert earlier.get_job_status(running.job_id).status is JobStatus.RUNNING


@pytest.mark.deep
@pytest.mark.requirement("P8", "P13")
def test_no_snapshot_shows_an_end_before_it_is_recorded(tmp_path):
    registry = JsonlRegistry(tmp_path / "registry.jsonl")
    with JobQueue(registry) as queue:
        for job in [new(Returning, value=number) for number in range(20)]:
            queue.add_job(job)
            queue.start_job(job.job_id)
        for name in queue.get_jobs():
            queue.wait_for_job(name, LONG)
    running = [line for line in registry.path.read_text().splitlines() if '"status":1' in line]
    assert running
    assert not [line for line in running if "Completed" in line or '"progress":99' in line]
