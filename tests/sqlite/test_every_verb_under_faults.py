"""Every verb on a disk that fails at its n-th write, flush or read: all or nothing, a typed error, and on it goes."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.sqlite import scene
from tests.sqlite.faulty_disk import USUAL, FaultyDisk, contents, contents_after_a_crash
from tests.sqlite.support import assert_sound, open_store, writer_of
from tests.tiers import some
from tests.verbs import every_verb

from penstock import BackendError, Job, JobStatus
from penstock.backends import Change
from penstock.testing import ManualClock

MOST_FAULTS = 300


class Stage:
    """The scene on a faulty disk, with a stream that waits and a listener."""

    def __init__(self, backend: Any, disk: FaultyDisk, path: Path) -> None:
        self.backend = backend
        self.disk = disk
        self.path = path
        self.stream = scene.Waiting()
        self.changes: list[Change] = []
        backend.runtime.listen(self.changes.extend)
        backend.runtime.serve(self.stream)

    def try_with(self, call: scene.Call, fault: str, at: int, *, once: bool = False) -> bool:
        """Call with a fault at the n-th operation; return whether the call was refused."""
        self.changes.clear()
        self.stream.got.clear()
        self.disk.arm(fault, at, once=once)
        refusal: BackendError | None = None
        try:
            call(self.backend)
        except BackendError as error:
            refusal = error
        is_met = self.disk.failed > 0
        self.disk.heal()
        assert self.stream.is_answered
        if refusal is None:
            return False
        assert is_met, refusal
        assert refusal.retryable, refusal
        return True

    def check_delivered(self) -> None:
        """Whatever the stream got is stored as its own."""
        for job in self.stream.got:
            stored = self.backend.get_job(job.id)
            assert (stored.status, stored.assignee_id) == (JobStatus.RUNNING, "stream")
            assert stored.attempt == job.attempt

    def disturb(self) -> None:
        """Commit something from outside, so that the backend's connections have to read the file again."""
        outside = apsw.Connection(str(self.path), vfs=USUAL)
        outside.execute(
            "INSERT INTO setting (name, value) VALUES ('refused_commits', 1)"
            " ON CONFLICT (name) DO UPDATE SET value = value + 1"
        )
        outside.close()


@pytest.fixture
def stage(disk: FaultyDisk, path: Path) -> Iterator[Stage]:
    clock = ManualClock()
    backend = open_store(path, clock=clock)
    scene.build(backend, clock)
    backend.owners.open()
    clock.advance(100)
    yield Stage(backend, disk, path)
    disk.heal()
    backend.close()


def test_every_verb_is_here() -> None:
    verbs = set(every_verb())
    known = {*scene.WRITING, *scene.IN_STEPS, *scene.READING, *scene.APART}
    assert verbs - known == set(), "add a call of the new verb to tests/sqlite/scene.py"
    assert known - verbs == set()


@pytest.mark.parametrize("fault", ["write", "sync"])
@pytest.mark.parametrize("verb", some(sorted(scene.WRITING)))
def test_a_verb_is_stored_wholly_or_refused(stage: Stage, verb: str, fault: str) -> None:
    """The fault comes at the first place, the second, the third …, until it comes too late for the verb."""
    before = contents(stage.path)
    for at in itertools.count(1):
        assert at < MOST_FAULTS
        kind = "full" if fault == "write" and at % 2 else fault
        if not stage.try_with(scene.WRITING[verb], kind, at, once=at % 3 == 0):
            break
        assert (stage.stream.got, stage.changes) == ([], [])
        assert contents(stage.path) == before
        assert contents_after_a_crash(stage.path) == before
    assert at > 1
    after = contents(stage.path)
    assert after != before
    assert contents_after_a_crash(stage.path) == after
    stage.check_delivered()
    assert_sound(stage.backend, stage.path)


@pytest.mark.parametrize("fault", ["write", "sync"])
@pytest.mark.parametrize("verb", sorted(scene.IN_STEPS))
def test_a_verb_of_several_transactions_goes_on_where_it_was_refused(
    stage: Stage, verb: str, fault: str
) -> None:
    before = contents(stage.path)
    for at in itertools.count(1):
        assert at < MOST_FAULTS
        kind = "full" if fault == "write" and at % 2 else fault
        is_refused = stage.try_with(scene.IN_STEPS[verb], kind, at)
        stage.check_delivered()
        assert contents_after_a_crash(stage.path) == contents(stage.path)
        if not is_refused:
            break
    assert at > 1
    assert contents(stage.path) != before
    assert_sound(stage.backend, stage.path)
    if verb == "maintain":
        statuses = {name: stage.backend.get_job(name).status for name in ("expiring", "lost", "overdue")}
        assert statuses == {
            "expiring": JobStatus.DEAD_LETTER,
            "lost": JobStatus.UNKNOWN_RETRY,
            "overdue": JobStatus.FAILED_RETRY,
        }


@pytest.mark.parametrize("verb", some(sorted({**scene.WRITING, **scene.READING})))
def test_a_verb_that_cannot_read_is_refused_and_works_again(stage: Stage, verb: str) -> None:
    call = {**scene.WRITING, **scene.READING}[verb]
    before = contents(stage.path)
    for at in itertools.count(1):
        assert at < MOST_FAULTS
        stage.disturb()
        if not stage.try_with(call, "read", at, once=at % 2 == 0):
            break
        assert (stage.stream.got, stage.changes) == ([], [])
        assert contents(stage.path) == before
    assert (contents(stage.path) != before) is (verb in scene.WRITING)
    stage.check_delivered()
    assert_sound(stage.backend, stage.path)


def test_every_verb_is_refused_while_another_process_holds_the_lock(stage: Stage) -> None:
    """What it holds is SQLite's own lock; reading goes on."""
    writer_of(stage.backend)._timeout = 0.02
    before = contents(stage.path)
    other = apsw.Connection(str(stage.path), vfs=USUAL)
    other.execute("BEGIN IMMEDIATE")
    for verb, call in {**scene.WRITING, **scene.IN_STEPS}.items():
        with pytest.raises(BackendError, match="locked by another process") as caught:
            call(stage.backend)
        assert caught.value.retryable, verb
        assert (stage.stream.got, stage.changes) == ([], [])
    for call in scene.READING.values():
        call(stage.backend)
    other.execute("ROLLBACK")
    other.close()
    assert contents(stage.path) == before
    assert stage.backend.enqueue_job(Job(id="later", type="t")) == "later"
    stage.check_delivered()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # faults while apsw closes
@pytest.mark.parametrize("fault", ["full", "write", "sync", "read"])
def test_a_store_can_be_made_after_a_fault_at_any_place(disk: FaultyDisk, path: Path, fault: str) -> None:
    for at in itertools.count(1, 3):
        assert at < 20 * MOST_FAULTS
        disk.arm(fault, at)
        try:
            backend = open_store(path)
        except BackendError:
            disk.heal()
            continue
        disk.heal()
        with backend:
            assert_sound(backend, path)
        break
