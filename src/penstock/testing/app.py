"""An app under test: without a worker, without a file, on the test's own thread.

with penstock.testing.inline(app):
    assert resize.submit(image="cat.png", width=200).result() == {...}

with penstock.testing.in_memory(app) as queue:
    signup(name="ada")                          # submits jobs
    assert penstock.testing.drain(app).completed == 2
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec

from penstock.app import App
from penstock.app.client import QueueClient
from penstock.app.execution import LoopRunner, execute
from penstock.errors import InvalidArgumentError
from penstock.job import Job
from penstock.outcome import Completed, Failed
from penstock.queue import Queue, connect
from penstock.testing.clock import ManualClock
from penstock.worker.reports import Report, send
from penstock.worker.run import Run
from penstock.worker.slots import judged

__all__ = ["Drained", "drain", "in_memory", "inline"]

MAX_ATTEMPTS = 10_000
ASSIGNEE = "penstock.testing"


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `drain`.

    Attributes:
        completed: attempts that completed.
        failed: attempts that failed, those that were retried included.
    """

    completed: int = 0
    failed: int = 0


@contextmanager
def in_memory(app: App, *, clock: ManualClock | None = None, **options: Any) -> Iterator[Queue]:
    """Make an app use an empty store in memory while the block runs.

    Args:
        app: whose jobs.
        clock: the store's; one that stands still unless given.
        **options: those of `penstock.connect`.
    """
    with _standing_in(app, QueueClient, clock, options) as client:
        yield client.queue


@contextmanager
def inline(app: App, *, clock: ManualClock | None = None, **options: Any) -> Iterator[Queue]:
    """As `in_memory`, and every job runs, with its retries, before `submit` returns. Delays are not waited for."""
    with _standing_in(app, _InlineClient, clock, options) as client:
        client.app = app
        yield client.queue


def drain(app: App, *, advance: bool = True) -> Drained:
    """Run the app's waiting jobs on this thread until none is left, and return how they ended.

    Time limits are not kept here: a handler that does not return stops the test.

    Args:
        app: whose jobs; best inside `in_memory`.
        advance: whether delays and pauses between attempts pass, by moving the store's ManualClock. False, or any other
            clock, leaves such jobs waiting.

    Raises:
        InvalidArgumentError: it does not end: after 10,000 attempts there is still something to do.
    """
    queue = app.queue
    clock = _CLOCKS.get(id(queue))
    loop = LoopRunner()
    counts: dict[type, int] = {Completed: 0, Failed: 0}
    try:
        for _ in range(MAX_ATTEMPTS):
            jobs = queue.claim_jobs(ASSIGNEE, types=list(app.tasks))
            for job in jobs:
                counts[_run(app, queue, job, loop)] += 1
            if not jobs and not (advance and clock is not None and _passed(queue, clock)):
                return Drained(completed=counts[Completed], failed=counts[Failed])
    finally:
        loop.close()
    raise InvalidArgumentError(
        f"after {MAX_ATTEMPTS} attempts there are still jobs to run: is there one without a retry policy that always fails?",
        field="app",
    )


def _run(app: App, queue: Queue, job: Job, loop: LoopRunner) -> type:
    task = app.tasks[job.type]
    run = Run(job, task, task.seconds_for(job), queue)
    outcome = execute(task, job, run.context, app.middlewares, loop.run)
    run.flush()
    reported = judged(run, outcome, queue.backend.options.max_payload)
    send(queue, type(reported), [Report(job.id, job.attempt, reported)])
    return type(reported)


def _passed(queue: Queue, clock: ManualClock) -> bool:
    """Advance the clock to when the next delayed job is due, if there is one."""
    due = queue.backend.runtime.next_due()
    if due is None:
        return False
    clock.advance(due)
    return True


class _InlineClient(QueueClient):
    app: App | None = None

    def submit(self, jobs: Sequence[Job], delay: timedelta | None = None) -> list[str]:
        ids = super().submit(jobs, delay)
        if self.app is not None:
            drain(self.app)
        return ids


#: The clocks of queues that stand in, by the queue.
_CLOCKS: dict[int, ManualClock] = {}


@contextmanager
def _standing_in(
    app: App, kind: type[QueueClient], clock: ManualClock | None, options: dict[str, Any]
) -> Iterator[Any]:
    used = ManualClock() if clock is None else clock
    with connect("memory:", clock=used, **options) as queue:
        client = kind(queue)
        _CLOCKS[id(queue)] = used
        app.stand_in(client)
        try:
            yield client
        finally:
            app.stand_in(None)
            del _CLOCKS[id(queue)]
            client.close()
