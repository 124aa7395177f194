"""The handle that a submission returns: read, await and cancel the job."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from penstock.durations import Duration, duration
from penstock.errors import InvalidArgumentError, JobFailedError, JobNotFoundError, PenstockError, shown
from penstock.job import Job, JobStatus
from penstock.payloads.json import decode_json
from penstock.scope import cancel_scope

if TYPE_CHECKING:
    from penstock.app._signature import Signature
    from penstock.app.client import Client

__all__ = ["JobHandle", "checked_id"]

R = TypeVar("R")

#: How long a notebook waits for the store to show a handle.
SHOWN_WITHIN_SECONDS: Final = 2.0


class JobHandle(Generic[R]):
    """A submitted job: read its state, wait for its result, cancel it. `await handle` returns the result.

    Made by `task.submit(…)`, or from an id by `app.handle(job_id)`.

    Attributes:
        id: the job's id.
        is_duplicate: whether the submission stored nothing because an earlier job has the same idempotency key; then
            this is the handle of that job. False for handles made from an id.
    """

    __slots__ = ("_client", "_ended", "_signature", "id", "is_duplicate")

    #: The hint of errors about a handle that is passed as an argument of a job.
    argument_hint: ClassVar[str] = (
        "a handle is no value: pass handle.result() for what the job returned, or handle.id for its id;"
        " to run after that job, submit with task.options(after=[handle])"
    )

    def __init__(
        self,
        job_id: str,
        client: Callable[[], Client],
        signature: Signature | None = None,
        *,
        is_duplicate: bool = False,
    ) -> None:
        #: The job's id.
        self.id = job_id
        #: Whether the job was there before the submission.
        self.is_duplicate = is_duplicate
        self._client = client
        #: The job as it ended, if it was read already; used once.
        self._ended: Job | None = None
        self._signature = signature

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"

    def _repr_html_(self) -> str:
        """Return the job as it is now as a small table, for notebooks; its id alone if the store does not answer."""
        from penstock._html import job_html, unreadable_html  # noqa: PLC0415  # notebooks only

        try:
            with cancel_scope(SHOWN_WITHIN_SECONDS):
                return job_html(self.job())
        except PenstockError as error:
            return unreadable_html(self.id, str(error))

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
        """The progress in percent that its handler last reported."""
        return self.job().progress

    def output(self) -> str:
        """Return what the job has printed (its latest attempt that printed anything), bounded: 64 KiB, its middle left out.

        Of a job in a process of its own that is all it, and what it started, wrote to stdout and stderr. Of a job on a
        thread it is what the handler wrote to `sys.stdout` and `sys.stderr`, which the worker's own output has as well.
        """
        return self._client().get_output(self.id)

    def wait(self, timeout: Duration | None = None) -> Job:
        """Wait until the job has ended, however it ended, and return it.

        Raises:
            TimeoutError: it has not ended in time; it goes on.
        """
        seconds = _seconds(timeout)
        ended, self._ended = self._ended, None
        return self._client().wait(self.id, seconds) if ended is None else ended

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the job and return what its handler returned.

        Raises:
            JobFailedError: it ended without success; `.job` is the job.
            TimeoutError: it has not ended in time; it goes on.
        """
        return self.value_of(self.wait(timeout))

    def cancel(self) -> bool:
        """Cancel the job: at once if it waits; if it runs, its handler is notified, and its process ended.

        Returns:
            Whether there was anything to cancel: False if the job has ended already.
        """
        return self._client().cancel(self.id)

    def __await__(self) -> Generator[Any, None, R]:
        return self._result_async().__await__()

    async def _result_async(self) -> R:
        ended, self._ended = self._ended, None
        return self.value_of(await self._client().wait_async(self.id) if ended is None else ended)

    @property
    def client(self) -> Client:
        """The client of the handle; not for users."""
        return self._client()

    def remember(self, job: Job) -> None:
        """Use a job that was read after its end for the next result; not for users."""
        self._ended = job

    def ended_result(self) -> R:
        """Return the result of a job that was remembered, or raise; not for users.

        Raises:
            JobFailedError: it ended without success.
            JobNotFoundError: it was not there to be remembered.
        """
        ended, self._ended = self._ended, None
        if ended is None:
            raise JobNotFoundError(self.id)
        return self.value_of(ended)

    def value_of(self, job: Job) -> R:
        """Return the result of the job as it ended, or raise JobFailedError; not for users."""
        if job.status is not JobStatus.COMPLETED:
            reason = job.error_message.partition("\n\n")[0]
            raise JobFailedError(
                f"job {job.id} ({job.type}) ended {job.status}{f': {reason}' if reason else ''}", job=job
            )
        if self._signature is not None:
            value: R = self._signature.decode_result(job.result)
            return value
        return None if job.result is None else decode_json(job.result)  # type: ignore[return-value]  # unknown


def checked_id(job_id: object) -> str:
    """Return an id that a job can have; one that no store takes is refused by that."""
    if not isinstance(job_id, str) or not job_id or "\0" in job_id or not _is_unicode(job_id):
        raise InvalidArgumentError(
            f"job_id must be text without NUL characters and lone surrogates, got {shown(job_id)}",
            field="job_id",
            value=job_id,
        )
    return job_id


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else duration(timeout, "timeout").total_seconds()
