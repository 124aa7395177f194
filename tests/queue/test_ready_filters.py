"""Which types and tags are ready, told without reading the ready jobs (Q34)."""

from penstock import Job, Queue
from penstock.queue._filters import FilterIndex


def test_types_and_tags_of_ready_jobs_alone(queue: Queue) -> None:
    backend = queue.backend
    assert backend.runtime.ready_filters() == (frozenset(), frozenset())
    backend.enqueue_jobs(
        [
            Job(id="a", type="x", tags=("red", "blue")),
            Job(id="b", type="y"),
            Job(id="waits", type="z", tags=("green",), after=("a",)),
            Job(id="held", type="h", tags=("held",), held=True),
        ]
    )
    assert backend.runtime.ready_filters() == ({"x", "y"}, {"red", "blue"})
    backend.dequeue_jobs("worker", types=["x"])
    assert backend.runtime.ready_filters() == ({"y"}, set())
    backend.complete_job("a")
    assert backend.runtime.ready_filters() == ({"y", "z"}, {"green"})


def test_very_many_are_not_listed(queue: Queue) -> None:
    queue.enqueue_jobs([Job.new("x", tags=(f"tag-{number}",)) for number in range(1_000)])
    assert queue.backend.runtime.ready_filters() is not None
    queue.enqueue_job(Job.new("x", tags=("one-more",)))
    assert queue.backend.runtime.ready_filters() is None


def test_filters_that_are_gone_leave_nothing_behind() -> None:
    index: FilterIndex[str] = FilterIndex()
    for number in range(10):
        index.add("tagged", [f"tag-{number}", "other"], ["a", "b"])
        index.add("typed", [], [f"type-{number}", "b"])
        index.add("open", [], None)
        for item in ("tagged", "typed", "open", "unknown"):
            index.remove(item)
    assert (index._by_tag, index._by_type, index._open, len(index)) == ({}, {}, {}, 0)
