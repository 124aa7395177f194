"""Each planted fault is the journal of one source, so that all of them are found in one run."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.journals import START, Journal, entries_of, frame_of_all
from tests.machine_journals import random_store

from penstock import Key
from penstock.job import JobStatus, JournalArchive, JournalEntry
from penstock.spark.auditing import INVARIANTS
from penstock.spark.auditing._run import Subject, check_events
from penstock.testing import check_invariants

HOUR = timedelta(hours=1)
PLANTED: dict[str, tuple[int, Callable[[Journal], None]]] = {}


def planted(invariant: int) -> Callable[[Callable[[Journal], None]], None]:
    def keep(plant: Callable[[Journal], None]) -> None:
        PLANTED[plant.__name__] = (invariant, plant)

    return keep


@planted(1)
def begins_in_the_middle(journal):
    journal.healthy("other")
    journal("a", "claim", n=2, from_status=JobStatus.INITIAL_PENDING)
    journal("a", "complete", "completed")


@planted(1)
def enqueued_twice(journal):
    journal("a", "enqueue")
    journal("a", "enqueue", n=1, from_status=None)


@planted(2)
def a_row_of_a_job_is_missing(journal):
    journal("a", "enqueue")
    journal("a", "claim")
    journal("a", "complete", "completed", n=4)


@planted(2)
def a_number_is_missing(journal):
    journal.healthy("a")
    journal("b", "enqueue")
    del journal.entries[3]
    journal("c", "enqueue", seq=6)


@planted(3)
def starts_from_another_status(journal):
    journal("a", "enqueue")
    journal("a", "claim")
    journal("a", "complete", "completed", from_status=JobStatus.CANCELLING)


@planted(3)
def an_illegal_move(journal):
    journal("a", "enqueue")
    journal("a", "complete", "completed")


@planted(4)
def moves_after_its_end(journal):
    journal.healthy("a")
    journal("a", "claim")


@planted(4)
def a_dead_job_is_completed_without_a_loss(journal):
    journal("a", "enqueue", max_attempts=1)
    journal("a", "claim")
    journal("a", "fail", "dead_letter", failures=1, retry_count=1)
    journal("a", "complete", "completed")


@planted(5)
def the_fence_jumps(journal):
    journal("a", "enqueue")
    journal("a", "claim", attempt=3)


@planted(5)
def the_fence_falls(journal):
    journal("a", "enqueue")
    journal("a", "claim")
    journal("a", "release", "failed_retry", attempt=0)


@planted(6)
def two_holders(journal):
    journal("a", "enqueue")
    journal("a", "claim")
    journal("a", "claim", assignee_id="worker-2")


@planted(7)
def a_report_of_somebody_else(journal):
    journal("a", "enqueue")
    journal("a", "claim")
    journal("a", "complete", "completed", assignee_id="worker-2")


@planted(7)
def a_counter_goes_back(journal):
    journal("a", "enqueue")
    journal("a", "claim")
    journal("a", "fail", "failed_retry", failures=1, retry_count=1)
    journal("a", "claim", failures=0)


@planted(8)
def succeeds_twice(journal):
    journal.healthy("a")
    journal("a", "update_status", "unknown_stopped")
    journal("a", "complete", "completed")


@planted(9)
def left_running(journal):
    journal("a", "enqueue")
    journal("a", "claim")


@planted(11)
def too_many_failures(journal):
    journal("a", "enqueue", max_attempts=2)
    for number in range(1, 4):
        journal("a", "claim")
        journal("a", "fail", "failed_retry", failures=number, retry_count=number)


@planted(12)
def claimed_too_early(journal):
    journal("a", "enqueue", due_at=START + HOUR)
    journal("a", "claim")


@planted(12)
def started_before_it_was_ready(journal):
    journal("a", "enqueue")
    journal("a", "claim")
    journal("a", "complete", "completed", ready_at=START + HOUR, started_at=START)


@planted(25)
def ended_before_it_started(journal):
    journal("a", "enqueue")
    journal("a", "claim")
    journal("a", "complete", "completed", ready_at=START, started_at=START + HOUR)


@planted(13)
def an_idempotency_key_twice(journal):
    journal("a", "enqueue", idempotency_key="once")
    journal("b", "enqueue", idempotency_key="once")


@planted(13)
def an_idempotency_key_twice_though_the_first_has_ended(journal):
    journal.healthy("a", idempotency_key="once")
    journal("b", "enqueue", idempotency_key="once")


@planted(13)
def a_unique_key_twice_while_the_first_is_unfinished(journal):
    journal("a", "enqueue_unique", idempotency_key="once")
    journal.now += 48 * HOUR
    journal("b", "enqueue_unique", idempotency_key="once")


@planted(13)
def a_unique_key_twice_after_its_job_came_back(journal):
    journal("a", "enqueue_unique", idempotency_key="once")
    journal("a", "claim")
    journal("a", "mark_unknown_stopped", "unknown_stopped")
    journal("a", "update_status", "unknown_retry")
    journal("b", "enqueue_unique", idempotency_key="once")


@planted(14)
def two_of_a_key_in_flight(journal):
    journal("a", "enqueue", key=Key("k"))
    journal("b", "enqueue", key=Key("k"))
    journal("a", "claim")
    journal("b", "claim")


@planted(14)
def claimed_out_of_turn(journal):
    journal("a", "enqueue", key=Key("k"))
    journal("b", "enqueue", key=Key("k"))
    journal("b", "claim")
    journal("b", "complete", "completed")


@planted(14)
def claimed_before_one_that_came_back(journal):
    journal("a", "enqueue", key=Key("k"))
    journal("b", "enqueue", key=Key("k"))
    journal("a", "claim")
    journal("a", "mark_unknown_stopped", "unknown_stopped")
    journal("a", "update_status", "failed_retry")
    journal("b", "claim")


@planted(25)
def time_goes_back(journal):
    journal.healthy("a")
    journal.now -= HOUR
    journal.healthy("b")


def healthy() -> list[JournalEntry]:
    journal = Journal()
    for number in range(5):
        journal.healthy(f"job-{number}", key=Key("k"), idempotency_key=f"key-{number}")
    journal("job-0", "delete")
    journal.forget("job-0")
    journal.healthy("job-0", idempotency_key="key-0")
    for number in range(3):  # each once the one before has ended, by the rule of either
        verb = "enqueue" if number == 1 else "enqueue_unique"
        journal(f"unique-{number}", verb, idempotency_key="unique")
        journal(f"unique-{number}", "claim")
        journal(f"unique-{number}", "complete", "completed")
    journal("late", "enqueue", max_attempts=1)
    journal("late", "claim")
    journal("late", "lose", "dead_letter", failures=1)
    journal("late", "complete", "completed")
    return journal.entries


def journals() -> dict[str, list[JournalEntry]]:
    made: dict[str, list[JournalEntry]] = {"healthy": healthy()}
    for name, (_, plant) in PLANTED.items():
        journal = Journal()
        plant(journal)
        made[name] = journal.entries
    return made | {f"random-{seed}": entries_of(random_store(seed, 500)) for seed in range(6)}


@pytest.fixture(scope="module")
def written():
    return journals()


@pytest.fixture(scope="module")
def found(spark, written):
    subject = Subject(frame_of_all(spark, written), None, {}, None)
    audit = check_events(subject, timedelta(days=1), timedelta(seconds=1), START + HOUR)
    assert audit.events == sum(map(len, written.values()))
    results = {name: [] for name in written}
    for row in audit.violations.collect():
        # The others are audited without drained_at.
        if row.invariant != 9 or row.source == "left_running":
            results[row.source].append(row)
    return results


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found_with_the_rows_that_show_it(found, name):
    invariant = PLANTED[name][0]
    numbers = {row.invariant for row in found[name]}
    assert invariant in numbers, found[name]
    (row, *_) = [row for row in found[name] if row.invariant == invariant]
    assert f"seq {row.seq}" in row.detail
    assert invariant in INVARIANTS


@pytest.mark.parametrize("name", PLANTED)
def test_it_says_what_the_checker_of_the_tests_says(found, written, name):
    drained = START + HOUR if name == "left_running" else None
    theirs = {violation.invariant for violation in check_invariants(written[name], drained_at=drained)}
    ours = {row.invariant for row in found[name]}
    # A second holder shows as an illegal move as well, or not: what is wrong is found by both.
    assert PLANTED[name][0] in ours & theirs


@pytest.mark.parametrize("name", ["healthy", *(f"random-{seed}" for seed in range(6))])
def test_healthy_journals_are_silent(found, written, name):
    assert check_invariants(written[name]) == []
    assert found[name] == []


def test_at_least_ten_kinds_of_violations_are_planted():
    assert len({invariant for invariant, _ in PLANTED.values()}) >= 10


def test_what_was_archived_is_no_hole_unless_more_is_missing(spark):
    journal = Journal()
    for number in range(3):
        journal.healthy(f"job-{number}")
    kept = [row for row in journal.entries if row.job_id != "job-0"]
    archive = JournalArchive(histories=1, rows=3, upto=3)
    less = JournalArchive(histories=1, rows=2, upto=2)
    frame = frame_of_all(spark, {"enough": kept, "too-few": kept})
    subject = Subject(frame, None, {"enough": archive, "too-few": less}, None)
    rows = check_events(subject, timedelta(days=1), timedelta(seconds=1), None).violations.collect()
    assert [(row.source, row.invariant) for row in rows] == [("too-few", 2)]
