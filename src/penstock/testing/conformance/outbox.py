"""Stored deliveries to callback urls, and schedules that tick once over all processes."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from penstock.backends import CALLBACKS, Backend, Delivery
from penstock.errors import InvalidArgumentError, JobExistsError, QueueBlockedError, QueueFullError
from penstock.job import JobStatus
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._support import (
    STATUSES,
    WORKER,
    MakeBackend,
    Suite,
    a_job,
    all_jobs,
    claim,
    drive,
    ids,
    journal,
    put,
    put_running,
    refused,
    snapshot,
    unchanged,
)

_S = JobStatus
_FINALS = [status for status in STATUSES if status.is_final]
URL = "https://example.com/done"
ME = "deliverer-1"


def a_delivery(seq: int, **fields: Any) -> Delivery:
    known = {"event_id": f"event-{seq}", "url": URL, "lane": "example.com", "body": b"{}", "due_at": None}
    return Delivery(seq=seq, **{**known, **fields})


def hold(backend: Backend, holder: str = ME) -> None:
    backend.journal.register_consumer(CALLBACKS)
    assert backend.journal.hold_consumer(CALLBACKS, holder, 10) is not None


class Ends(Suite):
    """read_ends: how jobs with a callback url ended."""

    @pytest.mark.parametrize("status", STATUSES)
    def test_every_end_is_told(self, backend: Backend, status: JobStatus) -> None:
        """G32."""
        job = drive(backend, status, callback_url=URL, correlation_id="trace")
        ends, reached = backend.outbox.read_ends(0)
        assert reached == len(journal(backend))
        if not status.is_final:
            assert ends == []
            return
        (end,) = ends
        assert end.entry == journal(backend)[-1]
        assert (end.callback_url, end.correlation_id, end.created_at) == (URL, "trace", job.created_at)
        expected = b"result" if status is _S.COMPLETED else None
        assert (end.result, end.result_size) == (expected, expected and len(expected))

    def test_nobody_is_told_of_jobs_without_a_url(self, backend: Backend) -> None:
        drive(backend, _S.COMPLETED, "silent")
        journal(backend)
        assert backend.outbox.read_ends(0) == ([], 3)
        put(backend, "other", callback_url=URL)
        assert backend.outbox.read_ends(0) == ([], 4)
        assert backend.outbox.read_ends(4) == ([], 4)

    def test_the_url_is_that_of_the_job(self, backend: Backend) -> None:
        """C34: it may be changed until the end."""
        put_running(backend, "job", callback_url="https://example.com/first")
        backend.update_job("job", callback_url=URL)
        backend.complete_job("job")
        assert [end.callback_url for end in backend.outbox.read_ends(0)[0]] == [URL]

    def test_deleting_a_job_withdraws_it_and_is_no_end(self, backend: Backend) -> None:
        drive(backend, _S.COMPLETED, callback_url=URL)
        _, reached = backend.outbox.read_ends(0)
        put(backend, "other", callback_url=URL)
        backend.delete_jobs(job_ids=["job"])
        assert backend.outbox.read_ends(0)[0] == []
        assert backend.outbox.read_ends(reached)[0] == []

    def test_a_correction_and_a_second_end_are_told_too(self, backend: Backend) -> None:
        """Q7, P12."""
        drive(backend, _S.UNKNOWN_STOPPED, "lost", callback_url=URL)
        drive(backend, _S.STOPPED, "held", held=True, callback_url=URL)
        backend.complete_job("lost")
        backend.restart_job("held", WORKER)
        backend.complete_job("held")
        ended = [(end.entry.job_id, end.entry.status) for end in backend.outbox.read_ends(0)[0]]
        assert ended == [
            ("lost", _S.UNKNOWN_STOPPED),
            ("held", _S.STOPPED),
            ("lost", _S.COMPLETED),
            ("held", _S.COMPLETED),
        ]

    def test_a_large_result_is_left_out(self, backend: Backend) -> None:
        put_running(backend, "job", callback_url=URL)
        backend.complete_job("job", b"x" * 101)
        (left_out,), _ = backend.outbox.read_ends(0, max_result=100)
        assert (left_out.result, left_out.result_size) == (None, 101)
        (whole,), _ = backend.outbox.read_ends(0, max_result=101)
        assert (whole.result, whole.result_size) == (b"x" * 101, 101)

    @pytest.mark.parametrize("limit", [1, 2, 100])
    def test_pages_join_without_seam(self, backend: Backend, limit: int) -> None:
        for number in range(5):
            drive(backend, _S.COMPLETED, f"ended-{number}", callback_url=URL)
            drive(backend, _S.COMPLETED, f"silent-{number}")
        ended, reached = [], -1
        upto = 0
        while upto != reached:
            reached = upto
            ends, upto = backend.outbox.read_ends(reached, limit)
            assert len(ends) <= limit
            ended += [end.entry.job_id for end in ends]
        assert ended == [f"ended-{number}" for number in range(5)]
        assert reached == len(journal(backend))

    @pytest.mark.parametrize(
        "arguments", [{"after": -1}, {"after": None}, {"after": 0, "limit": 0}, {"after": 0, "max_result": 0}]
    )
    def test_what_makes_no_sense_is_refused(self, backend: Backend, arguments: dict[str, Any]) -> None:
        with refused(backend, InvalidArgumentError):
            backend.outbox.read_ends(**arguments)


class Deliveries(Suite):
    """Due deliveries, their tries, and the holder that may report them."""

    def test_what_is_saved_is_listed_and_counted(self, backend: Backend, clock: ManualClock) -> None:
        hold(backend)
        waiting = a_delivery(2, due_at=clock.now() + timedelta(seconds=5), attempts=3, error="refused")
        given_up = a_delivery(1, url="http://127.0.0.1/", lane="127.0.0.1", body=b"\x00\xff", error="ünï")
        assert backend.outbox.save_deliveries(ME, [waiting, given_up])
        assert backend.outbox.list_deliveries() == [given_up, waiting]
        assert backend.outbox.list_deliveries(after=1, limit=1) == [waiting]
        assert backend.outbox.count_deliveries() == (1, 1)

    def test_saving_again_replaces_and_done_removes(self, backend: Backend, clock: ManualClock) -> None:
        hold(backend)
        first, second = a_delivery(1, due_at=clock.now()), a_delivery(2, due_at=clock.now())
        backend.outbox.save_deliveries(ME, [first, second])
        later = msgspec.structs.replace(first, attempts=1, error="no answer")
        assert backend.outbox.save_deliveries(ME, [later], done=[2, 77])
        assert backend.outbox.list_deliveries() == [later]

    def test_the_offset_goes_with_it_or_not_at_all(self, backend: Backend, clock: ManualClock) -> None:
        put(backend, "a", "b")
        journal(backend)
        hold(backend)
        assert backend.outbox.save_deliveries(ME, [a_delivery(1)], seq=1)
        assert backend.journal.list_consumers()[0].seq == 1
        with refused(backend, InvalidArgumentError):
            backend.outbox.save_deliveries(ME, [a_delivery(2)], seq=3)
        assert backend.outbox.save_deliveries(ME, done=[1], seq=2)
        assert (backend.outbox.list_deliveries(), backend.journal.list_consumers()[0].seq) == ([], 2)

    def test_only_the_holder_may_say_what_became_of_them(self, backend: Backend, clock: ManualClock) -> None:
        with refused(backend, InvalidArgumentError):
            backend.outbox.save_deliveries(ME, [a_delivery(1)])
        backend.journal.register_consumer(CALLBACKS)
        with unchanged(backend):
            assert not backend.outbox.save_deliveries(ME, [a_delivery(1)])
        hold(backend)
        backend.outbox.save_deliveries(ME, [a_delivery(1)])
        clock.advance(10)
        hold(backend, "deliverer-2")
        with unchanged(backend):
            assert not backend.outbox.save_deliveries(ME, [a_delivery(3)], done=[1], seq=0)
        assert backend.outbox.save_deliveries("deliverer-2", done=[1])

    def test_due_ones_come_longest_due_first(self, backend: Backend, clock: ManualClock) -> None:
        hold(backend)
        moments = [clock.now() + timedelta(seconds=each) for each in (0, 3, 1, 2)]
        backend.outbox.save_deliveries(ME, [a_delivery(seq, due_at=at) for seq, at in enumerate(moments, 1)])
        assert [each.seq for each in backend.outbox.due_deliveries(per_lane=9)] == [1]
        clock.advance(2)
        assert [each.seq for each in backend.outbox.due_deliveries(per_lane=9)] == [1, 3, 4]
        assert [each.seq for each in backend.outbox.due_deliveries(2, per_lane=9)] == [1, 3]

    def test_no_lane_crowds_out_another(self, backend: Backend, clock: ManualClock) -> None:
        hold(backend)
        crowd = [a_delivery(seq, lane="dead", due_at=clock.now()) for seq in range(1, 50)]
        clock.advance(1)
        others = [a_delivery(50 + n, lane=f"lane-{n}", due_at=clock.now()) for n in range(3)]
        backend.outbox.save_deliveries(ME, [*crowd, *others])
        assert [each.seq for each in backend.outbox.due_deliveries(per_lane=2)] == [1, 2, 50, 51, 52]

    def test_what_was_given_up_is_not_due_until_it_is_tried_again(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        hold(backend)
        backend.outbox.save_deliveries(
            ME, [a_delivery(1, attempts=9, error="gone"), a_delivery(2, due_at=clock.now())]
        )
        assert [each.seq for each in backend.outbox.due_deliveries(per_lane=9)] == [2]
        clock.advance(1)
        assert backend.outbox.retry_deliveries() == 1
        again = backend.outbox.list_deliveries()[0]
        assert (again.due_at, again.attempts, again.error) == (clock.now(), 0, "gone")
        assert backend.outbox.retry_deliveries() == 0
        assert [each.seq for each in backend.outbox.due_deliveries(per_lane=9)] == [2, 1]

    def test_upkeep_forgets_what_was_given_up_long_ago(self, backend: Backend, clock: ManualClock) -> None:
        hold(backend)
        backend.outbox.save_deliveries(ME, [a_delivery(1), a_delivery(2, due_at=clock.now())])
        clock.advance(timedelta(days=30) - timedelta(seconds=1))
        backend.maintain()
        assert backend.outbox.count_deliveries() == (1, 1)
        clock.advance(1)
        backend.maintain()
        assert backend.outbox.count_deliveries() == (1, 0)

    def test_they_outlive_the_job_and_the_object(self, make_backend: MakeBackend, clock: ManualClock) -> None:
        if not make_backend.shares_store:
            pytest.skip("the store lives in its object")
        with make_backend(clock=clock) as backend:
            drive(backend, _S.COMPLETED, callback_url=URL)
            hold(backend)
            backend.outbox.save_deliveries(ME, [a_delivery(1, due_at=clock.now())])
            backend.delete_jobs(job_ids=["job"])
            known = snapshot(backend)
        with make_backend(clock=clock) as again:
            assert snapshot(again) == known

    @pytest.mark.parametrize(
        "arguments",
        [
            {"holder": ""},
            {"holder": ME, "deliveries": None},
            {"holder": ME, "deliveries": ["x"]},
            {"holder": ME, "deliveries": [a_delivery(-1)]},
            {"holder": ME, "deliveries": [a_delivery(1, url="")]},
            {"holder": ME, "deliveries": [a_delivery(1, url="nul\0")]},
            {"holder": ME, "deliveries": [a_delivery(1, body="text")]},
            {"holder": ME, "deliveries": [a_delivery(1, attempts=-1)]},
            {"holder": ME, "deliveries": [a_delivery(1, due_at=datetime(2030, 1, 1))]},
            {"holder": ME, "done": None},
            {"holder": ME, "done": ["1"]},
            {"holder": ME, "seq": -1},
        ],
    )
    def test_what_makes_no_sense_is_refused(self, backend: Backend, arguments: dict[str, Any]) -> None:
        hold(backend)
        with refused(backend, InvalidArgumentError):
            backend.outbox.save_deliveries(**arguments)


class Schedules(Suite):
    """tick_schedule: the jobs of a tick and the tick itself, together and once."""

    def test_a_tick_stores_its_jobs_and_is_remembered(self, backend: Backend, clock: ManualClock) -> None:
        start = clock.now()
        assert backend.outbox.tick_schedule("nightly", start, after=None)
        tick = clock.advance(60)
        assert backend.outbox.tick_schedule("nightly", tick, [a_job(id="a"), a_job(id="b")], after=start)
        assert ids(all_jobs(backend)) == ["a", "b"]
        (known,) = backend.outbox.list_schedules()
        assert (known.name, known.tick, known.updated_at) == ("nightly", tick, clock.now())

    def test_whoever_comes_second_stores_nothing(self, backend: Backend, clock: ManualClock) -> None:
        start = clock.now()
        assert backend.outbox.tick_schedule("nightly", start, after=None)
        tick = clock.advance(60)
        assert backend.outbox.tick_schedule("nightly", tick, [a_job(id="a")], after=start)
        with unchanged(backend):
            assert not backend.outbox.tick_schedule("nightly", tick, [a_job(id="b")], after=start)
            assert not backend.outbox.tick_schedule("nightly", tick, [a_job(id="b")], after=None)
            assert not backend.outbox.tick_schedule("weekly", tick, [a_job(id="b")], after=start)

    def test_of_many_at_once_one_stores_its_job(self, backend: Backend, clock: ManualClock) -> None:
        start = clock.now()
        for after, tick in ((None, start), (start, start + timedelta(seconds=1))):
            ready, stored = threading.Barrier(8), []

            def go(number: int, after: datetime | None = after, tick: datetime = tick) -> None:
                ready.wait()  # noqa: B023  # joined below
                job = a_job(id=f"{tick}-{number}")
                if backend.outbox.tick_schedule("nightly", tick, [job], after=after):
                    stored.append(job.id)  # noqa: B023

            threads = [threading.Thread(target=go, args=(number,)) for number in range(8)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            assert len(stored) == 1
        assert len(all_jobs(backend)) == 2

    def test_what_refuses_the_jobs_leaves_the_schedule_where_it_is(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        start = clock.now()
        backend.outbox.tick_schedule("nightly", start, after=None)
        put(backend, "taken")
        tick = clock.advance(60)
        with refused(backend, JobExistsError):
            backend.outbox.tick_schedule("nightly", tick, [a_job(id="new"), a_job(id="taken")], after=start)
        backend.set_blocked(True)
        with refused(backend, QueueBlockedError):
            backend.outbox.tick_schedule("nightly", tick, [a_job(id="new")], after=start)
        assert backend.outbox.tick_schedule("other", tick, after=None)
        backend.set_blocked(False)
        assert backend.outbox.tick_schedule("nightly", tick, [a_job(id="new")], after=start)

    def test_a_full_queue_refuses_too(self, make_backend: MakeBackend, clock: ManualClock) -> None:
        with make_backend(clock=clock, max_pending=1) as backend:
            put(backend, "waits")
            with refused(backend, QueueFullError):
                backend.outbox.tick_schedule("nightly", clock.now(), [a_job(id="new")], after=None)

    def test_a_forgotten_schedule_begins_anew(self, backend: Backend, clock: ManualClock) -> None:
        backend.outbox.tick_schedule("nightly", clock.now(), after=None)
        assert backend.outbox.forget_schedule("nightly") is True
        assert backend.outbox.forget_schedule("nightly") is False
        assert backend.outbox.list_schedules() == []
        assert backend.outbox.tick_schedule("nightly", clock.now(), after=None)

    def test_its_jobs_are_like_any_others(self, backend: Backend, clock: ManualClock) -> None:
        tick = clock.now() - timedelta(seconds=3)
        backend.outbox.tick_schedule(
            "nightly", tick, [a_job(id="a", key="k", run_at=tick, tags=["red"])], after=None
        )
        assert claim(backend, "a").run_at == tick
        assert backend.get_job_stats(["red"]).running_jobs == 1

    @pytest.mark.parametrize(
        "arguments",
        [
            {"name": ""},
            {"name": None},
            {"tick": None},
            {"tick": datetime(2030, 1, 1)},
            {"after": datetime(2030, 1, 1)},
            {"jobs": "x"},
            {"jobs": [None]},
            {"jobs": [a_job(id="")]},
        ],
        ids=repr,
    )
    def test_what_makes_no_sense_is_refused(
        self, backend: Backend, clock: ManualClock, arguments: dict[str, Any]
    ) -> None:
        given = {"name": "nightly", "tick": clock.now(), "after": None, **arguments}
        with refused(backend, InvalidArgumentError):
            backend.outbox.tick_schedule(**given)
