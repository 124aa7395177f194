"""Claims, completions and plain submissions are single statements; they write what the pure decisions would."""

import copy
from datetime import timedelta

import pytest
from msgspec.structs import asdict
from tests.stores import STORES

from penstock.backends import Failure
from penstock.backends.engine import decisions, writes
from penstock.backends.engine.rows import COLUMNS, JOURNAL_COLUMNS, journal_entry, row_of
from penstock.clock import to_micros
from penstock.job import Job, JobStatus, Key
from penstock.lifecycle import Verb
from penstock.policy import RetryPolicy, Timeouts
from penstock.testing import ManualClock

#: The model has no rows.
SQL_STORES = [each for each in STORES if "model" not in getattr(each, "values", ())]
#: From so many jobs on PostgreSQL stores them by COPY.
MANY = 25

EVERY_FIELD = {
    "tags": ("red", "blue"),
    "priority": 1,
    "retry": RetryPolicy(max_attempts=7, jitter=0),
    "timeouts": Timeouts(
        execution=timedelta(seconds=20), visibility=timedelta(seconds=30), lifetime=timedelta(hours=1)
    ),
    "payload": b"payload",
}


@pytest.fixture(params=SQL_STORES)
def stores(request, new_store):
    return new_store(request.param)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def backend(stores, clock):
    return stores(clock=clock)


def stored(backend, *ids):
    """Return the rows of jobs as the store has them."""
    rows = backend._access.store.write(lambda tx: tx.rows(ids))
    return [rows[job_id] for job_id in ids]


def last_entry(backend, job_id):
    """Return the journal's last row about a job."""
    return backend.journal.history(job_id)[-1]


def entry_of(seq, row, before=None):
    """Return the journal row that a step from one row of a job to the next has to leave; without `before` the first one."""
    has_ended = before is not None and before.is_in_flight and not row.is_in_flight
    first, ends = before is None, {"ready_at": None, "started_at": None}
    if has_ended:
        # ready_at of the row may have changed since the attempt began; these tests do not let it.
        ends = {"ready_at": before.ready_at, "started_at": before.attempt_started_at}
    values = {
        **asdict(row),
        "seq": seq,
        "recorded_at": row.updated_at,
        "job_id": row.id,
        "from_status": None if first else before.status,
        "after": row.after if first else None,
        "after_any": row.after_any if first else None,
        "parent_id": row.parent_id if first else None,
        **ends,
    }
    return journal_entry(tuple(values[name] for name in JOURNAL_COLUMNS))


def differences(expected, found):
    """Return the columns of two rows that differ, each with both values."""
    return {
        name: (getattr(expected, name), getattr(found, name))
        for name in COLUMNS
        if getattr(expected, name) != getattr(found, name)
    }


# -- enqueue ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, EVERY_FIELD], ids=["nothing given", "everything given"])
@pytest.mark.parametrize("count", [1, 3, MANY])
def test_a_plain_job_is_stored_as_the_row_of_the_general_path(backend, clock, count, fields):
    jobs = [Job(id=f"job-{n}", type="t", **fields) for n in range(count)]
    assert all(job.is_plain for job in jobs)
    if count == 1:
        backend.enqueue_job(jobs[0])
    else:
        backend.enqueue_jobs(jobs)
    now = to_micros(clock.now())
    for job, found in zip(jobs, stored(backend, *(job.id for job in jobs)), strict=True):
        expected = row_of(job, now)
        expected.seq = found.seq
        expected.settle_gate(now)
        assert differences(expected, found) == {}
        entry = last_entry(backend, job.id)
        assert entry == entry_of(entry.seq, found)


# -- claim ------------------------------------------------------------------------------------------------------------


def is_fresh(backend, clock, fields):
    backend.enqueue_job(Job(id="it", type="t", **fields))


def has_failed_once(backend, clock, fields):
    is_fresh(backend, clock, fields)
    backend.dequeue_jobs("before")
    backend.save_progress("it", 40, "half done", attempt=1)
    clock.advance(1)
    backend.fail_jobs({"it": Failure(message="once", code="x", retry_after=timedelta(0))})


def was_delayed(backend, clock, fields):
    backend.enqueue_job(Job(id="it", type="t", run_at=clock.now() + timedelta(seconds=5), **fields))


def has_a_key(backend, clock, fields):
    backend.enqueue_job(Job(id="it", type="t", key=Key("k"), description="given", **fields))


