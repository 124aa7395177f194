"""Archiving on real stores: in portions, beside a journal whose numbers come late, killed in the middle."""

from typing import Any

import pytest

from penstock.backends.engine import journal
from penstock.job import Job, JournalArchive
from penstock.testing import check_store


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def backend(request: pytest.FixtureRequest, new_store: Any) -> Any:
    return new_store(request.param)()


@pytest.fixture
def small_portions(monkeypatch):
    monkeypatch.setattr(journal, "ARCHIVE_PORTION", 3)


def end(backend, *ids):
    backend.enqueue_jobs([Job(id=each, type="t") for each in ids])
    assert backend.cancel_jobs(job_ids=ids)[1] == []


def test_all_portions_are_looked_at(backend, small_portions):
    end(backend, *(f"a-{number}" for number in range(10)))
    backend.enqueue_job(Job(id="waits", type="t"))
    end(backend, *(f"b-{number}" for number in range(10)))
    backend.enqueue_job(Job(id="newest", type="t"))
    assert backend.journal.archive(0) == JournalArchive(histories=20, rows=40, upto=41)
    assert [row.seq for row in backend.read_journal()] == [21, 42]
    assert check_store(backend) == []


def test_a_fault_between_two_portions_leaves_whole_histories(backend, small_portions, monkeypatch):
    """What the portions before it removed is removed and counted; the rest is there."""
    end(backend, *(f"a-{number}" for number in range(10)))
    backend.enqueue_job(Job(id="newest", type="t"))
    calls = []
    original = backend._access.write

    def failing(work):
        calls.append(work)
        if len(calls) == 6:
            raise OSError("the process is gone")
        return original(work)

    monkeypatch.setattr(backend._access, "write", failing)
    with pytest.raises(OSError, match="gone"):
        backend.journal.archive(0)
    monkeypatch.undo()
    known = backend.journal.get_archive()
    assert 0 < known.histories < 10
    assert known.rows == 2 * known.histories
    assert check_store(backend) == []
    assert backend.journal.archive(0).histories == 10 - known.histories
    assert check_store(backend) == []


def test_a_count_that_does_not_fit_the_gaps_is_found(backend):
    """The planted bug: rows that are gone without having been archived."""
    end(backend, "a", "b")
    backend.enqueue_job(Job(id="newest", type="t"))
    backend.journal.archive(0)
    assert check_store(backend) == []
    told = backend.journal.get_archive()
    backend.journal.get_archive = lambda: JournalArchive(
        histories=told.histories, rows=told.rows - 1, upto=told.upto
    )
    assert [violation.invariant for violation in check_store(backend)] == [2]
    backend.journal.get_archive = lambda: JournalArchive(
        histories=told.histories, rows=told.rows + 1, upto=told.upto
    )
    assert [violation.invariant for violation in check_store(backend)] == [2]
    backend.journal.get_archive = lambda: JournalArchive(histories=1, rows=told.rows, upto=told.upto)
    assert [violation.invariant for violation in check_store(backend)] == [23]
    backend.journal.get_archive = JournalArchive
    assert {violation.invariant for violation in check_store(backend)} == {2, 23}
