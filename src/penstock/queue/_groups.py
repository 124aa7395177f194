"""The open streams of a queue: those with the same filter form a group, which is found by type and tags of a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.backends.contract.overview import Intake, NamedIntake
from penstock.queue._filters import FilterIndex
from penstock.queue.stream import JobStream

__all__ = ["Group", "Groups"]

#: How many assignees per filter are published.
MAX_NAMES: Final = 5


class Group:
    """Streams with the same filter, in the order in which they are served next."""

    __slots__ = ("key", "streams")

    def __init__(self, key: tuple[frozenset[str], frozenset[str] | None]) -> None:
        self.key = key
        self.streams: dict[JobStream, None] = {}

    def with_capacity(self) -> list[JobStream]:
        """Return the open streams that can hold another job."""
        # A copy, made in one step: the dispatcher reads without the lock, while streams are opened and closed.
        return [
            stream
            for stream in list(self.streams)
            if stream.is_open and stream.free > 0 and not stream.is_withheld
        ]

    def next_up(self, count: int) -> list[JobStream]:
        """Return the streams to claim for next, and all that no claim was made for yet."""
        open_ = self.with_capacity()
        return open_[:count] + [stream for stream in open_[count:] if stream.is_new]

    def put_last(self, stream: JobStream) -> None:
        """Serve a stream after all others of its group."""
        if stream in self.streams:
            del self.streams[stream]
            self.streams[stream] = None


class Groups:
    """The groups of a queue, and which stream holds which job. Guarded by the dispatcher's lock."""

    def __init__(self) -> None:
        self._by_filter: dict[tuple[frozenset[str], frozenset[str] | None], Group] = {}
        self._index: FilterIndex[Group] = FilterIndex()
        #: Called for every commit, so without another call in between.
        self.matching = self._index.matching
        self.matching_any = self._index.matching_any
        #: The stream that holds a job, by the job's id.
        self.stream_of: dict[str, JobStream] = {}

    def __len__(self) -> int:
        return len(self._by_filter)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._by_filter.values())

    def find(self, stream: JobStream) -> Group | None:
        """Return the group of a stream; None if no open stream has its filter."""
        return self._by_filter.get(stream.filter)

    def join(self, stream: JobStream) -> Group:
        """Add a stream to the group of its filter, which is made if need be."""
        group = self._by_filter.get(stream.filter)
        if group is None:
            group = self._by_filter[stream.filter] = Group(stream.filter)
            self._index.add(group, *stream.filter)
        group.streams[stream] = None
        return group

    def leave(self, stream: JobStream) -> Group | None:
        """Remove a stream from its group and forget what it holds; return the group if it is empty now."""
        group = self._by_filter.get(stream.filter)
        if group is None:
            return None
        group.streams.pop(stream, None)
        for job_id in (*stream.held, *stream.lost, *stream.beyond):
            self.stream_of.pop(job_id, None)
        if group.streams:
            return None
        del self._by_filter[stream.filter]
        self._index.remove(group)
        return group

    def streams(self) -> list[JobStream]:
        """Return all open streams."""
        return [stream for group in self for stream in group.streams]

    def held(self) -> dict[str, int]:
        """Return ids and attempts of all jobs that streams hold."""
        return {
            job_id: attempt
            for stream in self.streams()
            for held in (stream.held, stream.beyond)
            for job_id, attempt in held.items()
        }

    def intakes(self) -> list[Intake]:
        """Return what the streams accept, one entry per filter."""
        return [
            NamedIntake(
                types=None if types is None else tuple(sorted(types)),
                tags=tuple(sorted(tags)),
                slots=sum(stream.max_assigned_jobs for stream in group.streams),
                waiting=sum(stream.waiting for stream in group.streams),
                names=tuple(dict.fromkeys(stream.assignee_id for stream in group.streams))[:MAX_NAMES],
            )
            for (tags, types), group in self._by_filter.items()
        ]
