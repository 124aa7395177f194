"""One key with very many jobs: its turn passes on without reading those that wait (DESIGN 4)."""

from penstock import Job, Key, open_backend


def test_the_work_of_a_turn_does_not_grow_with_the_jobs_of_the_key(tmp_path):
    """Counted in SQLite's own steps, so that no clock decides."""
    few, many = (steps_of_a_turn(f"sqlite:///{tmp_path}/{number}.db", number) for number in (20, 5_000))
    assert many < 3 * few


def steps_of_a_turn(url, number):
    steps = 0

    def count():
        nonlocal steps
        steps += 1
        return False

    with open_backend(url) as backend:
        backend.enqueue_jobs([Job(id=f"job-{index}", type="t", key=Key("hot")) for index in range(number)])
        connection = backend._store._writer._connection
        connection.set_progress_handler(count, 20)
        for _ in range(3):
            (job,) = backend.dequeue_jobs("worker", key="hot")
            backend.complete_job(job.id, attempt=job.attempt)
        connection.set_progress_handler(None)
    return steps
