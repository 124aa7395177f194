"""How a store finds the jobs of a selection: the plan is the same for both databases, the words differ a little.

A page goes through a bounded number of rows, however few of them match: a caller that wants more asks again from where the
page ended. Three ways, by what is given:

- tags: along the rows of the rarest tag, which lie in insertion order;
- statuses that few jobs have: by the indexes of those statuses, walked whole for each page, so pages may be large;
- anything else: along the jobs themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from penstock.backends.contract.selection import JobPage, NumberedJob, StatusFilter
from penstock.job import JobStatus

__all__ = ["MAX_SELECTED", "SelectionReader", "Wanted", "select_page"]

#: The largest page.
MAX_SELECTED: Final = 100_000
#: Rows that one page goes through where no index leads to the matching ones.
ROWS_PER_PAGE: Final = 50_000
#: An index leads to rows all over the table: it pays if at most one job in so many has the status.
RARE: Final = 20
_LAST: Final = 2**62


class Wanted(NamedTuple):
    """A selection as stores compare it: texts as they are stored, times in microseconds."""

    statuses: StatusFilter | None
    types: Sequence[str]
    tags: Sequence[str]
    key: str | None
    since: int | None
    until: int | None
    error: str | None
    spares_propagated: bool


class SelectionReader(Protocol):
    """One connection of a store, inside one read."""

    #: Return the position of the second text in the first, or 0.
    find_text: str

    def fetch(self, query: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a query whose parameters are written `:name`, and whose tables are written {job} and {job_tag}."""
        ...

    def rarest_tag(self, tags: Sequence[str]) -> str: ...

    def status_counts(self) -> dict[str, int]:
        """Return how many jobs have each status; may lag behind."""
        ...

    def places(self, status: JobStatus) -> Sequence[str] | None:
        """Return where the jobs of a status are, as "table WHERE condition"; None if no index leads there."""
        ...


def select_page(
    reader: SelectionReader, wanted: Wanted, after: int | None, upto: int | None, limit: int, *, newest: bool
) -> JobPage:
    """Return a page of the selected jobs with numbers up to `upto`, beyond `after`."""
    finder = _Finder(reader, wanted, newest=newest)
    last = _LAST if upto is None else upto
    start = (last + 1 if newest else 0) if after is None else after
    if newest:
        start = min(start, last + 1)
    end = 0 if newest else last
    if wanted.tags:
        return finder.along_tag(start, end, limit)
    if finder.is_rare():
        return finder.by_status(start, end, limit)
    return finder.along_jobs(start, end, limit)