@pytest.mark.parametrize("fields", [{}, EVERY_FIELD], ids=["nothing given", "everything given"])
@pytest.mark.parametrize("has_owner", [False, True])
@pytest.mark.parametrize("past", [is_fresh, has_failed_once, was_delayed, has_a_key])
def test_a_claim_writes_what_start_decides(backend, clock, past, has_owner, fields):
    owner = backend.owners.open() if has_owner else None
    past(backend, clock, fields)
    clock.advance(10)
    (before,) = stored(backend, "it")
    (job,) = backend.dequeue_jobs("worker", owner=owner)
    expected = copy.copy(before)
    decisions.start(expected, "worker", owner, Verb.CLAIM, to_micros(clock.now()))
    (found,) = stored(backend, "it")
    assert differences(expected, found) == {}
    assert job == backend.get_job("it")
    entry = last_entry(backend, "it")
    assert entry == entry_of(entry.seq, found, before)


# -- complete ---------------------------------------------------------------------------------------------------------


def was_claimed(backend, clock, claims):
    claims()


def was_claimed_by_an_owner(backend, clock, claims):
    claims(owner=backend.owners.open())


def is_in_its_second_attempt(backend, clock, claims):
    claims()
    backend.release_jobs({"it": "back"})
    clock.advance(1)
    claims()


def is_being_cancelled(backend, clock, claims):
    claims()
    backend.cancel_jobs(job_ids=["it"])


def was_corrected_to_cancelling(backend, clock, claims):
    claims()
    backend.mark_job_unknown_stopped("it", "lost sight of it")
    backend.update_job_status("it", JobStatus.CANCELLING)


@pytest.mark.parametrize("fields", [{}, EVERY_FIELD], ids=["nothing given", "everything given"])
@pytest.mark.parametrize("neighbours", [0, 2])
@pytest.mark.parametrize("by", ["this process", "another process"])
@pytest.mark.parametrize(
    "past",
    [
        was_claimed,
        was_claimed_by_an_owner,
        is_in_its_second_attempt,
        is_being_cancelled,
        was_corrected_to_cancelling,
    ],
)
def test_a_simple_completion_writes_what_complete_decides(
    stores, backend, clock, past, by, neighbours, fields
):
    if by == "another process" and not stores.shares_store:
        pytest.skip("one process alone sees this store")
    claimer = backend if by == "this process" else stores(clock=clock)
    backend.enqueue_jobs([Job(id=f"neighbour-{n}", type="u") for n in range(neighbours)])
    backend.dequeue_jobs("neighbour", types=["u"], limit=9)
    backend.enqueue_job(Job(id="it", type="t", **fields))
    clock.advance(3)
    past(backend, clock, lambda **owner: claimer.dequeue_jobs("worker", types=["t"], **owner))
    clock.advance(5)
    (before,) = stored(backend, "it")
    fences = {"it": before.attempt, **{f"neighbour-{n}": 1 for n in range(neighbours)}}
    done = backend._access.store.write(lambda tx: tx.complete_simple(fences))
    assert {job_id for job_id, _, _ in done} == set(fences)
    expected = copy.copy(before)
    decisions.complete(expected, None, to_micros(clock.now()))
    (found,) = stored(backend, "it")
    assert differences(expected, found) == {}
    entry = last_entry(backend, "it")
    assert entry == entry_of(entry.seq, found, before)


# -- the source itself ------------------------------------------------------------------------------------------------


def test_a_step_saves_every_column_that_a_decision_may_change():
    # What is left out is fixed when the job is stored, or has a statement of its own.
    fixed = {
        "seq", "id", "type", "key", "fan", "held", "depth", "max_attempts", "retry", "execution", "visibility",
        "lifetime", "expires_at", "run_at", "created_at", "description", "idempotency_key", "uniqueness",
        "parent_id", "redrive_of", "trace", "after", "after_any",
    }  # fmt: skip
    assert set(writes.SAVED) == set(COLUMNS) - fixed
    assert len(set(writes.SAVED)) == len(writes.SAVED)


def test_a_claim_and_a_completion_change_nothing_that_a_step_does_not_save():
    assert set(writes.CLAIM) | set(writes.COMPLETE) <= set(writes.SAVE)


def test_the_journal_is_read_with_every_column_that_is_written():
    written = {**writes.FIRST_ENTRY, **writes.STEP_ENTRY, **writes.ATTEMPT_END}
    assert {"seq", *written} - {"job_seq"} == set(JOURNAL_COLUMNS)


def test_every_column_of_a_first_row_repeats_one_of_the_job():
    assert set(writes.FIRST_ENTRY.values()) | set(writes.STEP_ENTRY.values()) <= set(COLUMNS)


@pytest.mark.parametrize(
    ("text", "value"),
    [("'[]'", "[]"), ("0", 0), ("{now}", 5), ("{now} + {lifetime}", 12), ("{now} + {none}", None)],
)
def test_an_expression_has_a_value(text, value):
    assert writes.value_of(text, {"now": 5, "lifetime": 7, "none": None}) == value


def test_an_expression_that_python_cannot_follow_is_refused():
    with pytest.raises(ValueError, match="neither a constant nor a sum"):
        writes.value_of("COALESCE({now}, 1)", {"now": 1})
