"""penstock.testing: the clock, the journal's invariants, and that the suite is whole."""

import importlib
import pkgutil
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest

from penstock.errors import InvalidArgumentError
from penstock.job import Job, JobStatus, JournalEntry, Key
from penstock.lifecycle import Verb
from penstock.policy import FailureCategory, RetryPolicy
from penstock.testing import (
    ManualClock,
    ModelBackend,
    check_fold,
    check_invariants,
    conformance,
    fold_journal,
)
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import drive, journal, unchanged
from penstock.testing.journal import INVARIANTS

change = msgspec.structs.replace


class Table:
    """A table of the suite whose cells do what the test says."""

    def __init__(self, cell):
        self.cell = cell

    @cells("row", ["a", "b"])
    @cells("column", [1, 2, 3])
    def walk(self, backend, row, column):
        self.cell(backend, f"{row}{column}")


class TestCells:
    """One test walks a table on one store."""

    def test_every_cell_is_tried_and_every_failure_named(self):
        tried = []

        def cell(_, name):
            tried.append(name)
            assert name != "a2", "no good"
            with pytest.raises(ValueError, match="bad"):
                int("bad" if name != "b3" else "3")

        with pytest.raises(AssertionError) as caught:
            Table(cell).walk(backend=ModelBackend(clock=ManualClock()))
        assert tried == ["a1", "a2", "a3", "b1", "b2", "b3"]
        assert str(caught.value) == "2 of 6 cells failed: [a-2], [b-3]"
        assert [error.__notes__ for error in caught.value.__cause__.exceptions] == [
            ["in the cell [a-2]"],
            ["in the cell [b-3]"],
        ]

    def test_every_cell_finds_the_store_without_jobs(self):
        def cell(backend, _):
            assert backend.list_jobs() == []
            assert not backend.is_blocked()
            for status in JobStatus:
                drive(backend, status, str(status))
            backend.enqueue_job(Job(id="waits", type="t", after=("running",)))
            backend.set_blocked(True)

        Table(cell).walk(backend=ModelBackend(clock=ManualClock()))

    def test_a_cell_sees_the_journal_rows_of_its_own(self):
        def cell(backend, _):
            drive(backend, JobStatus.RUNNING)
            assert [row.verb for row in journal(backend)] == ["enqueue", "claim"]
            with pytest.raises(AssertionError), unchanged(backend):
                backend.complete_job("job")

        backend = ModelBackend(clock=ManualClock())
        Table(cell).walk(backend=backend)
        assert journal(backend)[0].seq == 1

    @pytest.mark.parametrize("verb", ["claim", "delete"])
    def test_a_row_that_is_missing_is_found_with_its_cell(self, verb):
        class Forgetful(ModelBackend):
            """Its journal loses a row of the fourth cell."""

            def read_journal(self, *args, **options):
                rows = super().read_journal(*args, **options)
                return [row for row in rows if (row.job_id, row.verb) != ("b1", verb)]

        with pytest.raises(AssertionError, match=r"of 6 cells failed: \[b-1\]"):
            Table(lambda backend, name: drive(backend, JobStatus.COMPLETED, name)).walk(
                backend=Forgetful(clock=ManualClock())
            )

    def test_a_store_that_cannot_be_cleared_ends_the_walk(self):
        class Clinging(ModelBackend):
            """Keeps its jobs."""

            def delete_jobs(self, *_, **__):
                raise RuntimeError("kept")

        with pytest.raises(AssertionError, match=r"1 of 1 cells failed: \[after a-1\]"):
            Table(lambda backend, name: drive(backend, JobStatus.COMPLETED, name)).walk(
                backend=Clinging(clock=ManualClock())
            )


