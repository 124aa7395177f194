"""Answers what the code of a job asks its worker for: submit, spawn, wait, read and cancel jobs."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from penstock.app.client import QueueClient
from penstock.app.lending import lending, lent_by
from penstock.errors import InvalidArgumentError
from penstock.worker import _protocol as protocol
from penstock.worker._lending import PipeLender
from penstock.worker.run import Run

__all__ = ["Requests"]


class Requests:
    """Answers the requests of jobs in child processes, on the threads of their slots."""

    def __init__(self, client: QueueClient) -> None:
        self._client = client

    def answer(self, run: Run, verb: str, body: bytes) -> bytes:
        """Return the reply to a request, encoded.

        Raises:
            PenstockError: the verb refused it.
            TimeoutError: what it waited for did not end in time.
        """
        client = self._client
        match verb:
            case "submit":
                submission = protocol.decode_submission(body)
                return protocol.encode(client.submit(submission.jobs, submission.delay))
            case "spawn":
                submission = protocol.decode_submission(body)
                return protocol.encode([run.spawn(job, submission.delay) for job in submission.jobs])
            case "checkpoint":
                run.save_checkpoint(body)
                return b""
            case "get_job":
                return protocol.encode_job(client.get_job(body.decode()))
            case "get_output":
                return client.queue.get_output(body.decode()).encode()
            case "cancel":
                return b"1" if client.cancel(body.decode()) else b""
            case "explain":
                return client.explain(body.decode()).encode()
            case "wait":
                return self._wait(run, protocol.decode_wait(body))
            case "wait_any":
                return self._wait_any(run, protocol.decode_wait_any(body))
            case "wait_over":
                self._end_waits(run, protocol.decode_ids(body))
                return b""
            case "get_jobs":
                return protocol.encode_jobs(client.get_jobs(protocol.decode_ids(body)).values())
        raise InvalidArgumentError(f"a job cannot ask for {verb!r}", field="verb", value=verb)

    def _wait(self, run: Run, wait: protocol.WaitFor) -> bytes:
        """Wait a while for a job; the process asks again, unless its time is over."""
        is_over = wait.seconds < protocol.WAIT_SECONDS
        try:
            with lent_by(run.lender):
                ended = self._client.wait(
                    wait.job_id, min(wait.seconds, protocol.WAIT_SECONDS), explains=False
                )
            is_over = True
            return protocol.encode_job(ended)
        except TimeoutError:
            return b""
        finally:
            if is_over and isinstance(run.lender, PipeLender):
                run.lender.settle(wait.job_id)

    def _wait_any(self, run: Run, wait: protocol.WaitForAny) -> bytes:
        """Wait a while for the first of several jobs; the process asks again for those that are left."""
        woken = threading.Event()
        with self._client.watch(wait.job_ids, woken.set) as watch:
            if not woken.is_set():
                with lent_by(run.lender), lending(wait.job_ids[0]):
                    woken.wait(min(wait.seconds, protocol.WAIT_SECONDS))
            ended = watch.take()
        self._end_waits(run, ended)
        return protocol.encode(ended)

    def _end_waits(self, run: Run, job_ids: Sequence[str]) -> None:
        if isinstance(run.lender, PipeLender):
            for job_id in job_ids:
                run.lender.settle(job_id)
