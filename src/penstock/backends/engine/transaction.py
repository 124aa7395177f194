"""One transaction, as the engine sees it: primitives that find, lock and write rows, and decide nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence

from penstock.backends.contract.values import Change, Withheld
from penstock.backends.engine.rows import (
    STATUSES,
    Gate,
    Row,
    damage_named,
    decode_key,
    decode_strings,
    job_of,
    moment_at,
    row_of,
)
from penstock.backends.engine.stored import (
    Archived,
    Blobs,
    Claim,
    Consumer,
    DeliveryRow,
    Edge,
    KeyHolder,
    Owner,
    Reach,
    UpkeepPass,
)
from penstock.errors import JobNotFoundError
from penstock.job import Job, JobStatus
from penstock.lifecycle import Verb

__all__ = [
    "DuplicateIdError",
    "Transaction",
    "claim_change",
    "emit",
    "find_row",
    "jobs_of",
    "plain_change",
    "save_rows",
    "select_rows",
]


class Transaction(ABC):
    """One transaction's primitives.

    `now` is the store's time, in microseconds. It never goes back, and where writers run side by side it goes on when a
    primitive had to wait for its locks: what is decided about rows is decided after they were locked.

    Attributes:
        has_listeners: whether `changes` are collected, for the listeners of this process.
        changes: what the transaction has changed so far.
    """

    now: int
    has_listeners: bool
    changes: list[Change]

    def expect(self, reach: Reach = Reach.OWN, ids: Collection[str] = ()) -> None:  # noqa: B027  # a store's
        """Announce what the work is going to touch, so that the next primitive that locks can lock all of it in one step.

        A store where writers run side by side overrides this: it is what keeps their locks in one order.

        Args:
            reach: how far it goes beyond the jobs that will be found.
            ids: further jobs that will be asked for.
        """

    # -- finding rows -------------------------------------------------------------------------------------------

    @abstractmethod
    def rows(self, ids: Collection[str]) -> dict[str, Row]:
        """Lock and return the jobs with these ids, those that exist."""

    @abstractmethod
    def rows_by_seq(self, seqs: Collection[int]) -> dict[int, Row]:
        """Lock and return the jobs with these insertion numbers."""

    @abstractmethod
    def rows_tagged(self, tags: Sequence[str]) -> list[Row]:
        """Lock and return the jobs that have all these tags, in insertion order."""

    @abstractmethod
    def rows_in_flight(self, assignee_id: str | None) -> list[Row]:
        """Lock and return the RUNNING and CANCELLING jobs of an assignee (None: of all), in insertion order."""

    @abstractmethod
    def rows_expired(self, limit: int) -> list[Row]:
        """Lock and return unfinished jobs with `expires_at` <= now."""

    @abstractmethod
    def rows_lost(
        self, liveness: int, gone: Collection[str], spared: Collection[str], limit: int
    ) -> list[Row]:
        """Lock and return jobs in flight whose owner or lease is gone.

        With no owner: `lease_until` <= now. With one: it is in `gone`, its row is missing, or (unless it is in
        `spared`) neither its beat nor the claim is younger than `liveness` or the job's visibility, whichever is
        shorter.
        """

    @abstractmethod
    def rows_overdue(self, grace: int, limit: int) -> list[Row]:
        """Lock and return RUNNING jobs without an owner with `deadline_at` + grace <= now."""

    @abstractmethod
    def rows_ended(self, statuses: Collection[JobStatus], before: int, limit: int) -> list[Row]:
        """Lock and return jobs in these final statuses with `finalized_at` <= before."""

    @abstractmethod
    def blobs(self, seqs: Collection[int]) -> dict[int, Blobs]:
        """Return payloads, results and checkpoints; a job may be missing if it has none."""

    # -- writing rows -------------------------------------------------------------------------------------------

    @abstractmethod
    def insert(self, rows: Sequence[Row], blobs: Sequence[Blobs]) -> None:
        """Insert new jobs with their tags and blobs, and journal them. A taken id raises `DuplicateIdError`."""

    def insert_plain(self, jobs: Sequence[Job]) -> None:
        """Insert jobs of which nothing special is asked (`Job.is_plain`), drawing their numbers.

        A store overrides this where it has a quicker way.
        """
        rows = []
        for job, seq in zip(jobs, self.reserve(len(jobs)), strict=True):
            row = row_of(job, self.now)
            row.seq = seq
            row.settle_gate(self.now)
            rows.append(row)
        self.insert(rows, [Blobs(bytes(job.payload)) for job in jobs])
        emit(self, rows)

    def insert_missing(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Do as `insert_plain` does with those whose ids are not stored, and return these.

        A store overrides this where it has a quicker way.
        """
        stored = self.stored_ids([job.id for job in jobs])
        missing = [job for job in jobs if job.id not in stored] if stored else jobs
        if missing:
            self.insert_plain(missing)
        return missing

    @abstractmethod
    def save(self, rows: Sequence[Row]) -> None:
        """Write rows that made a journaled step, and its journal row."""

    def complete_simple(self, fences: Mapping[str, int | None]) -> list[tuple[str, int, str | None]]:  # noqa: ARG002  # a store's
        """Complete at once those jobs in flight that nothing follows from: no key, no dependents, attempt right.

        A store overrides this where it has a quicker way; the jobs it leaves out go the general way.

        Args:
            fences: the attempt that reports, or None, by job id.

        Returns:
            (id, insertion number, assignee) of each job completed and journaled.
        """
        return []

    @abstractmethod
    def place(self, rows: Sequence[Row]) -> None:
        """Write `gate`, `ready_at`, `unmet` and `fan` alone; no journal row."""

    @abstractmethod
    def retag(self, row: Row) -> None:
        """Make the tag table agree with a saved row's tags."""

    @abstractmethod
    def delete(self, rows: Sequence[Row]) -> None:
        """Remove jobs with all that belongs to them except the journal."""

    @abstractmethod
    def store_results(self, results: Sequence[tuple[int, bytes | None]]) -> None:
        """Set (or clear) results by insertion number."""

    @abstractmethod
    def store_checkpoint(self, seq: int, data: bytes) -> None:
        """Set a checkpoint."""

    @abstractmethod
    def store_output(self, seq: int, data: bytes) -> None:
        """Set what a job has printed."""

    @abstractmethod
    def store_progress(self, row: Row) -> None:
        """Write `progress` and `description` alone; no journal row."""

    # -- submission ---------------------------------------------------------------------------------------------

    @abstractmethod
    def is_blocked(self) -> bool: ...

    @abstractmethod
    def set_blocked(self, blocked: bool) -> None: ...

    @abstractmethod
    def count_waiting(self) -> int:
        """Return how many jobs are INITIAL_PENDING, FAILED_RETRY or UNKNOWN_RETRY."""

    @abstractmethod
    def taken_keys(self, pairs: Collection[tuple[str, str]]) -> dict[tuple[str, str], KeyHolder]:
        """Lock these (type, idempotency key) pairs; return the holders of those that have not expired."""

    @abstractmethod
    def take_keys(self, entries: Sequence[tuple[str, str, str, int]]) -> None:
        """Take idempotency keys: (type, key, job id, expires_at or NEVER), replacing their holders."""

    @abstractmethod
    def lock_keys(self, keys: Collection[str]) -> None:
        """Keep others from changing which job of these keys comes next, until the transaction ends."""

    @abstractmethod
    def open_keys(self, keys: Collection[str]) -> set[str]:
        """Return those of the keys that have an unfinished job."""

    @abstractmethod
    def dependencies(self, ids: Collection[str]) -> dict[str, Row]:
        """Return these jobs, so locked that none of them can end before the transaction does."""

    @abstractmethod
    def stored_ids(self, ids: Collection[str]) -> set[str]:
        """Return those of the ids that are taken."""

    @abstractmethod
    def note_publication(self, writer: str, batch: int) -> bool:
        """Note that a writer publishes this batch; False if it has published it, or a later one, before."""

    @abstractmethod
    def reserve(self, count: int) -> Sequence[int]:
        """Draw insertion numbers, ascending."""

    # -- what waits for what ------------------------------------------------------------------------------------

    @abstractmethod
    def insert_edges(self, edges: Sequence[Edge]) -> None:
        """Store edges and set `fan` on the jobs waited for."""

    @abstractmethod
    def edges_onto(self, seqs: Collection[int]) -> list[Edge]:
        """Return the edges onto these jobs."""

    @abstractmethod
    def edges_of(self, seqs: Collection[int], kind: str) -> list[Edge]:
        """Return the edges of one kind that these jobs have onto others."""

    @abstractmethod
    def drop_edges_onto(self, seqs: Collection[int]) -> None: ...

    @abstractmethod
    def drop_edges_of(self, seqs: Collection[int], kind: str | None = None) -> None:
        """Forget what these jobs wait for (of one kind, or all)."""

    @abstractmethod
    def key_members(self, keys: Collection[str]) -> list[Row]:
        """Lock and return, for each key, its first unfinished job and every unfinished one not at Gate.WAITING."""

    @abstractmethod
    def first_awaited(self, row: Row) -> Row | None:
        """Return the first unfinished job of the same key that `row` waits for, directly or not."""

    # -- claiming -----------------------------------------------------------------------------------------------

    @abstractmethod
    def promote(self, limit: int) -> int:
        """Move up to `limit` delayed jobs that are due into the ready set, most urgent first; return how many."""

    def claim_eligible(self, claim: Claim, portion: int) -> list[Job]:
        """Promote what is due, in portions, and claim; `Withheld` if the claim is pushed to an unresponsive assignee.

        A store overrides this where it has a quicker way. `claim.job_ids` is None.
        """
        if claim.pushed and self.is_unresponsive(claim.assignee_id):
            return Withheld()
        jobs: list[Job] = []
        while True:
            promoted = self.promote(portion)
            jobs += self.claim(claim._replace(limit=claim.limit - len(jobs)))
            # What the claim selects may be due behind a portion of jobs that it does not select.
            if len(jobs) == claim.limit or promoted < portion:
                return jobs

    @abstractmethod
    def claim(self, claim: Claim) -> list[Job]:
        """Select and claim ready jobs in one step: in selection order, RUNNING, journaled and emitted."""

    @abstractmethod
    def renew(self, assignee_id: str, attempts: dict[str, int] | None) -> int:
        """Renew leases; return how many jobs in flight the assignee holds (of those named, if any are)."""

    # -- unresponsive assignees ---------------------------------------------------------------------------------

    @abstractmethod
    def mark_unresponsive(self, assignee_id: str) -> None:
        """Remember that an assignee was declared unresponsive."""

    @abstractmethod
    def is_unresponsive(self, assignee_id: str) -> bool: ...

    @abstractmethod
    def revive(self, assignee_ids: Collection[str]) -> None:
        """Forget that these assignees were declared unresponsive."""

    # -- owners -------------------------------------------------------------------------------------------------

    @abstractmethod
    def owners(self) -> list[Owner]: ...

    @abstractmethod
    def put_owner(self, owner: Owner) -> None: ...

    @abstractmethod
    def beat(self, owner: str, intakes: str | None = None) -> bool:
        """Record a heartbeat of an owner and (unless None) its intakes; False if it is not known."""

    @abstractmethod
    def drop_owners(self, owners: Collection[str]) -> None: ...

    # -- consumers of the journal -------------------------------------------------------------------------------

    @abstractmethod
    def consumer(self, name: str) -> Consumer | None:
        """Lock and return a consumer."""

    @abstractmethod
    def add_consumer(self, consumer: Consumer) -> None:
        """Insert a consumer unless there is one of its name."""

    @abstractmethod
    def save_consumer(self, consumer: Consumer) -> None:
        """Write an existing consumer."""

    @abstractmethod
    def drop_consumer(self, name: str) -> bool: ...

    @abstractmethod
    def last_seq(self) -> int:
        """Return the number of the journal's newest row; 0 if it is empty."""

    @abstractmethod
    def archive(self, after: int, before: int, limit: int) -> Archived | None:
        """Look at up to `limit` journal rows above `after` and remove the histories that end there and may go.

        May go: all that `Journal.archive` says, with `before` as the latest time of a last row; and only what
        the counters already have. None if there is nothing left to look at.
        """

    # -- deliveries and schedules -------------------------------------------------------------------------------

    @abstractmethod
    def save_deliveries(self, rows: Sequence[DeliveryRow]) -> None:
        """Insert or replace deliveries."""

    @abstractmethod
    def drop_deliveries(self, seqs: Sequence[int]) -> None: ...

    @abstractmethod
    def retry_deliveries(self) -> int:
        """See `Outbox.retry_deliveries`."""

    @abstractmethod
    def move_schedule(self, name: str, tick: int, after: int | None) -> bool:
        """Move a schedule from `after` (None: it is not there) to `tick`; False if its last tick is another."""

    @abstractmethod
    def drop_schedule(self, name: str) -> bool: ...

    # -- upkeep -------------------------------------------------------------------------------------------------

    def take_upkeep(self, interval: int) -> bool:  # noqa: ARG002  # a store's
        """See `Store.take_upkeep`."""
        return True

    @abstractmethod
    def last_pass(self) -> UpkeepPass:
        """Lock and return the record of the last pass of upkeep."""

    @abstractmethod
    def begin_passes(self) -> None:
        """Record the present as the last pass of upkeep, unless there was one."""

    @abstractmethod
    def record_pass(self, record: UpkeepPass) -> None:
        """Replace the record of the last pass."""

    @abstractmethod
    def tidy(self) -> None:
        """Fold counters; forget expired idempotency keys, old given-up deliveries and unresponsive assignees."""


