"""Selecting jobs by what is common to them, and finding ids by how they begin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.backends import Backend
from penstock.backends.contract.selection import STATUS_GROUPS, JobSelection
from penstock.errors import InvalidArgumentError
from penstock.job import JobStatus, Key
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    ONE_ATTEMPT,
    STATUSES,
    Suite,
    a_job,
    claim,
    drive,
    put,
    put_running,
    refused,
    unchanged,
)

_S = JobStatus


def selected(backend: Backend, *, newest: bool = False, limit: int = 1000, **fields: Any) -> list[str]:
    """Return the ids of all jobs that a selection selects, page by page."""
    found: list[str] = []
    after: int | None = None
    while True:
        page = backend.reading.select_jobs(JobSelection(**fields), after=after, limit=limit, newest=newest)
        found += [each.id for each in page.jobs]
        if page.next is None:
            return found
        after = page.next


class Selecting(Suite):
    """select_jobs."""

    def test_without_a_limit_on_them_all_jobs_are_selected_in_insertion_order(self, backend: Backend) -> None:
        put(backend, "b", "a", "c")
        with unchanged(backend):
            assert selected(backend) == ["b", "a", "c"]
            assert selected(backend, newest=True) == ["c", "a", "b"]
            assert JobSelection().is_everything

    def test_an_empty_store_has_an_empty_last_page(self, backend: Backend) -> None:
        for newest in (False, True):
            assert backend.reading.select_jobs(JobSelection(), newest=newest) == ([], None)

    @cells("newest", [False, True])
    def test_pages_bring_every_job_once(self, backend: Backend, newest: bool) -> None:
        names = [f"job-{number:02}" for number in range(25)]
        for number, name in enumerate(names):
            put(backend, name, type=f"t{number % 2}", tags=["red"] if number % 3 else ["red", "big"])
        wanted = names[::-1] if newest else names
        assert selected(backend, newest=newest, limit=4) == wanted
        assert selected(backend, newest=newest, limit=3, types=["t1"]) == [
            name for name in wanted if int(name[4:]) % 2
        ]
        assert selected(backend, newest=newest, limit=2, tags=["red", "big"]) == [
            name for name in wanted if int(name[4:]) % 3 == 0
        ]

    @cells("status", STATUSES)
    def test_a_status_selects_its_jobs(self, backend: Backend, status: JobStatus) -> None:
        for each in sorted(STATUSES, key=lambda status: status.holds_slot):
            drive(backend, each, str(each))
        if status is not _S.RUNNING:  # which is also the name of a group
            assert selected(backend, statuses=[str(status)]) == [str(status)]
        assert set(selected(backend, statuses=[str(status), "completed"])) >= {str(status), "completed"}

    def test_the_groups_of_statuses_are_all_jobs_each_once(self, backend: Backend) -> None:
        for each in sorted(STATUSES, key=lambda status: status.holds_slot):
            drive(backend, each, str(each))
        put_running(backend, "handed-back")
        backend.release_jobs({"handed-back": "the worker was stopped"})
        found = {name: selected(backend, statuses=[name]) for name in STATUS_GROUPS}
        assert sorted(each for ids in found.values() for each in ids) == sorted(
            [*map(str, STATUSES), "handed-back"]
        )
        assert found["handed_back"] == ["handed-back"]
        assert set(found["retrying"]) == {"failed_retry", "unknown_retry"}
        assert found["pending"] == ["initial_pending"]
        assert set(found["running"]) == {"running", "cancelling"}
        assert set(found["cancelled"]) == {"stopped", "unscheduled", "unknown_stopped"}
        assert set(selected(backend, statuses=["handed_back", "retrying"])) == {
            *found["retrying"],
            "handed-back",
        }
        assert set(selected(backend, statuses=["failed_retry"])) == {"failed_retry", "handed-back"}

    def test_few_jobs_of_a_status_are_found_beside_many_others(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        backend.enqueue_jobs([a_job(id=f"old-{number}", type="t", tags=["old"]) for number in range(300)])
        backend.cancel_jobs(["old"])
        for number in range(3):
            drive(backend, _S.FAILED, f"dead-{number}")
            drive(backend, _S.FAILED_RETRY, f"retried-{number}")
            drive(backend, _S.RUNNING, f"runs-{number}")
            put(backend, f"waits-{number}")
        clock.advance(60)
        backend.maintain()
        for newest in (False, True):
            order = -1 if newest else 1
            for name, prefix in (("failed", "dead"), ("retrying", "retried"), ("running", "runs")):
                wanted = [f"{prefix}-{number}" for number in range(3)][::order]
                assert selected(backend, statuses=[name], newest=newest) == wanted
                assert selected(backend, statuses=[name], newest=newest, limit=1) == wanted
            assert (
                selected(backend, statuses=["pending"], newest=newest, limit=2)
                == [f"waits-{number}" for number in range(3)][::order]
            )
            both = selected(backend, statuses=["failed", "retrying"], newest=newest, limit=2)
            assert len(both) == 6
            assert set(both[:2]) == ({"dead-2", "retried-2"} if newest else {"dead-0", "retried-0"})

    def test_key_type_tags_time_and_error_narrow_together(self, backend: Backend, clock: ManualClock) -> None:
        start = clock.now()
        drive(backend, _S.FAILED, "a", type="mail", tags=["red", "big"], key=Key("k"))
        clock.advance(10)
        drive(backend, _S.FAILED, "b", type="mail", tags=["red"])
        put_running(backend, "c", type="report", tags=["red"], retry=ONE_ATTEMPT)
        backend.fail_job("c", "OSError: Disk full\n\nTraceback")
        assert selected(backend, types=["mail", "report"]) == ["a", "b", "c"]
        assert selected(backend, types=["report"]) == ["c"]
        assert selected(backend, key="k") == ["a"]
        assert selected(backend, error="disk FULL") == ["c"]
        assert selected(backend, error="broken") == ["a", "b"]
        assert selected(backend, error="%") == []
        assert selected(backend, until=start + timedelta(seconds=10)) == ["a"]
        assert selected(backend, since=start + timedelta(seconds=10)) == ["b", "c"]
        assert selected(backend, since=start, until=start) == []
        assert selected(backend, statuses=["failed"], tags=["red"], types=["mail"], error="broken") == [
            "a",
            "b",
        ]
        assert selected(backend, statuses=["dead"], tags=["big"]) == []
        assert selected(backend, since=datetime(1, 1, 1, tzinfo=UTC)) == ["a", "b", "c"]
        assert selected(backend, until=datetime(9999, 12, 31, tzinfo=UTC)) == ["a", "b", "c"]

    def test_jobs_that_were_submitted_later_can_be_left_out(self, backend: Backend) -> None:
        put(backend, "a", "b")
        upto = backend.reading.jobs_span()[1]
        put(backend, "c")
        for newest in (False, True):
            page = backend.reading.select_jobs(JobSelection(), upto=upto, newest=newest)
            assert {each.id for each in page.jobs} == {"a", "b"}
            assert [each.number for each in page.jobs] == sorted(
                (each.number for each in page.jobs), reverse=newest
            )

    def test_jobs_that_ended_with_one_they_waited_for_can_be_left_out(self, backend: Backend) -> None:
        put(backend, "first")
        put(backend, "second", after=["first"])
        claim(backend, "first")
        backend.stop_job("first", "no")
        assert selected(backend, statuses=["cancelled"]) == ["first", "second"]
        assert selected(backend, statuses=["cancelled"], spares_propagated=True) == ["first"]

    @cells(
        "fields",
        [
            {"statuses": ["nonsense"]},
            {"statuses": "failed"},
            {"statuses": [5]},
            {"types": "t"},
            {"types": [None]},
            {"tags": "red"},
            {"key": 5},
            {"since": "yesterday"},
            {"since": datetime(2026, 1, 1)},  # that is what is wrong with it
            {"until": 5},
            {"error": ""},
            {"error": 5},
            {"error": "x" * 2_000},
            {"spares_propagated": 1},
        ],
        ids=repr,
    )
    def test_a_wrong_selection_is_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgumentError):
            JobSelection(**fields)

    @cells(
        "arguments",
        [
            {"selection": None},
            {"selection": {"types": ["t"]}},
            {"selection": JobSelection(types=("\0",))},
            {"selection": JobSelection(tags=("\ud800",))},
            {"selection": JobSelection(error="\0")},
            {"selection": JobSelection(key=Key("\0"))},
            {"limit": 0},
            {"limit": 100_001},
            {"limit": True},
            {"after": -1},
            {"after": "a"},
            {"upto": 10**30},
        ],
        ids=repr,
    )
    def test_wrong_arguments_are_refused(self, backend: Backend, arguments: dict[str, Any]) -> None:
        with refused(backend, InvalidArgumentError):
            backend.reading.select_jobs(**{"selection": JobSelection(), **arguments})


class Prefixes(Suite):
    """find_ids."""

    def test_ids_are_found_by_how_they_begin(self, backend: Backend) -> None:
        put(backend, "abc-2", "abc-1", "abc", "abd", "Abc", "b", "é1")
        assert backend.reading.find_ids("abc") == ["abc", "abc-1", "abc-2"]
        assert backend.reading.find_ids("abc", 2) == ["abc", "abc-1"]
        assert backend.reading.find_ids("abc-1") == ["abc-1"]
        assert backend.reading.find_ids("é") == ["é1"]
        assert backend.reading.find_ids("abcd") == []
        assert backend.reading.find_ids("z") == []

    @cells("prefix", ["", None, 5, "\0", "\ud800", "x" * 1_000], ids=repr)
    def test_what_no_id_begins_with_is_refused(self, backend: Backend, prefix: Any) -> None:
        with refused(backend, InvalidArgumentError):
            backend.reading.find_ids(prefix)
