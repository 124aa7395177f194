"""Which types and tags are ready, told without reading the ready jobs (Q34)."""

from penstock import Job, open_backend


def test_types_and_tags_of_ready_jobs_alone(tmp_path):
    with open_backend(f"sqlite:///{tmp_path}/jobs.db") as backend:
        assert backend.ready_filters() == (frozenset(), frozenset())
        backend.enqueue_jobs(
            [
                Job(id="a", type="x", tags=("red", "blue")),
                Job(id="b", type="y"),
                Job(id="waits", type="z", tags=("green",), after=("a",)),
                Job(id="held", type="h", tags=("held",), held=True),
            ]
        )
        assert backend.ready_filters() == ({"x", "y"}, {"red", "blue"})
        backend.dequeue_jobs("worker", types=["x"])
        assert backend.ready_filters() == ({"y"}, set())
        backend.complete_job("a")
        assert backend.ready_filters() == ({"y", "z"}, {"green"})


def test_very_many_are_not_listed(tmp_path):
    with open_backend(f"sqlite:///{tmp_path}/jobs.db") as backend:
        backend.enqueue_jobs([Job.new("x", tags=(f"tag-{number}",)) for number in range(1_000)])
        assert backend.ready_filters() is not None
        backend.enqueue_job(Job.new("x", tags=("one-more",)))
        assert backend.ready_filters() is None


def test_the_cost_is_that_of_the_different_values(tmp_path):
    """The plan seeks from value to value; a scan would read every ready job."""
    from penstock.backends.sqlite import reading

    with open_backend(f"sqlite:///{tmp_path}/jobs.db") as backend:
        connection = backend._store._writer._connection
        for query in (reading._READY_TYPES, reading._READY_TAGS):
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", (1,))]
            assert any(step.startswith("SEARCH") for step in plan), plan