class DuplicateIdError(Exception):
    """An inserted id is taken. `ids` are the culprits."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = tuple(ids)
        super().__init__(*self.ids)


def find_row(tx: Transaction, job_id: str) -> Row:
    """Lock and return a job.

    Raises:
        JobNotFoundError: there is no such job.
    """
    row = tx.rows([job_id]).get(job_id)
    if row is None:
        raise JobNotFoundError(job_id)
    return row


def select_rows(tx: Transaction, tags: tuple[str, ...], ids: tuple[str, ...]) -> tuple[list[Row], list[str]]:
    """Lock and return the jobs that have all tags or are listed, in insertion order, and the ids not found."""
    found: dict[int, Row] = {}
    missing: list[str] = []
    if tags:
        tx.expect(ids=ids)
        found |= {row.seq: row for row in tx.rows_tagged(tags)}
    if ids:
        listed = tx.rows(ids)
        found |= {row.seq: row for row in listed.values()}
        missing = [job_id for job_id in ids if job_id not in listed]
    return [found[seq] for seq in sorted(found)], missing


def save_rows(tx: Transaction, rows: Sequence[Row]) -> None:
    """Save rows that made a journaled step, and emit it."""
    if rows:
        tx.save(rows)
        emit(tx, rows)


def jobs_of(tx: Transaction, rows: Sequence[Row]) -> list[Job]:
    """Return the jobs of rows, with their blobs."""
    if not rows:
        return []
    blobs = tx.blobs([row.seq for row in rows])
    none = Blobs()
    with damage_named():
        return [job_of(row, *blobs.get(row.seq, none), tx.now) for row in rows]


def plain_change(job: Job, now: int) -> Change:
    """Return the change that a plain job just inserted is to listeners."""
    return Change(
        job_id=job.id,
        type=job.type,
        key=None,
        tags=job.tags,
        verb=Verb.ENQUEUE,
        from_status=None,
        status=JobStatus.INITIAL_PENDING,
        attempt=0,
        assignee_id=None,
        at=moment_at(now),
        available=True,
    )


def claim_change(job: Job, source: str) -> Change:
    """Return the change that a job just claimed is to listeners; its status was `source`."""
    return Change(
        job_id=job.id,
        type=job.type,
        key=job.key,
        tags=job.tags,
        verb=Verb.CLAIM,
        from_status=STATUSES[source],
        status=JobStatus.RUNNING,
        attempt=job.attempt,
        assignee_id=job.assignee_id,
        at=job.updated_at,  # type: ignore[arg-type]  # the claim's own moment
    )


def emit(tx: Transaction, rows: Iterable[Row], *, verb: str | None = None) -> None:
    """Collect the changes of these rows for the listeners; `verb` replaces the rows' own."""
    if not tx.has_listeners:
        return
    for row in rows:
        tx.changes.append(
            Change(
                job_id=row.id,
                type=row.type,
                key=None if row.key is None else decode_key(row.key),
                tags=decode_strings(row.tags),
                verb=verb or row.verb,
                from_status=None if row.from_status is None else STATUSES[row.from_status],
                status=STATUSES[row.status],
                attempt=row.attempt,
                assignee_id=row.assignee_id,
                at=moment_at(tx.now),
                available=row.gate == Gate.READY,
            )
        )
