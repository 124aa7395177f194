"""Which types and tags are ready: the plan of the question (Q34)."""

from penstock import open_backend
from penstock.backends.sqlite import runtime


def test_the_cost_is_that_of_the_different_values(tmp_path):
    """The plan seeks from value to value; a scan would read every ready job."""

    with open_backend(f"sqlite:///{tmp_path}/jobs.db") as backend:
        connection = backend._store._writer._connection
        for query in (runtime._READY_TYPES, runtime._READY_TAGS):
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", (1,))]
            assert any(step.startswith("SEARCH") for step in plan), plan
