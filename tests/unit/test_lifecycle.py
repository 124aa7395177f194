"""Properties of the table of moves."""

import pytest

from penstock.job import CANCELLED, ELIGIBLE, FINAL, IN_FLIGHT, JobStatus
from penstock.lifecycle import (
    ENQUEUES,
    LATE_MOVES,
    LOST_BY_SILENCE,
    MOVES,
    Verb,
    allows,
    allows_late,
    refusal,
    sources,
    targets,
)

KEEPING = {Verb.UPDATE, Verb.DELETE, Verb.CLEANUP}


def test_finals_have_no_exits_but_unknown_stopped_and_restart():
    """G3, Q7: a finished job stays finished; UNKNOWN_STOPPED, whose truth is unknown, may be corrected."""
    exits = {(move.verb, move.source) for move in MOVES if move.source in FINAL}
    assert {pair for pair in exits if pair[1] is not JobStatus.UNKNOWN_STOPPED} == {
        (Verb.RESTART, JobStatus.STOPPED)
    }
    assert {verb for verb, source in exits if source is JobStatus.UNKNOWN_STOPPED} == {
        Verb.COMPLETE,
        Verb.UPDATE_STATUS,
    }


def test_a_late_move_is_legal_only_after_a_loss():
    """Q40: the last attempt of a job that was given up may still have a result."""
    assert {(move.verb, move.source, move.target) for move in LATE_MOVES} == {
        (Verb.COMPLETE, JobStatus.DEAD_LETTER, JobStatus.COMPLETED)
    }
    for verb in Verb:
        is_loss = JobStatus.DEAD_LETTER in targets(verb, JobStatus.RUNNING) and verb in LOST_BY_SILENCE
        assert allows_late(Verb.COMPLETE, JobStatus.DEAD_LETTER, verb) == is_loss
        assert allows_late(verb, JobStatus.DEAD_LETTER, Verb.LOSE) == (verb is Verb.COMPLETE)
    assert not allows_late(Verb.COMPLETE, JobStatus.DEAD_LETTER, Verb.LOSE, JobStatus.STOPPED)
    assert not allows(Verb.COMPLETE, JobStatus.DEAD_LETTER)


def test_nothing_returns_to_the_beginning():
    begins = [move for move in MOVES if move.target is JobStatus.INITIAL_PENDING]
    assert [(move.verb, move.source) for move in begins] == [(verb, None) for verb in ENQUEUES]


def test_only_claim_and_restart_start_an_attempt():
    assert {move.verb for move in MOVES if move.target is JobStatus.RUNNING} == {Verb.CLAIM, Verb.RESTART}
    assert set(sources(Verb.CLAIM)) == ELIGIBLE


def test_every_status_but_the_first_can_be_reached_and_every_open_one_can_be_left():
    reached = {move.target for move in MOVES}
    left = {move.source for move in MOVES}
    assert reached == set(JobStatus)
    assert left >= ELIGIBLE | IN_FLIGHT


def test_every_open_status_can_end_by_its_lifetime():
    """G16: past its lifetime an unfinished job becomes DEAD_LETTER, whatever its state."""
    assert set(sources(Verb.EXPIRE)) == set(JobStatus) - FINAL
    assert {end for status in sources(Verb.EXPIRE) for end in targets(Verb.EXPIRE, status)} == {
        JobStatus.DEAD_LETTER
    }


def test_cancelling_covers_every_open_status_but_cancelling_itself():
    assert set(sources(Verb.CANCEL)) == ELIGIBLE | {JobStatus.RUNNING}
    ends = {end for status in ELIGIBLE for end in targets(Verb.CANCEL, status)}
    assert ends < CANCELLED


def test_a_status_update_never_leads_to_what_has_a_verb_of_its_own():
    ends = {move.target for move in MOVES if move.verb is Verb.UPDATE_STATUS}
    assert ends.isdisjoint(
        {JobStatus.RUNNING, JobStatus.FAILED, JobStatus.DEAD_LETTER, JobStatus.INITIAL_PENDING}
    )


def test_no_move_stands_twice_and_none_stays_where_it_is():
    keys = [(move.verb, move.source, move.target) for move in MOVES]
    assert len(set(keys)) == len(keys)
    assert [move for move in MOVES if move.source is move.target] == []


def test_every_verb_that_moves_is_in_the_table_with_an_effect():
    assert {move.verb for move in MOVES} == set(Verb) - KEEPING
    assert all(move.effect for move in MOVES)


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("status", JobStatus)
def test_the_questions_agree_with_the_table(verb, status):
    ends = tuple(move.target for move in MOVES if move.verb is verb and move.source is status)
    assert targets(verb, status) == ends
    assert allows(verb, status) == bool(ends)
    assert (status in sources(verb)) == bool(ends)
    for target in JobStatus:
        assert allows(verb, status, target) == (target in ends)


def test_a_refusal_names_the_job_its_status_and_what_would_be_legal():
    error = refusal(Verb.RESTART, "cat", JobStatus.RUNNING)
    assert (error.job_id, error.status, error.verb) == ("cat", "running", "restart")
    assert str(error) == "restart of job 'cat' is not possible: it is running, allowed from stopped"
    error = refusal(Verb.UPDATE_STATUS, "cat", JobStatus.FAILED_RETRY, JobStatus.COMPLETED)
    assert str(error) == "job 'cat' cannot go from failed_retry to completed; legal targets: stopped"
    assert "legal targets: none" in str(
        refusal(Verb.UPDATE_STATUS, "cat", JobStatus.COMPLETED, JobStatus.STOPPED)
    )
