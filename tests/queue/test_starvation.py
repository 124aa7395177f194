"""However busy one stream is, the others learn what other processes did (Q34)."""

import queue as queues
import threading
from pathlib import Path

import penstock
from penstock import Job, cancel_scope

SOON = 20.0


def test_a_busy_stream_does_not_keep_others_from_foreign_jobs(tmp_path: Path) -> None:
    """Its consumers free slots as fast as they are filled, so that it is never full and never empty."""
    url = f"sqlite:///{tmp_path}/jobs.db?durability=normal"
    with penstock.connect(url) as queue, penstock.open_backend(url) as elsewhere:
        queue.enqueue_jobs([Job.new("busy") for _ in range(20_000)])
        busy = queue.stream_jobs("busy", types=["busy"], max_assigned_jobs=100)
        idle = queue.stream_jobs("idle", types=["idle"])
        todo: queues.SimpleQueue[Job | None] = queues.SimpleQueue()

        def feed() -> None:
            for batch in busy:
                for job in batch:
                    todo.put(job)
            for _ in range(4):
                todo.put(None)

        def work() -> None:
            while (job := todo.get()) is not None:
                queue.complete_job(job.id, attempt=job.attempt)

        threads = [threading.Thread(target=each) for each in (feed, *[work] * 4)]
        for thread in threads:
            thread.start()
        try:
            for number in range(5):
                elsewhere.enqueue_job(Job(id=f"foreign-{number}", type="idle"))
                with cancel_scope(timeout=SOON):
                    (job,) = next(idle)
                assert job.id == f"foreign-{number}"
                queue.complete_job(job.id)
            assert queue.get_job_stats().running_jobs > 0  # the busy one is at it still
        finally:
            busy.close()
            for thread in threads:
                thread.join(SOON)
