"""Cancellations that another process acknowledges: whether a stream's slot comes back depends on what it says."""

import penstock
from penstock import cancel_scope
from penstock.testing.conformance.queue_support import put


def test_a_slot_comes_back_when_another_process_says_that_the_job_was_executing(shared_url):
    """Q44: also if a poll of the store notices it before anything else does."""
    with penstock.connect(shared_url) as queue, penstock.connect(shared_url) as other:
        put(queue, "a", "b")
        with queue.stream_jobs("worker") as stream, cancel_scope(20):
            assert [job.id for job in next(stream)] == ["a"]
            other.cancel_jobs(job_ids=["a"])
            other.acknowledge_cancellation("a", was_executing=True)
            assert [job.id for job in next(stream)] == ["b"]


def test_a_release_names_its_verb_only_if_it_keeps_the_slot_or_was_a_loss(shared_url):
    """C9."""
    with penstock.connect(shared_url) as queue:
        put(queue, "executing", "not")
        backend = queue.backend
        backend.dequeue_jobs("worker", limit=2)
        backend.cancel_jobs(job_ids=["executing", "not"])
        backend.acknowledge_cancellation("executing", was_executing=True)
        backend.acknowledge_cancellation("not", was_executing=False)
        assert backend.runtime.released({"executing": 1, "not": 1}) == {
            "executing": "",
            "not": "acknowledge_cancellation",
        }
