"""A claim of which nobody can say whether it was committed: its jobs come back, those known to be held stay (Q28, Q31)."""

import pytest
from tests.waiting import until

from penstock import BackendError, Job, JobStatus, Queue, cancel_scope

SOON = 20.0


def take(stream):
    with cancel_scope(timeout=SOON):
        return next(stream)


def unknown() -> BackendError:
    return BackendError("planted", retryable=True, outcome_unknown=True)


@pytest.fixture
def losing(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    """A switch: the next claim of the dispatcher that finds something is committed, and its answer lost."""
    claim = queue.backend.dequeue_jobs_for
    switch = {"on": False, "lost": []}

    def losing_claim(requests):
        found = claim(requests)
        if switch["on"] and any(found):
            switch["on"] = False
            switch["lost"] += [job.id for jobs in found for job in jobs]
            raise unknown()
        return found

    monkeypatch.setattr(queue.backend, "dequeue_jobs_for", losing_claim)
    monkeypatch.setattr(queue._dispatcher, "wants", lambda *_: False)
    monkeypatch.setattr(queue._dispatcher, "requested", lambda *_: ())  # the dispatcher itself claims
    return switch


def resting(queue: Queue) -> None:
    """Wait until the dispatcher has nothing to look for."""
    dispatcher = queue._dispatcher
    with dispatcher.lock:
        while dispatcher._held.is_claiming or dispatcher._dirty:
            assert dispatcher._rest.wait(SOON)


def upkeep(queue: Queue) -> None:
    """What the threads do in a few seconds."""
    queue._dispatcher.owner.beat()
    queue.backend.maintain()


def test_what_was_claimed_without_an_answer_comes_back(queue: Queue, losing) -> None:
    losing["on"] = True
    stream = queue.stream_jobs("worker", max_assigned_jobs=2)
    queue.enqueue_job(Job(id="lost", type="t"))
    until(lambda: losing["lost"])
    until(lambda: not queue._dispatcher.owner.is_uncertain)
    upkeep(queue)
    (job,) = take(stream)
    assert (job.id, job.attempt) == ("lost", 2)
    queue.complete_job(job.id, attempt=job.attempt)
    assert queue.get_job("lost").status is JobStatus.COMPLETED


def test_what_is_known_to_be_held_stays_until_it_ends(queue: Queue, losing) -> None:
    stream = queue.stream_jobs("worker", max_assigned_jobs=3)
    queue.enqueue_job(Job(id="held", type="t"))
    (held,) = take(stream)
    losing["on"] = True
    queue.enqueue_job(Job(id="lost", type="t"))
    until(lambda: losing["lost"])
    until(lambda: not queue._dispatcher.owner.is_uncertain)
    upkeep(queue)
    assert queue.get_job("held").status is JobStatus.RUNNING
    assert queue.get_job("lost").status is JobStatus.RUNNING  # nobody can tell them apart yet
    queue.complete_job("held", attempt=held.attempt)
    upkeep(queue)
    assert [(job.id, job.attempt) for job in take(stream)] == [("lost", 2)]


def test_nothing_is_taken_from_those_who_claim_by_hand(queue: Queue, losing) -> None:
    stream = queue.stream_jobs("worker")
    queue.enqueue_job(Job(id="by hand", type="other", held=True))
    assert [job.id for job in queue.claim_jobs("hand", job_ids=["by hand"])] == ["by hand"]
    losing["on"] = True
    queue.enqueue_job(Job(id="lost", type="t"))
    until(lambda: losing["lost"])
    upkeep(queue)
    assert queue.get_job("by hand").status is JobStatus.RUNNING
    stream.close()


def test_a_hand_out_of_unknown_outcome_is_doubted_too(queue: Queue, url: str) -> None:
    if not url.startswith("postgres"):
        pytest.skip("there a commit always answers")
    store = queue.backend._store  # type: ignore[attr-defined]
    stream = queue.stream_jobs("worker")
    with pytest.MonkeyPatch.context() as patch:
        commit = store._commit_surely

        def lost(connection, tx, before_emit=None):
            if before_emit is None:
                commit(connection, tx)
                return
            commit(connection, tx)
            raise unknown()

        patch.setattr(store, "_commit_surely", lost)
        for number in range(50):
            resting(queue)
            try:
                queue.enqueue_job(Job(id=f"job-{number}", type="t"))
            except BackendError:
                break
            (job,) = take(stream)
            queue.complete_job(job.id, attempt=job.attempt)
        else:
            pytest.fail("no job was handed out by its submission")
    assert stream.free == 1
    until(lambda: not queue._dispatcher.owner.is_uncertain)
    upkeep(queue)
    assert [(job.id, job.attempt) for job in take(stream)] == [(f"job-{number}", 2)]
