"""The jobs that streams hold: deliveries, attempts that end, slots that stay lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.job import Job, JobStatus
from penstock.lifecycle import Verb
from penstock.queue._groups import Group, Groups
from penstock.queue._owner import QueueOwner
from penstock.queue.stream import JobStream

__all__ = ["HeldJobs"]


class HeldJobs:
    """The jobs that the streams of a queue hold. Guarded by the dispatcher's lock.

    Args:
        groups: the open streams.
        owner: beats for what is held.
        mark: called with a group in which a slot became free.
    """

    def __init__(self, groups: Groups, owner: QueueOwner, mark: Callable[[Group], None]) -> None:
        self._groups = groups
        self._streams = groups.stream_of
        self._owner = owner
        self._mark = mark
        #: Whether a claim is under way, so that a job may end before its delivery.
        self.is_claiming = False
        #: Jobs and attempts that ended before their delivery.
        self._ended_early: set[tuple[str, int]] = set()

    def begin_claims(self) -> None:
        """Remember the attempts that end from now on: they may be delivered afterwards."""
        self.is_claiming = True

    def end_claims(self) -> None:
        """Forget such attempts: everything claimed was delivered."""
        self.is_claiming = False
        self._ended_early.clear()

    def stream_of(self, job_id: str) -> JobStream | None:
        """Return the stream that holds a job."""
        return self._streams.get(job_id)

    def deliver(self, group: Group, stream: JobStream, jobs: Sequence[Job]) -> None:
        """Push claimed jobs to an open stream."""
        if not jobs:
            return
        for job in jobs:
            self._end_earlier_attempt(job)
            self._streams[job.id] = stream
        stream.push(jobs)
        self._owner.hold(jobs)
        for job in jobs:
            if (job.id, job.attempt) in self._ended_early:  # another thread reported it before its delivery
                stream.held.pop(job.id, None)
                self._streams.pop(job.id, None)
        group.put_last(stream)

    def add_beyond(self, stream: JobStream, jobs: Sequence[Job]) -> None:
        """Note jobs that a consumer has claimed beyond its stream's capacity."""
        for job in jobs:
            stream.beyond[job.id] = job.attempt
            self._streams[job.id] = stream

    def drop(self, jobs: Sequence[Job]) -> None:
        """Forget jobs that a closing stream had not delivered to its consumer."""
        for job in jobs:
            self._streams.pop(job.id, None)
            self._owner.release(job.id)

    def end_attempt(self, job_id: str, attempt: int, verb: str, status: str) -> None:
        """Free the slot of an attempt that has ended, or of an earlier one of its job."""
        self._owner.end_attempt(job_id, attempt)
        stream = self._streams.get(job_id)
        if stream is None:
            if self.is_claiming:
                self._ended_early.add((job_id, attempt))
            return
        if stream.beyond.get(job_id, attempt + 1) <= attempt:
            del stream.beyond[job_id], self._streams[job_id]
            return
        held = stream.held.get(job_id)
        if held is None or held > attempt:
            return
        del stream.held[job_id]
        if verb == Verb.ACKNOWLEDGE and status == JobStatus.UNKNOWN_STOPPED:
            stream.lost[job_id] = held
            return
        self._streams.pop(job_id, None)
        self._mark_group_of(stream)

    def restore_lost(self, assignee_id: str | None) -> None:
        """Free the lost slots of an assignee; None is of all."""
        for group in self._groups:
            for stream in group.streams:
                if stream.lost and assignee_id in (None, stream.assignee_id):
                    for job_id in stream.lost:
                        self._streams.pop(job_id, None)
                    stream.lost.clear()
                    self._mark(group)

    def _end_earlier_attempt(self, job: Job) -> None:
        """Free the slot of an earlier attempt: one commit may reclaim a job and deliver it to another stream."""
        before = self._streams.get(job.id)
        if before is not None and before.held.get(job.id, job.attempt) < job.attempt:
            del before.held[job.id]
            self._mark_group_of(before)

    def _mark_group_of(self, stream: JobStream) -> None:
        group = self._groups.find(stream)
        if group is not None:
            self._mark(group)