class TestManualClock:
    def test_it_stands_still_until_it_is_moved(self):
        clock = ManualClock()
        assert clock.now() == clock.now() == datetime(2030, 1, 1, tzinfo=UTC)
        assert clock.advance(1.5) == datetime(2030, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
        assert clock.advance(timedelta(days=1)) == clock.now()
        clock.set(datetime(2031, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))))
        assert clock.now() == datetime(2031, 1, 1, tzinfo=UTC)
        assert clock.now().tzinfo is UTC

    def test_it_starts_at_the_given_moment(self):
        start = datetime(2000, 5, 5, tzinfo=UTC)
        assert ManualClock(start).now() == start

    def test_a_naive_moment_is_refused(self):
        with pytest.raises(InvalidArgumentError):
            ManualClock(datetime(2030, 1, 1))
        with pytest.raises(InvalidArgumentError):
            ManualClock().set(datetime(2030, 1, 1))

    def test_threads_may_share_it(self):
        clock = ManualClock()
        start = clock.now()
        threads = [threading.Thread(target=lambda: [clock.advance(1) for _ in range(500)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert clock.now() - start == timedelta(seconds=2000)


class TestImports:
    def test_the_tools_need_neither_pytest_nor_hypothesis(self):
        code = (
            "import sys; sys.modules.update(pytest=None, hypothesis=None)\n"
            "import penstock.testing as tools\n"
            "tools.ManualClock, tools.ModelBackend, tools.check_invariants\n"
            "try: tools.BackendConformance\n"
            "except ImportError: print('needs pytest')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": "src"},
        )
        assert done.stdout == "needs pytest\n"

    def test_an_unknown_name_is_an_attribute_error(self):
        import penstock.testing

        with pytest.raises(AttributeError, match="nonsense"):
            getattr(penstock.testing, "nonsense")  # noqa: B009


class TestSuite:
    def test_every_family_of_every_module_is_in_the_suite(self):
        found = set()
        for module in pkgutil.iter_modules(conformance.__path__):
            if not module.name.startswith("_"):
                names = vars(importlib.import_module(f"penstock.testing.conformance.{module.name}"))
                found |= {
                    value
                    for value in names.values()
                    if isinstance(value, type)
                    and issubclass(value, conformance.Suite)
                    and value is not conformance.Suite
                }
        assert found == set(conformance.FAMILIES)
        assert len(conformance.FAMILIES) == len(found)

    def test_every_family_is_collected(self):
        for family in conformance.FAMILIES:
            nested = getattr(conformance.BackendConformance, f"Test{family.__name__}")
            assert issubclass(nested, family)
            assert any(name.startswith("test_") for name in vars(family))

    def test_the_backend_fixture_finds_an_unsound_journal(self):
        from penstock.testing.conformance._support import assert_sound

        class Forgetful(ModelBackend):
            def read_journal(self, after=0, limit=1000):
                rows = super().read_journal(after, limit)
                return [row for row in rows if row.verb != "claim"]

        backend = Forgetful(ManualClock())
        backend.enqueue_job(Job(id="a", type="t"))
        backend.dequeue_jobs("w")
        with pytest.raises(AssertionError, match="state is the fold"):
            assert_sound(backend)


def life() -> list[JournalEntry]:
    """Return a journal in which much has happened."""
    clock = ManualClock()
    backend = ModelBackend(clock)
    policy = RetryPolicy(max_attempts=2, initial_delay=timedelta(seconds=5))
    backend.enqueue_job(Job(id="a", type="t", key=Key("k"), retry=policy, idempotency_key="once"))
    backend.enqueue_job(Job(id="b", type="t", key=Key("k")))
    clock.advance(1)
    backend.dequeue_jobs("w1")
    backend.fail_job("a", "boom", category=FailureCategory.TIMEOUT)
    clock.advance(5)
    backend.dequeue_jobs("w2")
    backend.complete_job("a")
    backend.dequeue_jobs("w1")
    backend.stop_job("b")
    return backend.read_journal()


def planted(rows: list[JournalEntry]) -> set[int]:
    return {violation.invariant for violation in check_invariants(rows)}


def row_of(rows: list[JournalEntry], job_id: str, n: int) -> int:
    return next(index for index, row in enumerate(rows) if (row.job_id, row.n) == (job_id, n))


class TestInvariants:
    def test_a_clean_journal_has_no_violations(self):
        rows = life()
        assert (
            check_invariants(rows, drained_at=rows[-1].recorded_at, acknowledged=[("a", 5), ("b", 3)]) == []
        )

    def test_a_journal_without_rows_is_clean(self):
        assert check_invariants([], jobs=[]) == []

    def test_1_a_history_without_its_beginning(self):
        rows = [row for row in life() if (row.job_id, row.n) != ("b", 1)]
        assert 1 in planted(rows)

    def test_2_a_missing_row(self):
        rows = [row for row in life() if (row.job_id, row.n) != ("a", 3)]
        assert 2 in planted(rows)

    def test_2_an_acknowledged_row_that_is_not_there(self):
        (violation,) = check_invariants(life(), acknowledged=[("a", 6)])
        assert (violation.invariant, violation.job_id) == (2, "a")

    def test_2_a_hole_in_seq(self):
        rows = life()
        rows[3:] = [change(row, seq=row.seq + 1) for row in rows[3:]]
        assert planted(rows) == {2}

    def test_3_a_step_that_is_not_in_the_table(self):
        rows = life()
        index = row_of(rows, "b", 3)
        rows[index] = change(rows[index], verb=str(Verb.STOP_WITH_RETRY))
        (violation,) = check_invariants(rows)
        assert (violation.invariant, violation.job_id) == (3, "b")
        assert [row.n for row in violation.rows] == [2, 3]
        assert "seq" in str(violation)

    def test_3_a_step_that_starts_elsewhere(self):
        rows = life()
        index = row_of(rows, "a", 4)
        rows[index] = change(rows[index], from_status=JobStatus.UNKNOWN_RETRY)
        assert planted(rows) == {3}

    def test_4_a_final_status_that_is_left(self):
        rows = life()
        last = rows[row_of(rows, "a", 5)]
        again = change(
            last, seq=len(rows) + 1, n=6, verb="fail", from_status=last.status, status=JobStatus.FAILED_RETRY
        )
        assert planted([*rows, again]) == {4}

    def test_5_an_attempt_that_falls(self):
        rows = life()
        index = row_of(rows, "a", 4)
        rows[index:] = [
            change(row, attempt=row.attempt - 1) if row.job_id == "a" else row for row in rows[index:]
        ]
        assert planted(rows) == {5}

    def test_6_a_second_holder(self):
        rows = life()
        taken = rows[row_of(rows, "a", 2)]
        twice = change(taken, n=3, attempt=2, from_status=JobStatus.RUNNING, assignee_id="w9")
        rows.insert(row_of(rows, "a", 2) + 1, twice)
        assert 6 in planted(renumbered(rows))

    def test_7_a_report_that_changes_the_holder(self):
        rows = life()
        index = row_of(rows, "a", 5)
        rows[index] = change(rows[index], assignee_id="w9")
        assert planted(rows) == {7}

    def test_8_a_job_that_succeeds_twice(self):
        rows = life()
        last = rows[row_of(rows, "a", 5)]
        again = change(last, seq=len(rows) + 1, n=6)
        assert 8 in planted([*rows, again])

    def test_9_a_job_that_was_left(self):
        rows = [row for row in life() if (row.job_id, row.n) != ("b", 3)]
        found = check_invariants(rows, drained_at=rows[-1].recorded_at)
        assert [(violation.invariant, violation.job_id) for violation in found] == [(9, "b")]

    def test_9_a_job_that_waits_for_its_time_is_not_lost(self):
        clock = ManualClock()
        backend = ModelBackend(clock)
        backend.enqueue_job(Job(id="a", type="t", run_at=clock.now() + timedelta(days=1)))
        rows = backend.read_journal()
        assert check_invariants(rows, drained_at=clock.now()) == []
        assert len(check_invariants(rows, drained_at=clock.now() + timedelta(days=2))) == 1

    def test_11_more_failures_than_allowed(self):
        rows = life()
        index = row_of(rows, "a", 3)
        rows[index:] = [change(row, failures=3) if row.job_id == "a" else row for row in rows[index:]]
        assert planted(rows) == {11}

    def test_12_a_claim_before_its_time(self):
        rows = life()
        index = row_of(rows, "a", 3)
        rows[index] = change(rows[index], due_at=rows[index].recorded_at + timedelta(seconds=60))
        assert planted(rows) == {12}

    def test_13_two_jobs_with_one_idempotency_key(self):
        rows = life()
        twin = change(rows[0], job_id="twin", key=None, seq=len(rows) + 1, recorded_at=rows[-1].recorded_at)
        assert planted([*rows, twin]) == {13}
        later = change(twin, recorded_at=rows[0].recorded_at + timedelta(hours=24))
        assert planted([*rows, later]) == set()

    def test_14_two_jobs_of_one_key_in_flight(self):
        rows = life()
        taken = rows.pop(row_of(rows, "b", 2))
        rows.insert(row_of(rows, "a", 4) + 1, taken)
        assert planted(renumbered(rows)) == {14}

    def test_14_a_follower_before_its_head(self):
        rows = life()
        first, second = row_of(rows, "a", 1), row_of(rows, "b", 1)
        rows[first], rows[second] = rows[second], rows[first]
        assert planted(renumbered(rows)) == {14}

    def test_23_a_job_that_the_journal_does_not_explain(self):
        clock = ManualClock()
        backend = ModelBackend(clock)
        backend.enqueue_job(Job(id="a", type="t", tags=("red",)))
        job, rows = backend.get_job("a"), backend.read_journal()
        assert check_fold(rows, [job]) == []
        assert [str(v) for v in check_fold(rows, [])] == [
            "23 (state is the fold): job 'a', seq -: is in the journal alone"
        ]
        assert len(check_fold([], [job])) == 1
        assert len(check_fold(rows, [change(job, tags=("blue",), attempt=3)])) == 2

    def test_25_time_that_goes_back(self):
        rows = life()
        rows[-1] = change(rows[-1], recorded_at=rows[-1].recorded_at - timedelta(seconds=2))
        assert planted(rows) == {25}

    def test_every_number_has_a_test(self):
        tested = {int(name.split("_")[1]) for name in vars(type(self)) if name.split("_")[1].isdigit()}
        assert tested == set(INVARIANTS)


class TestFold:
    def test_the_fold_is_the_last_row_with_the_origin_of_the_first(self):
        clock = ManualClock()
        backend = ModelBackend(clock)
        backend.enqueue_job(Job(id="a", type="t"))
        backend.enqueue_job(Job(id="b", type="t", after=("a",), parent_id="a"))
        backend.cancel_jobs(job_ids=["a"])
        fold = fold_journal(backend.read_journal())["b"]
        assert (fold.status, fold.n, fold.after, fold.parent_id) == (JobStatus.UNSCHEDULED, 2, ("a",), "a")

    def test_removed_jobs_are_not_in_the_fold(self):
        backend = ModelBackend(ManualClock())
        backend.enqueue_job(Job(id="a", type="t"))
        backend.cancel_jobs(job_ids=["a"])
        backend.delete_jobs(job_ids=["a"])
        assert fold_journal(backend.read_journal()) == {}
        backend.enqueue_job(Job(id="a", type="t"))
        assert fold_journal(backend.read_journal())["a"].n == 1


def renumbered(rows: list[JournalEntry]) -> list[JournalEntry]:
    """Return the rows with seq and n as their order says."""
    counts: dict[str, int] = {}
    result = []
    for seq, row in enumerate(rows, 1):
        counts[row.job_id] = counts.get(row.job_id, 0) + 1
        result.append(change(row, seq=seq, n=counts[row.job_id]))
    return result
