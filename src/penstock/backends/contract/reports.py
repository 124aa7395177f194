from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta

from penstock.backends.contract.values import Failure
from penstock.job import JobStatus
from penstock.policy import FailureCategory

__all__ = ["Reports"]


class Reports(ABC):
    """Whoever holds a job says what becomes of it."""

    @abstractmethod
    def complete_job(
        self, job_id: str, result: bytes | None = None, *, attempt: int | None = None
    ) -> dict[str, int]:
        """RUNNING, CANCELLING, UNKNOWN_RETRY or UNKNOWN_STOPPED → COMPLETED, with its result. Returns freed.

        Sets `finalized_at` to now. Jobs that wait for this one may proceed.
        """

    @abstractmethod
    def complete_jobs(
        self, results: Mapping[str, bytes | None], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Plural of `complete_job`."""

    @abstractmethod
    def fail_job(
        self,
        job_id: str,
        error_message: str,
        *,
        attempt: int | None = None,
        category: FailureCategory = FailureCategory.TEMPORARY,
        code: str | None = None,
        retry_after: timedelta | float | None = None,
    ) -> dict[str, int]:
        """RUNNING or UNKNOWN_RETRY → FAILED_RETRY, or to its end. Returns freed.

        `retry_count` + 1, `last_retry_at` = now. PERMANENT ends in FAILED, CANCELLED in STOPPED. Without a policy
        everything else is eligible again at once. With one, the failure counts: while the policy allows another
        attempt the job is FAILED_RETRY, due after the backoff (or `retry_after`, uncapped); else DEAD_LETTER.
        An attempt that was already counted as lost is not counted twice.
        """

    @abstractmethod
    def fail_jobs(
        self,
        failures: Mapping[str, str | Failure],
        *,
        attempts: Mapping[str, int] | None = None,
        category: FailureCategory = FailureCategory.TEMPORARY,
        code: str | None = None,
        retry_after: timedelta | float | None = None,
    ) -> dict[str, int]:
        """Plural of `fail_job`; a value is a message, to which the keyword arguments apply, or a `Failure`."""

    @abstractmethod
    def stop_job(self, job_id: str, error_message: str = "", *, attempt: int | None = None) -> dict[str, int]:
        """RUNNING, CANCELLING or UNKNOWN_RETRY → STOPPED. Returns freed."""

    @abstractmethod
    def stop_jobs(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Plural of `stop_job`."""

    @abstractmethod
    def stop_job_with_retry(
        self, job_id: str, error_message: str, *, attempt: int | None = None
    ) -> dict[str, int]:
        """CANCELLING → STOPPED, with `retry_count` + 1 and `last_retry_at` = now. Returns freed."""

    @abstractmethod
    def stop_jobs_with_retry(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Plural of `stop_job_with_retry`."""

    @abstractmethod
    def mark_job_unknown_stopped(
        self, job_id: str, error_message: str, *, attempt: int | None = None
    ) -> dict[str, int]:
        """CANCELLING, UNKNOWN_RETRY or RUNNING → UNKNOWN_STOPPED. Returns freed."""

    @abstractmethod
    def mark_jobs_unknown_stopped(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Plural of `mark_job_unknown_stopped`."""

    @abstractmethod
    def update_job_status(
        self,
        job_id: str,
        status: JobStatus,
        result: bytes | None = None,
        error_message: str = "",
        *,
        attempt: int | None = None,
    ) -> dict[str, int]:
        """Move a job along any legal edge (`penstock.lifecycle`), for cases no other verb covers. Returns freed.

        `result` replaces if not None, `error_message` if not empty; counters stay. The same status again is an
        error for finals and nothing otherwise. Never leads to RUNNING, FAILED or DEAD_LETTER. The freed map is
        empty unless the job goes from RUNNING or CANCELLING to COMPLETED, STOPPED or UNKNOWN_STOPPED.
        """

    @abstractmethod
    def release_jobs(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Hand jobs back uncounted: RUNNING → FAILED_RETRY, due at once; CANCELLING → STOPPED. Plural.

        `retry_count` + 1 and `last_retry_at` = now, but the policy does not count the attempt.
        """

    @abstractmethod
    def acknowledge_cancellation(
        self, job_id: str, was_executing: bool, *, attempt: int | None = None
    ) -> None:
        """CANCELLING → STOPPED if it was executing (category CANCELLED, its slot is freed), else UNKNOWN_STOPPED."""

    @abstractmethod
    def acknowledge_cancellations(
        self, executing: Mapping[str, bool], *, attempts: Mapping[str, int] | None = None
    ) -> None:
        """Plural of `acknowledge_cancellation`."""

    @abstractmethod
    def save_progress(
        self, job_id: str, percent: int, description: str | None = None, *, attempt: int | None = None
    ) -> None:
        """Store progress (0 to 100) of a RUNNING or CANCELLING job. Writes no journal row."""

    @abstractmethod
    def save_checkpoint(self, job_id: str, data: bytes, *, attempt: int | None = None) -> None:
        """Store a checkpoint of a RUNNING or CANCELLING job, for its next attempt. Writes no journal row."""

    def save_output(self, job_id: str, output: str, *, attempt: int | None = None) -> None:  # noqa: B027
        """Store what a RUNNING or CANCELLING job has printed, in place of what was stored before. No journal row.

        Up to `max_payload` bytes; of more, the end is kept. A store may ignore it.
        """
