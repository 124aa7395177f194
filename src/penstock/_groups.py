"""The open streams of a queue: those with the same filter form a group, which is found by what a job is."""

from __future__ import annotations

from collections.abc import Iterator

from penstock._filters import FilterIndex
from penstock.overview import Intake
from penstock.stream import JobStream

__all__ = ["Group", "Groups"]


class Group:
    """Streams with the same filter, in the order in which they are served next."""

    __slots__ = ("key", "streams")

    def __init__(self, key: tuple[frozenset[str], frozenset[str] | None]) -> None:
        self.key = key
        self.streams: dict[JobStream, None] = {}

    def hungry(self) -> list[JobStream]:
        # A copy, made in one step: the dispatcher looks without the lock, while streams come and go.
        return [stream for stream in list(self.streams) if stream.is_open and stream.free > 0]

    def put_last(self, stream: JobStream) -> None:
        if stream in self.streams:
            del self.streams[stream]
            self.streams[stream] = None


class Groups:
    """All groups of a queue, and which stream holds which job. Guarded by the dispatcher's lock."""

    def __init__(self) -> None:
        self._by_filter: dict[tuple[frozenset[str], frozenset[str] | None], Group] = {}
        self._index: FilterIndex[Group] = FilterIndex()
        #: Asked for every commit, so without another call between.
        self.matching = self._index.matching
        self.matching_any = self._index.matching_any
        #: The stream that holds a job, by the job's id.
        self.holders: dict[str, JobStream] = {}

    def __len__(self) -> int:
        return len(self._by_filter)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._by_filter.values())

    def find(self, stream: JobStream) -> Group | None:
        """Return the group of a stream; None if it has left, and nobody else has its filter."""
        return self._by_filter.get(stream.filter)

    def join(self, stream: JobStream) -> Group:
        """Put a stream into the group of its filter, which it may be the first of."""
        group = self._by_filter.get(stream.filter)
        if group is None:
            group = self._by_filter[stream.filter] = Group(stream.filter)
            self._index.add(group, *stream.filter)
        group.streams[stream] = None
        return group

    def leave(self, stream: JobStream) -> Group | None:
        """Take a stream out of its group and forget what it holds; return the group if nobody is left in it."""
        group = self._by_filter.get(stream.filter)
        if group is None:
            return None
        group.streams.pop(stream, None)
        for job_id in (*stream.held, *stream.lost):
            self.holders.pop(job_id, None)
        if group.streams:
            return None
        del self._by_filter[stream.filter]
        self._index.remove(group)
        return group

    def streams(self) -> list[JobStream]:
        return [stream for group in self for stream in group.streams]

    def held(self) -> dict[str, int]:
        """Return ids and attempts of all jobs that are with consumers."""
        return {job_id: attempt for stream in self.streams() for job_id, attempt in stream.held.items()}

    def intakes(self) -> list[Intake]:
        """Return what all streams take, one entry for those of one filter."""
        return [
            Intake(
                types=None if types is None else tuple(sorted(types)),
                tags=tuple(sorted(tags)),
                slots=sum(stream.max_assigned_jobs for stream in group.streams),
            )
            for (tags, types), group in self._by_filter.items()
        ]
