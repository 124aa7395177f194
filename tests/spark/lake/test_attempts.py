"""Every scenario is a source of one journal, so that Spark is asked once for all of them."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.journals import START, Journal, entries_of, frame_of_all, memory_store

from penstock import FailureCategory, Job, RetryPolicy, Timeouts
from penstock.job import JobStatus, JournalEntry
from penstock.spark.transforms import attempts

COLUMNS = [
    "source",
    "job_id",
    "history",
    "attempt",
    "type",
    "key",
    "tags",
    "assignee_id",
    "ready_at",
    "started_at",
    "ended_at",
    "wait_seconds",
    "run_seconds",
    "outcome",
    "error_category",
    "error_code",
    "error_message",
    "released",
]

SCENARIOS: dict[str, Callable[[], list[JournalEntry]]] = {}


def scenario(make: Callable[[], list[JournalEntry]]) -> Callable[[], list[JournalEntry]]:
    SCENARIOS[make.__name__] = make
    return make


@scenario
def failed_and_retried():
    backend, clock = memory_store()
    policy = RetryPolicy(max_attempts=3, initial_delay=10)
    backend.enqueue_job(Job(id="a", type="resize", tags=("red", "big"), key=("cat",), retry=policy))
    clock.advance(2)
    backend.dequeue_jobs("worker-1")
    clock.advance(5)
    backend.fail_job("a", "no disk", attempt=1, category=FailureCategory.TEMPORARY, code="disk")
    clock.advance(30)
    backend.dequeue_jobs("worker-2")
    clock.advance(7)
    backend.complete_job("a", attempt=2)
    return entries_of(backend)


@scenario
def backwards():
    return failed_and_retried()[::-1]


@scenario
def still_running():
    backend, _ = memory_store()
    backend.enqueue_job(Job(id="a", type="t"))
    backend.dequeue_jobs("w")
    return entries_of(backend)


def given_up(report, retry=None):
    backend, clock = memory_store()
    visible = Timeouts(visibility=5)
    backend.enqueue_job(Job(id="a", type="t", retry=retry, timeouts=visible))
    backend.enqueue_job(Job(id="b", type="t", timeouts=visible))
    backend.dequeue_jobs("w", limit=2)
    clock.advance(5)
    assert backend.maintain().lost == 2
    clock.advance(4)
    report(backend)
    return entries_of(backend)


@scenario
def late_completion():
    return given_up(lambda backend: backend.complete_job("a", attempt=1))


@scenario
def late_completion_of_a_dead_job():
    return given_up(lambda backend: backend.complete_job("a", attempt=1), retry=RetryPolicy(max_attempts=1))


@scenario
def late_failure():
    return given_up(
        lambda backend: backend.fail_job("a", "bad", attempt=1, category=FailureCategory.PERMANENT)
    )


@scenario
def late_stop():
    return given_up(lambda backend: backend.stop_job("a", "enough", attempt=1))


@scenario
def correction():
    return given_up(
        lambda backend: backend.update_job_status("a", JobStatus.UNKNOWN_STOPPED, error_message="who knows")
    )


@scenario
def cancelled_while_lost():
    return given_up(lambda backend: backend.cancel_jobs(job_ids=["a"]))


@scenario
def corrected_to_cancelling():
    def report(backend):
        backend.update_job_status("a", JobStatus.CANCELLING)
        backend.acknowledge_cancellation("a", True)

    return given_up(report)


@scenario
def used_again():
    journal = Journal()
    for _ in range(3):
        journal.healthy("a")
        journal("a", "delete")
        journal.forget("a")
    journal.healthy("b")
    return journal.entries


@pytest.fixture(scope="module")
def found(spark) -> dict[str, list[Any]]:
    table = attempts(frame_of_all(spark, {name: make() for name, make in SCENARIOS.items()}))
    assert table.columns == COLUMNS
    rows: dict[str, list[Any]] = {name: [] for name in SCENARIOS}
    for row in table.orderBy("job_id", "history", "attempt").collect():
        rows[row.source].append(row)
    return rows


def test_an_attempt_has_its_figures(found):
    first, second = found["failed_and_retried"]
    assert (first.job_id, first.history, first.attempt) == ("a", 1, 1)
    kind = (first.type, first.key, first.tags, first.assignee_id)
    assert kind == ("resize", ["cat"], ["red", "big"], "worker-1")
    assert (first.wait_seconds, first.run_seconds, first.outcome) == (2.0, 5.0, "failed_retry")
    assert (first.error_category, first.error_code, first.error_message) == ("temporary", "disk", "no disk")
    # It could have been taken again ten seconds after it had failed, and was taken after thirty.
    assert (second.wait_seconds, second.run_seconds, second.outcome) == (20.0, 7.0, "completed")
    assert second.ready_at == (START + timedelta(seconds=17)).replace(tzinfo=None)
    # The journal repeats on every row how a job failed last; this attempt did not fail.
    assert (second.error_category, second.error_code, second.error_message) == (None, None, None)


def test_rows_may_come_in_any_order_and_sources_do_not_mix(found):
    assert [row[1:] for row in found["backwards"]] == [row[1:] for row in found["failed_and_retried"]]


def test_an_attempt_that_still_runs_is_not_there(found):
    assert found["still_running"] == []


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("late_completion", "completed"),
        ("late_completion_of_a_dead_job", "completed"),
        ("late_failure", "failed"),
        ("late_stop", "stopped"),
        ("correction", "unknown_stopped"),
        ("corrected_to_cancelling", "stopped"),
    ],
)
def test_a_late_report_amends_the_attempt_that_was_given_up(found, name, outcome):
    assert [(row.job_id, row.attempt, row.outcome, row.run_seconds) for row in found[name]] == [
        ("a", 1, outcome, 9.0),
        ("b", 1, "unknown_retry", 5.0),
    ]


def test_what_happens_to_a_lost_job_while_it_waits_is_no_report(found):
    assert [row.outcome for row in found["cancelled_while_lost"]] == ["unknown_retry", "unknown_retry"]


def test_an_id_used_again_has_a_history_for_each_use(found):
    assert [(row.job_id, row.history, row.attempt) for row in found["used_again"]] == [
        ("a", 1, 1),
        ("a", 2, 1),
        ("a", 3, 1),
        ("b", 1, 1),
    ]
