"""Storing new jobs: one batch, all or nothing, dependencies first.

A batch is read in chunks, so that an iterator of millions needs little memory. Only when a job refers to one that has not
been seen yet is the rest of the input read at once, because the missing job may come last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from penstock.backends.engine import arguments
from penstock.backends.engine.rows import Row, encode_strings, job_of, micros_of, plain_as_stored, row_of
from penstock.backends.engine.settlement import end_doomed, fate_of
from penstock.backends.engine.store import (
    AFTER,
    AFTER_ANY,
    NEVER,
    SPAWNED,
    STORED,
    Blobs,
    DuplicateIdError,
    Edge,
    KeyHolder,
    Transaction,
    emit,
)
from penstock.backends.options import StoreOptions
from penstock.errors import (
    DependencyError,
    JobExistsError,
    QueueBlockedError,
    QueueFullError,
    shown,
    unknown_dependencies,
)
from penstock.job import Job, JobStatus

__all__ = ["Submission"]

CHUNK: Final = 2_000


class Submission:
    """The new jobs of one call.

    Args:
        tx: the transaction that stores them.
        options: those of the store.
        check: whether to check the jobs; False if that was done.
        all_plain: whether they are known to be plain (`Job.is_plain`).
        skips_stored: whether to leave out jobs whose id is taken.

    Attributes:
        stored: how many have been stored so far.
        jobs: those that were stored, as they are stored, by id; None unless they were asked for.
    """

    def __init__(
        self,
        tx: Transaction,
        options: StoreOptions,
        *,
        check: bool = True,
        all_plain: bool = False,
        skips_stored: bool = False,
    ) -> None:
        self._tx = tx
        self._options = options
        self._check = check
        self._all_plain = all_plain
        self._skips_stored = skips_stored
        self.stored = 0
        self.jobs: dict[str, Job] | None = None
        self._ids: list[str] = []
        self._seen: dict[str, int] = {}
        self._aliases: dict[str, str] = {}
        self._keys_taken: dict[tuple[str, str], KeyHolder] = {}
        self._count = 0
        self._waiting: int | None = None

    def run(self, jobs: Iterable[Job], *, external: bool = True) -> list[str]:
        """Insert the jobs and return their ids in input order.

        Args:
            jobs: the batch.
            external: whether they come from outside, so that a block concerns them.
        """
        if external and self._tx.is_blocked():
            raise QueueBlockedError
        if isinstance(jobs, list | tuple) and len(jobs) > CHUNK:
            # Those of all chunks at once.
            self._tx.expect(ids={ref for job in jobs for ref in (*job.after, *job.after_any)})
            self._tx.lock_keys(_keys_of(jobs))
        source = iter(jobs)
        while chunk := self._read(source, CHUNK):
            self._take(chunk, source)
        return self._ids

    def run_batch(self, jobs: Iterable[Job]) -> list[str]:
        """Do as `run` does for jobs that were given together; an error names the one that it is about."""
        try:
            return self.run(jobs)
        except DependencyError as error:
            raise error.in_batch(self._seen[error.job_id], error.job_id) from None

    def run_returning(self, jobs: Sequence[Job]) -> tuple[list[str], dict[str, Job]]:
        """Insert the jobs and return their ids in input order, and by id the jobs that were stored, as they are stored.

        What is missing there was stored before: the id is that of the job that has the idempotency key.
        """
        stored: dict[str, Job] = {}
        self.jobs = stored
        return self.run(jobs) if len(jobs) == 1 else self.run_batch(jobs), stored

    def _read(self, source: Iterator[Job], count: int | None) -> list[Job]:
        """Return the next jobs of the input, none at its end."""
        while jobs := self._read_any(source, count):
            # The rest of the input joins jobs that are not plain.
            if self._skips_stored and (count is None or not self._skips_while_inserting(jobs)):
                stored = self._tx.stored_ids([job.id for job in jobs])
                jobs = [job for job in jobs if job.id not in stored] if stored else jobs
            if jobs:
                break
        return jobs

    def _skips_while_inserting(self, jobs: Sequence[Job]) -> bool:
        """Whether stored jobs need not be left out beforehand: nothing depends on which these are."""
        return self._options.max_pending is None and self._are_plain(jobs)

    def _read_any(self, source: Iterator[Job], count: int | None) -> list[Job]:
        jobs = list(islice(source, count))
        if self._check:
            arguments.check_batch(jobs, self._options.max_payload, self._count)
        twice: list[tuple[int, str, str]] = []
        for index, job in enumerate(jobs, self._count):
            if job.id in self._seen:
                twice.append((index, job.id, "its id stands twice in the batch"))
            else:
                self._seen[job.id] = index
        first, self._count = self._count, self._count + len(jobs)
        if twice:
            failed = sorted([*twice, *self._stored_conflicts(first)])
            raise JobExistsError(failed[0][1], failed)
        return jobs

    def _stored_conflicts(self, first: int) -> list[tuple[int, str, str]]:
        """Return which jobs from an index on have an id that is stored, for an error that is certain already."""
        if self._skips_stored:
            return []
        found = self._tx.stored_ids([job_id for job_id, index in self._seen.items() if index >= first])
        return [(self._seen[job_id], job_id, STORED) for job_id in found]

    def _take(self, jobs: list[Job], source: Iterator[Job]) -> None:
        if self._are_plain(jobs):
            self._take_plain(jobs)
            return
        known = self._known_dependencies(jobs, source)
        fresh = self._without_duplicates(jobs)
        self._insert_connected(fresh, known)

    def _are_plain(self, jobs: Iterable[Job]) -> bool:
        return self._all_plain or all(job.is_plain for job in jobs)

    def _take_plain(self, jobs: Sequence[Job]) -> None:
        self._make_room(len(jobs))
        with self._conflicts_named():
            if self._skips_stored:
                jobs = self._tx.insert_missing(jobs)
            else:
                self._tx.insert_plain(jobs)
        self._ids += [job.id for job in jobs]
        self.stored += len(jobs)
        if self.jobs is not None:
            now = self._tx.now
            self.jobs |= {job.id: plain_as_stored(job, now) for job in jobs}

    def _known_dependencies(self, jobs: list[Job], source: Iterator[Job]) -> dict[str, Row]:
        """Return the stored jobs that `jobs` refer to; extends `jobs` by the rest of the input if need be."""
        while True:
            wanted = {ref for job in jobs for ref in (*job.after, *job.after_any)}
            own = {job.id for job in jobs}
            outside = {self._aliases.get(ref, ref) for ref in wanted - own}
            self._tx.expect(ids=outside)
            self._tx.lock_keys(_keys_of(jobs))
            known = self._tx.dependencies(outside) if outside else {}
            if outside <= known.keys():
                return known
            rest = self._read(source, None)
            if not rest:
                return known  # what is still missing is reported job by job
            jobs += rest

    def _without_duplicates(self, jobs: list[Job]) -> list[Job]:
        """Leave out jobs whose idempotency key is taken, noting the id that stands for each."""
        pairs = {(job.type, job.idempotency_key) for job in jobs if job.idempotency_key is not None}
        if pairs:
            self._keys_taken |= self._tx.taken_keys(pairs)
        fresh: list[Job] = []
        entries: list[tuple[str, str, str, int]] = []
        expires_at = self._tx.now + micros_of(self._options.idempotency_window)
        for job in jobs:
            if job.idempotency_key is not None:
                pair = (job.type, job.idempotency_key)
                holder = self._keys_taken.get(pair)
                if holder is not None and holder.keeps_out(job):
                    if self._skips_stored and holder.job_id in self._seen:
                        reason = f"its idempotency key {shown(job.idempotency_key)} stands twice in the batch"
                        raise JobExistsError(job.id, [(self._seen[job.id], job.id, reason)])
                    self._aliases[job.id] = holder.job_id
                    self._ids.append(holder.job_id)
                    continue
                self._keys_taken[pair] = KeyHolder(job.id, is_final=False, ends_with_job=False)
                entries.append((*pair, job.id, expires_at if job.unique is None else NEVER))
            self._ids.append(job.id)
            fresh.append(job)
        if entries:
            self._tx.take_keys(entries)
        return fresh

    def _without_aliases(self, job: Job) -> Job:
        """Let a job wait for the jobs that stand for those left out as duplicates."""
        if self._aliases.keys().isdisjoint((*job.after, *job.after_any)):
            return job
        return msgspec.structs.replace(
            job,
            after=tuple(self._aliases.get(ref, ref) for ref in job.after),
            after_any=tuple(self._aliases.get(ref, ref) for ref in job.after_any),
        )

    def _insert_connected(self, jobs: Sequence[Job], known: dict[str, Row]) -> None:
        tx = self._tx
        if self._aliases:
            jobs = [self._without_aliases(job) for job in jobs]
            own = {job.id for job in jobs}
            elsewhere = {ref for job in jobs for ref in (*job.after, *job.after_any)} - own - known.keys()
            known = known | tx.dependencies(elsewhere)
        ordered = _dependencies_first(jobs)
        families = self._families(known)
        self._make_room(len(ordered))
        numbers = tx.reserve(len(ordered))
        try:
            rows, edges, doomed = self._connected(ordered, numbers, known, families)
        except DependencyError as error:
            if error.reason != "depth" or not known:
                raise
            # A stored depth is of the time when the job was enqueued; what it waited for may have ended since.
            for row in known.values():
                row.depth = self._depth_now(row)
            rows, edges, doomed = self._connected(ordered, numbers, known, families)
        waited_for = {edge.on_seq for edge in edges}
        for row in rows.values():
            row.fan = int(row.seq in waited_for)
        self._insert(list(rows.values()), ordered)
        if edges:
            tx.insert_edges(edges)
        end_doomed(tx, doomed)
        if self.jobs is not None:
            if doomed and len(rows) > 1:
                # Others of the batch may have ended with them, or got their key's turn.
                rows = tx.rows(list(rows))
            self.jobs |= {
                job.id: job_of(rows[job.id], bytes(job.payload), job.result, job.checkpoint, tx.now)
                for job in ordered
            }

    def _connected(
        self,
        ordered: Sequence[Job],
        numbers: Sequence[int],
        known: dict[str, Row],
        families: dict[int, list[Row]],
    ) -> tuple[dict[str, Row], list[Edge], list[tuple[Row, Row]]]:
        """Return the rows by id, the edges onto what they wait for, and those that are doomed, with the cause."""
        tx = self._tx
        rows: dict[str, Row] = {}
        edges: list[Edge] = []
        doomed: list[tuple[Row, Row]] = []
        open_keys = tx.open_keys(_keys_of(ordered))
        for job, seq in zip(ordered, numbers, strict=True):
            row = row_of(job, tx.now)
            row.seq = seq
            if job.after or job.after_any:
                cause = self._connect(row, job, rows, known, families, edges)
                if cause is not None:
                    doomed.append((row, cause))
            row.settle_gate(tx.now, has_turn=row.key is None or row.key not in open_keys)
            if row.key is not None:
                open_keys.add(row.key)
            rows[row.id] = row
        return rows, edges, doomed

    def _depth_now(self, row: Row) -> int:
        """Return how many jobs are on the longest path of unfinished jobs that ends with this one."""
        depth = 0
        wave = [] if row.closed else [row.seq]
        while wave and depth <= self._options.max_depth:
            depth += 1
            wave = sorted(
                {edge.on_seq for kind in (AFTER, AFTER_ANY) for edge in self._tx.edges_of(wave, kind)}
            )
        return depth

    def _families(self, known: dict[str, Row]) -> dict[int, list[Row]]:
        """Return, by insertion number, what stored jobs have spawned; who waits for the one waits for the other."""
        started = [row.seq for row in known.values() if row.status != JobStatus.INITIAL_PENDING]
        spawned: dict[int, Row | None] = {}
        while started:
            edges = self._tx.edges_of(started, SPAWNED)
            unseen = sorted({edge.on_seq for edge in edges} - spawned.keys())
            if not unseen:
                break
            # Looked at again under the lock: what they spawn in turn may have come meanwhile.
            found = self._tx.rows_by_seq(unseen)
            spawned |= {seq: found.get(seq) for seq in unseen}
        families: dict[int, list[Row]] = {}
        for edge in sorted(edges) if spawned else ():
            row = spawned[edge.on_seq]
            if row is not None:
                families.setdefault(edge.job_seq, []).append(row)
        return families

    def _connect(
        self,
        row: Row,
        job: Job,
        rows: dict[str, Row],
        known: dict[str, Row],
        families: dict[int, list[Row]],
        edges: list[Edge],
    ) -> Row | None:
        """Work out what a job waits for, its depth and its priority; return a dependency that dooms it."""
        if len(job.after) + len(job.after_any) > arguments.MAX_DEPENDENCIES:
            raise DependencyError(
                f"job {shown(job.id)} has {len(job.after) + len(job.after_any)} dependencies; "
                f"the limit is {arguments.MAX_DEPENDENCIES}",
                reason="breadth",
                job_id=job.id,
            )
        missing = [ref for ref in (*job.after, *job.after_any) if ref not in rows and ref not in known]
        if missing:
            raise unknown_dependencies(job.id, missing)
        after = [rows.get(ref) or known[ref] for ref in job.after]
        after_any = [rows.get(ref) or known[ref] for ref in job.after_any]
        row.after = encode_strings(dependency.id for dependency in after) if after else row.after
        row.after_any = (
            encode_strings(dependency.id for dependency in after_any) if after_any else row.after_any
        )
        unfinished_depths = [each.depth for each in (*after, *after_any) if not each.closed]
        row.depth = 1 + max(unfinished_depths, default=0)
        if row.depth > self._options.max_depth:
            raise DependencyError(
                f"job {shown(job.id)} would be number {row.depth} in a chain of unfinished jobs; "
                f"the limit is {self._options.max_depth}",
                reason="depth",
                job_id=job.id,
            )
        row.priority = min(row.priority, *(dependency.priority for dependency in (*after, *after_any)))
        if families:
            spawned = (each for dependency in after for each in families.get(dependency.seq, ()))
            after = list({each.seq: each for each in (*after, *spawned)}.values())
        cause = next((dependency for dependency in after if fate_of(dependency) is not None), None)
        unfinished = [dependency for dependency in after if not dependency.closed]
        edges += [Edge(dependency.seq, row.seq, AFTER) for dependency in unfinished]
        row.unmet = len(unfinished)
        if after_any and not any(dependency.closed for dependency in after_any):
            edges += [Edge(dependency.seq, row.seq, AFTER_ANY) for dependency in after_any]
            row.unmet += 1
        if cause is not None:
            row.unmet += 1  # it must not become eligible before it ends
        return cause

    def _insert(self, rows: Sequence[Row], jobs: Sequence[Job]) -> None:
        blobs = [Blobs(bytes(job.payload), job.result, job.checkpoint) for job in jobs]
        with self._conflicts_named():
            self._tx.insert(rows, blobs)
        self.stored += len(rows)
        emit(self._tx, rows)

    def _make_room(self, count: int) -> None:
        limit = self._options.max_pending
        if limit is None:
            return
        # Counted once, and again only before a refusal: a batch of millions has hundreds of chunks.
        if self._waiting is None or self._waiting + count > limit:
            self._waiting = self._tx.count_waiting()
        if self._waiting + count > limit:
            raise QueueFullError(limit=limit, waiting=self._waiting)
        self._waiting += count

    @contextlib.contextmanager
    def _conflicts_named(self) -> Iterator[None]:
        try:
            yield
        except DuplicateIdError as error:
            failed = [(self._seen[taken], taken, STORED) for taken in error.ids]
            raise JobExistsError(error.ids[0], failed) from None


def _keys_of(jobs: Iterable[Job]) -> set[str]:
    return {encode_strings(job.key) for job in jobs if job.key is not None}


def _dependencies_first(jobs: Sequence[Job]) -> list[Job]:
    """Return jobs so ordered that each follows what it waits for, otherwise as given."""
    by_id = {job.id: job for job in jobs}
    done: dict[str, Job] = {}
    for job in jobs:
        path: dict[str, Iterator[str]] = {}
        _descend(job, path, done)
        while path:
            current, refs = next(reversed(path.items()))
            ref = next((ref for ref in refs if ref in by_id and ref not in done), None)
            if ref is None:
                done[current] = by_id[current]
                del path[current]
            elif ref in path:
                cycle = " → ".join([*list(path)[list(path).index(ref) :], ref])
                raise DependencyError(
                    f"the dependencies form a cycle: {cycle}", reason="cycle", job_id=ref, value=cycle
                )
            else:
                _descend(by_id[ref], path, done)
    return list(done.values())


def _descend(job: Job, path: dict[str, Iterator[str]], done: dict[str, Job]) -> None:
    if job.id not in done:
        path[job.id] = iter((*job.after, *job.after_any))
