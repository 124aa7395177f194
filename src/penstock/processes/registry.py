"""Registries, which keep the records of jobs: the contract, and a file of JSON lines."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import BackendError, invalid, shown
from penstock.payloads.json import encode_json
from penstock.processes.types import (
    DELETED,
    JobCommand,
    JobId,
    JobRecord,
    JobStatus,
    check_is_record,
    check_progress_kept,
    check_record,
    lookup_id,
)

__all__ = ["JsonlRegistry", "Registry"]

logger = logging.getLogger("penstock")
_PIECE: Final = 1 << 20
LEFT: Final = "the process of its queue ended while it ran"


class Registry(ABC):
    """Keeps the states and results of jobs. The last record of a job is the authoritative one."""

    @abstractmethod
    def append(self, record: JobRecord) -> None:
        """Append a new version of a job's record; durable when it returns, if the status has changed.

        Raises:
            InvalidArgumentError: a field could not be read back as it is, progress is below that of the record before
                it (a restart begins at 0), or is 100 of a job that is not COMPLETED; nothing is written.
        """
        raise NotImplementedError

    @abstractmethod
    def latest(self, job_id: JobId) -> JobRecord | None:
        """Return the last record of a job; None if there is none."""
        raise NotImplementedError

    @abstractmethod
    def all_latest(self) -> Iterable[JobRecord]:
        """Return the last record of every job."""
        raise NotImplementedError

    def delete(self, record: JobRecord) -> None:
        """Record that a job was deleted: a last record with the description "Deleted", unless overridden."""
        self.append(replace(record, description=DELETED))

    def commands(self, job_ids: Collection[JobId]) -> Mapping[JobId, JobCommand]:  # noqa: ARG002 - for those who override it
        """Return commands for running jobs: STOP, or DELETE for a reclaimed job. Empty unless overridden."""
        return {}

    def attach(self) -> None:  # noqa: B027 - a registry need not care
        """Called when a queue starts using this registry."""

    def detach(self) -> None:  # noqa: B027 - the same
        """Called when a queue stops using this registry."""


class JsonlRegistry(Registry):
    """Records as lines of JSON in one file that only grows. Safe for threads and processes.

    A line is written with one call, under a lock of the file, and flushed to disk when it changes the job's status. A
    line that was cut off by a crash is passed over, and the next one begins on a line of its own. Reading continues
    where it last stopped. A record is checked before it is written: what `append` accepts, `latest` returns.

    The first queue that uses the file finds jobs that are RUNNING by their record, though the queue that ran them is
    gone: they are set to ERROR. Queues detect each other by a lock on the file beside it, "….lock".

    Args:
        path: the file; made, with its folders, if it does not exist. A relative path is resolved once, here.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _absolute(path)
        self._lock = threading.RLock()
        self._latest: dict[JobId, JobRecord] = {}
        self._read_to = 0
        self._inode = -1
        self._used: int | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(self._open())
        except OSError as error:
            raise BackendError(
                f"the registry {shown(str(self.path))} cannot be opened: {error.strerror}"
            ) from error

    def __repr__(self) -> str:
        return f"<JsonlRegistry {self.path}>"

    def append(self, record: JobRecord) -> None:
        self._keep(check_record(record), is_new=True)

    def delete(self, record: JobRecord) -> None:
        self._keep(replace(check_is_record(record), description=DELETED))

    def _keep(self, record: JobRecord, *, is_new: bool = False) -> None:
        """Write a record. One that was read from the file needs no check: an older version may have written it."""
        line = _encode(record)
        with self._lock:
            try:
                descriptor = self._open()
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    before = self.latest(record.job_id)
                    if is_new:
                        check_progress_kept(before, record)
                    self._write(descriptor, line)
                    if before is None or before.status is not record.status:
                        os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise BackendError(
                    f"the registry {self.path} cannot be written: {error}", retryable=True
                ) from error

    def latest(self, job_id: JobId) -> JobRecord | None:
        job_id = lookup_id(job_id)
        with self._lock:
            self._catch_up()
            return self._latest.get(job_id)

    def all_latest(self) -> list[JobRecord]:
        with self._lock:
            self._catch_up()
            return list(self._latest.values())

    def attach(self) -> None:
        with self._lock:
            if self._used is not None:
                return
            try:
                self._used = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._used, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.detach()
                return  # another process has a queue on this file, so its jobs may be alive
            except OSError as error:
                self.detach()
                raise BackendError(f"the registry {self.path} cannot be locked: {error}") from error
            for record in self.all_latest():
                if record.status is JobStatus.RUNNING:
                    now = datetime.now(UTC)
                    self._keep(replace(record, status=JobStatus.ERROR, description=LEFT, updated_at=now))

    def detach(self) -> None:
        with self._lock:
            used, self._used = self._used, None
            if used is not None:
                os.close(used)

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @staticmethod
    def _write(descriptor: int, line: bytes) -> None:
        end = os.fstat(descriptor).st_size
        if end and os.pread(descriptor, 1, end - 1) != b"\n":
            line = b"\n" + line  # the line before was cut off by a crash
        written = os.write(descriptor, line)
        if written < len(line):
            os.ftruncate(descriptor, end)
            raise OSError(f"only {written} of {len(line)} bytes could be written")

    def _catch_up(self) -> None:
        """Read the lines that were added since the last time."""
        try:
            descriptor = self._open()
        except OSError as error:
            raise BackendError(f"the registry {self.path} cannot be read: {error}", retryable=True) from error
        try:
            about = os.fstat(descriptor)
            if about.st_ino != self._inode or about.st_size < self._read_to:
                self._latest, self._read_to, self._inode = {}, 0, about.st_ino  # another file, or begun anew
            rest = b""
            while piece := os.pread(descriptor, _PIECE, self._read_to + len(rest)):
                rest += piece
                complete, newline, rest = rest.rpartition(b"\n")
                if newline:
                    self._read_to += len(complete) + 1
                    self._take(complete)
        finally:
            os.close(descriptor)

    def _take(self, lines: bytes) -> None:
        for line in lines.split(b"\n"):
            if line.strip():
                try:
                    record = _decoder.decode(line)
                except (msgspec.MsgspecError, ValueError):
                    logger.warning("a line of %s cannot be read and is passed over", self.path)
                else:
                    self._latest[record.job_id] = record


_decoder: msgspec.json.Decoder[JobRecord] = msgspec.json.Decoder(JobRecord)


def _encode(record: JobRecord) -> bytes:
    """Return a checked record as a line."""
    fields = {field.name: getattr(record, field.name) for field in dataclass_fields(JobRecord)}
    fields["result"] = msgspec.Raw(encode_json(record.result, "result"))
    return msgspec.json.encode(fields) + b"\n"


def _absolute(path: object) -> Path:
    """Return a path that a later change of the working folder does not move."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str) or not name or "\0" in name or not _is_encodable(name):
        raise invalid("path", "a file's path", path)
    try:
        return Path(name).absolute()
    except OSError as error:
        raise BackendError(f"the registry {shown(name)} cannot be opened: {error.strerror}") from error


def _is_encodable(name: str) -> bool:
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True
