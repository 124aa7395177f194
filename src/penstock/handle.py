"""A submitted job, as whoever submitted it holds it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock._json import decode_json
from penstock.errors import JobFailedError
from penstock.job import Job, JobStatus
from penstock.policy import duration

if TYPE_CHECKING:
    from penstock._client import Client
    from penstock._signature import Signature

__all__ = ["JobHandle"]

R = TypeVar("R")


class JobHandle(Generic[R]):
    """A job that was submitted: ask for its state, wait for its result, cancel it. `await handle` gives the result.

    Made by `task.submit(…)`, or from an id by `app.handle(job_id)`.

    Attributes:
        id: the job's id.
    """

    __slots__ = ("_client", "_signature", "id")

    def __init__(self, job_id: str, client: Callable[[], Client], signature: Signature | None = None) -> None:
        #: The job's id.
        self.id = job_id
        self._client = client
        self._signature = signature

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def job(self) -> Job:
        """Return the job as it is now.

        Raises:
            JobNotFoundError: it was deleted.
        """
        return self._client().get_job(self.id)

    @property
    def status(self) -> JobStatus:
        """The job's status now."""
        return self.job().status

    @property
    def progress(self) -> int:
        """How far the job is, in percent, as its handler last said."""
        return self.job().progress

    def output(self) -> str:
        """Return what the job has printed (its latest attempt that printed anything), bounded: 64 KiB, its middle left out.

        Of a job in a process of its own that is all it, and what it started, wrote to stdout and stderr. Of a job on a
        thread it is what the handler wrote to `sys.stdout` and `sys.stderr`, which the worker's own output has as well.
        """
        return self._client().get_output(self.id)

    def wait(self, timeout: timedelta | float | None = None) -> Job:
        """Wait until the job has ended, however it ended, and return it.

        Raises:
            TimeoutError: it has not ended in time; it goes on.
        """
        return self._client().wait(self.id, _seconds(timeout))

    def result(self, timeout: timedelta | float | None = None) -> R:
        """Wait for the job and return what its handler returned.

        Raises:
            JobFailedError: it ended without success; `.job` is the job.
            TimeoutError: it has not ended in time; it goes on.
        """
        return self._value(self.wait(timeout))

    def cancel(self) -> bool:
        """Ask for the job's end: at once if it waits; else its handler is told, and its process ended.

        Returns:
            Whether there was anything to cancel: False if the job has ended already.
        """
        return self._client().cancel(self.id)

    def __await__(self) -> Generator[Any, None, R]:
        return self._result_async().__await__()

    async def _result_async(self) -> R:
        return self._value(await self._client().wait_async(self.id))

    def _value(self, job: Job) -> R:
        if job.status is not JobStatus.COMPLETED:
            reason = job.error_message.partition("\n\n")[0]
            raise JobFailedError(
                f"job {job.id} ({job.type}) ended {job.status}{f': {reason}' if reason else ''}", job=job
            )
        if self._signature is not None:
            value: R = self._signature.decode_result(job.result)
            return value
        return None if job.result is None else decode_json(job.result)  # type: ignore[return-value]  # unknown


def _seconds(timeout: timedelta | float | None) -> float | None:
    return None if timeout is None else duration(timeout, "timeout").total_seconds()