class _Finder:
    def __init__(self, reader: SelectionReader, wanted: Wanted, *, newest: bool) -> None:
        self._reader = reader
        self._wanted = wanted
        self._parameters: dict[str, Any] = {}
        self._beyond, self._upto, self._order = ("<", ">=", " DESC") if newest else (">", "<=", "")
        self._step = -1 if newest else 1
        self._conditions = self._compiled()

    def _compiled(self) -> str:
        """Return the conditions on a job's row, and note their parameters."""
        wanted, found = self._wanted, []
        if wanted.statuses is not None:
            listed = ", ".join(f"'{each}'" for each in wanted.statuses.statuses)
            found.append(f"job.status IN ({listed})")
            if wanted.statuses.released is not None:
                compared = "=" if wanted.statuses.released else "<>"
                found.append(f"(job.status <> 'failed_retry' OR job.verb {compared} 'release')")
        if wanted.types:
            found.append(f"job.type IN ({', '.join(self._named('type', wanted.types))})")
        if wanted.key is not None:
            found.append(f"job.key = {self._named('key', [wanted.key])[0]}")
        if wanted.since is not None:
            found.append(f"job.created_at >= {self._named('since', [wanted.since])[0]}")
        if wanted.until is not None:
            found.append(f"job.created_at < {self._named('until', [wanted.until])[0]}")
        if wanted.error is not None:
            text = self._named("error", [wanted.error.lower()])[0]
            found.append(f"{self._reader.find_text}(lower(job.error_message), {text}) > 0")
        if wanted.spares_propagated:
            found.append("job.verb <> 'propagate'")
        return "".join(f" AND {each}" for each in found)

    def _named(self, name: str, values: Sequence[Any]) -> list[str]:
        self._parameters |= {f"{name}_{number}": value for number, value in enumerate(values)}
        return [f":{name}_{number}" for number in range(len(values))]

    # -- ways ---------------------------------------------------------------------------------------------------

    def is_rare(self) -> bool:
        """Whether indexes lead to the wanted statuses, and few jobs have them."""
        statuses = () if self._wanted.statuses is None else self._wanted.statuses.statuses
        if not statuses or any(self._reader.places(each) is None for each in statuses):
            return False
        counts = self._reader.status_counts()
        return sum(counts.get(each, 0) for each in statuses) * RARE < sum(counts.values())

    def by_status(self, start: int, end: int, limit: int) -> JobPage:
        statuses = self._wanted.statuses.statuses if self._wanted.statuses is not None else ()
        places = dict.fromkeys(place for each in statuses for place in self._reader.places(each) or ())
        span = f"job.seq {self._beyond} :start AND job.seq {self._upto} :end"
        parts = " UNION ALL ".join(
            f"SELECT job.seq, job.id FROM {place} AND {span}{self._conditions}" for place in places
        )
        found = self._rows(f"{parts} ORDER BY 1{self._order} LIMIT :limit", start, end, limit)
        return JobPage(found, found[-1].number if len(found) == limit else None)

    def along_jobs(self, start: int, end: int, limit: int) -> JobPage:
        """Look at jobs one after the other; gaps between numbers are jumped over."""
        found: list[NumberedJob] = []
        rows = ROWS_PER_PAGE
        while rows > 0:
            first = self._reader.fetch(
                f"SELECT seq FROM {{job}} WHERE seq {self._beyond} :start AND seq {self._upto} :end"
                f" ORDER BY seq{self._order} LIMIT 1",
                {"start": start, "end": end},
            )
            if not first:
                return JobPage(found, None)
            start = int(first[0][0]) - self._step
            reached = start + self._step * rows
            reached = min(reached, end) if self._step > 0 else max(reached, end)
            rows -= abs(reached - start)
            found += self._between(start, reached, limit - len(found))
            if len(found) == limit:
                return JobPage(found, found[-1].number)
            start = reached
        return JobPage(found, start)

    def _between(self, start: int, end: int, limit: int) -> list[NumberedJob]:
        query = (
            f"SELECT job.seq, job.id FROM {{job}} WHERE job.seq {self._beyond} :start AND job.seq {self._upto} :end"
            f"{self._conditions} ORDER BY job.seq{self._order} LIMIT :limit"
        )
        return self._rows(query, start, end, limit)

    def along_tag(self, start: int, end: int, limit: int) -> JobPage:
        rarest = self._reader.rarest_tag(self._wanted.tags)
        span = f"tag = :rarest AND seq {self._beyond} :start AND seq {self._upto} :end"
        bound = self._reader.fetch(
            f"SELECT seq FROM {{job_tag}} WHERE {span} ORDER BY seq{self._order} LIMIT 1 OFFSET {ROWS_PER_PAGE - 1}",
            {"rarest": rarest, "start": start, "end": end},
        )
        reached = int(bound[0][0]) if bound else end
        others = self._named("tag", [each for each in self._wanted.tags if each != rarest])
        also = "".join(
            f" AND EXISTS (SELECT 1 FROM {{job_tag}} AS other WHERE other.tag = {each} AND other.seq = job.seq)"
            for each in others
        )
        self._parameters["rarest"] = rarest
        query = (
            "SELECT job.seq, job.id FROM {tagged_job} WHERE job_tag.tag = :rarest"
            f" AND job_tag.seq {self._beyond} :start AND job_tag.seq {self._upto} :end{also}{self._conditions}"
            f" ORDER BY job_tag.seq{self._order} LIMIT :limit"
        )
        found = self._rows(query, start, reached, limit)
        if len(found) == limit:
            return JobPage(found, found[-1].number)
        return JobPage(found, reached if bound else None)

    def _rows(self, query: str, start: int, end: int, limit: int) -> list[NumberedJob]:
        given = {"start": start, "end": end, "limit": limit, **self._parameters}
        return [NumberedJob(number, job_id) for number, job_id in self._reader.fetch(query, given)]
