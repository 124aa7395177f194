"""The services of a queue: one claims jobs for all its streams, one sends heartbeats, one does the upkeep.

    commits of this process ──listener──► dirty groups ──► claim, many streams per transaction ──► streams
    other processes ──notification, poll──►    ▲                        │
                                               └── attempts that end ◄──┘

Streams with the same filter form a group. A group is *dirty* when there may be a job for it: a job became eligible, a slot
became free, a stream opened, another process changed the store. The dispatcher takes the dirty groups, clears the mark, and
claims for their streams. Whatever happens during a claim marks groups again, so no wake-up is lost. A claim that returns
less than its limit has emptied its filter, and the rest of that group need not claim.

The database decides which stream gets a job, and whether an attempt is still held. The process assumes that a slot is
occupied until it sees the attempt end. Its own commits it sees exactly, by the store's listener. Those of other
processes it learns of by a notification or a cheap poll every `poll_seconds`; then it asks which types and tags are ready,
so that of thousands of groups only those that may find something are dirty, and which held jobs have ended elsewhere.

If the store fails, calls that may succeed later are retried for `OUTAGE_SECONDS`; then all streams end with the error.

Heartbeats (`penstock.queue._owner`) have a thread of their own, because one pass of upkeep may take long.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Final, TypeVar

from penstock.backends import Backend, Change, ClaimRequest, Withheld
from penstock.errors import BackendError, PenstockError, QueueClosedError
from penstock.job import ELIGIBLE, IN_FLIGHT, Job, JobStatus, Key
from penstock.lifecycle import Verb
from penstock.liveness import upkeep_seconds
from penstock.logs import retry_level
from penstock.queue._groups import Group, Groups
from penstock.queue._held import HeldJobs
from penstock.queue._owner import QueueOwner
from penstock.queue._releases import Releases
from penstock.queue._withholding import Withholding
from penstock.queue.stream import JobStream
from penstock.service import Backoff, Service, start_together

__all__ = ["Dispatcher"]

logger = logging.getLogger("penstock")
T = TypeVar("T")

STREAMS_PER_CLAIM: Final = 64
OUTAGE_SECONDS: Final = 30.0  # streams survive a store that says "try again" for this long
MIN_RETRY_SECONDS: Final = 0.05
MAX_RETRY_SECONDS: Final = 1.0
FULL_POLL_SECONDS: Final = 1.0  # without any notification, everything is polled this often
DUE_POLL_SECONDS: Final = 0.25
FEW_GROUPS: Final = 8
MAX_PER_COMMIT: Final = 16  # jobs of one commit that are delivered with it; more are left to the dispatcher


class Dispatcher:
    """Claims for the streams of one queue."""

    def __init__(self, backend: Backend, after_commits: Callable[[], None]) -> None:
        self._backend = backend
        self._after_commits = after_commits
        self._pid = os.getpid()
        self.lock = threading.RLock()
        self._work = threading.Condition(self.lock)
        self._rest = threading.Condition(self.lock)
        self._groups = Groups()
        self._dirty: dict[Group, None] = {}
        self._withholding = Withholding(self._groups)
        self.owner = QueueOwner(backend, self.lock, self._groups)
        self._held = HeldJobs(self._groups, self.owner, self._mark)
        self._releases = Releases(backend, self.lock)
        #: The streams of the claim that is under way at the store.
        self._claimed_for: frozenset[JobStream] = frozenset()
        #: Streams that are being closed.
        self._closing: set[JobStream] = set()
        #: Slots that were offered to a commit under way.
        self._offered: list[tuple[Group, JobStream, int]] = []
        self._is_notified = False
        self._is_due_unknown = True
        self._next_poll = time.monotonic() + FULL_POLL_SECONDS
        self._next_due_poll = self._last_due_poll = 0.0
        self._dispatching = Service("dispatch", self._dispatch, interrupt=self._wake)
        #: Empty until something is held.
        self._services: tuple[Service, ...] = ()
        self._is_stopping = False
        self._unlisten: Callable[[], None] | None = None
        self._unwatch: Callable[[], None] | None = None
        self._unserve: Callable[[], None] | None = None

    # -- streams ------------------------------------------------------------------------------------------------

    def _check_fork(self) -> None:
        """Reset this object in the child of a fork: threads, streams and locks are the parent's."""
        if self._pid != os.getpid():
            self.__init__(self._backend, self._after_commits)  # type: ignore[misc]  # all state is per process

    def open(
        self, assignee_id: str, tags: tuple[str, ...], capacity: int, types: tuple[str, ...] | None
    ) -> JobStream:
        """Register a stream and serve it at once."""
        self._check_fork()
        with self.lock:
            if self._is_stopping:
                raise QueueClosedError
            stream = JobStream(self, assignee_id, tags, capacity, types)
            self._start()
            self._mark(self._groups.join(stream))
            self.owner.intakes_changed()
        return stream

    def resize(self, stream: JobStream, capacity: int) -> None:
        """Change a stream's capacity and serve it if that has freed a slot."""
        with self.lock:
            stream.max_assigned_jobs = capacity
            self.owner.intakes_changed()
            group = self._groups.find(stream)
            if group is not None and stream.free > 0:
                self._mark(group)

    def claim_beyond(self, stream: JobStream, job_ids: Collection[str] | None, key: Key | None) -> Job | None:
        """Claim a job for a stream's consumer, whatever its capacity; see `JobStream.claim_beyond`."""
        owner = self.owner.live_id()
        ids = None if job_ids is None else list(job_ids)
        try:
            jobs = self._backend.dequeue_jobs(
                stream.assignee_id, stream.tags, 1, types=stream.types, job_ids=ids, key=key, owner=owner
            )
        except BackendError as error:
            if error.outcome_unknown:
                self.outcome_unknown()
            raise
        with self.lock:
            self._held.add_beyond(stream, jobs)
        self.owner.hold(jobs)
        self._after_commits()
        return jobs[0] if jobs else None

    def set_waiting(self, stream: JobStream, number: int) -> None:
        """Publish how many jobs of a stream's consumer wait for other jobs."""
        with self.lock:
            stream.waiting = number
            self.owner.intakes_changed()

    def hold(self, types: Sequence[str] | None = None) -> str:
        """Return this process's owner id, for a claim of these types outside streams; it beats from now on."""
        self._check_fork()
        with self.lock:
            if self._is_stopping:
                raise QueueClosedError
            self._start()
            self.owner.add_manual(types)
        return self.owner.live_id()

    def end(self, *streams: JobStream, error: BaseException | None = None) -> None:
        """Close streams and release what their consumers have not received, before returning."""
        own = [stream for stream in streams if not stream.is_foreign()]
        if not own:
            return  # in the child of a fork: the streams, their jobs and the lock are the parent's
        with self.lock:
            closing = [stream for stream in own if stream.is_open]
            undelivered: list[Job] = []
            for stream in closing:
                self._closing.add(stream)
                undelivered += stream.shut(error)
                group = self._groups.leave(stream)
                if group is not None:
                    self._dirty.pop(group, None)
            if closing:
                self.owner.intakes_changed()
            self._held.drop(undelivered)
        try:
            with self.lock:
                # What a claim under way returns for them is released by the dispatcher; no later one is for them.
                while not self._is_own_thread() and any(
                    stream in self._claimed_for or stream.reserved for stream in closing
                ):
                    self._rest.wait()
                for stream in closing:
                    undelivered += stream.late
                    stream.late = []
            self._releases.release(undelivered)
        except BaseException:
            with self.lock:
                self._releases.pending += undelivered  # retried for as long as this process holds them
            raise
        finally:
            with self.lock:
                for stream in closing:
                    self._closing.discard(stream)
                    self._releases.pending += stream.late
                    stream.late = []
                self._rest.notify_all()
        with self.lock:
            while not self._is_own_thread() and not self._closing.isdisjoint(own):
                self._rest.wait()  # another thread is closing them

    # -- the life cycle -----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Close all streams and end the threads. A failed step does not prevent the others."""
        self._check_fork()
        with self.lock:
            self._is_stopping = True
            streams = self._groups.streams()
        with contextlib.ExitStack() as steps:  # from the last to the first
            steps.callback(self.owner.close)
            for step in (self._unlisten, self._unwatch, self._unserve):
                if step is not None:
                    steps.callback(step)
            steps.callback(self._stop_services)
            steps.callback(self.end, *streams)

    def _stop_services(self) -> None:
        for service in self._services:
            service.stop(wait=False)
        for service in self._services:
            service.join()

    def _start(self) -> None:
        """Register as owner and start the threads, if that has not happened yet: wholly or not at all."""
        if self._services:
            return
        upkeep = Service(
            "upkeep", self._do_upkeep, seconds=upkeep_seconds(self._backend), begins_with_pause=True
        )
        services = (self._dispatching, self.owner.heartbeat, upkeep)
        with contextlib.ExitStack() as undo:
            self.owner.open()
            undo.callback(self.owner.close)
            unlisten = self._backend.runtime.listen(self._on_commit)
            undo.callback(unlisten)
            unwatch = self._backend.runtime.watch(self._on_notification)
            undo.callback(unwatch)
            unserve = self._backend.runtime.serve(self)
            undo.callback(unserve)
            start_together(*services)
            undo.pop_all()
        self._unlisten, self._unwatch, self._unserve = unlisten, unwatch, unserve
        self._services = services

    def _wake(self) -> None:
        with self.lock:
            self._work.notify_all()

    def _is_own_thread(self) -> bool:
        return any(service.is_current for service in self._services)

    # -- changes ------------------------------------------------------------------------------------------------

    def _on_commit(self, changes: Sequence[Change]) -> None:
        """Note what a commit of this process changed. Called by the store: quick, and never raises."""
        with self.lock:
            kinds: dict[tuple[str, tuple[str, ...]], None] = {}
            claimed = {change.job_id for change in changes if change.verb == Verb.CLAIM}
            for change in changes:
                if change.verb == Verb.UNRESPONSIVE:
                    self._withholding.reclaim(
                        change.assignee_id or "", change.job_id, change.attempt, is_now=True
                    )
                if change.available and change.job_id not in claimed:
                    kinds[change.type, change.tags] = None
                elif change.status in ELIGIBLE:
                    self._is_due_unknown = True  # it may be delayed, and due before the next poll
                if change.from_status in IN_FLIGHT and change.status not in IN_FLIGHT:
                    self._held.end_attempt(change.job_id, change.attempt, change.verb, change.status)
                elif self._withholding.is_sign_of_life(change):
                    self.revive(change.assignee_id or "")
            for type_, tags in kinds:
                for group in self._groups.matching(type_, tags):
                    self._mark(group)

    def _on_notification(self) -> None:
        """Note that another process has committed something."""
        with self.lock:
            self._is_notified = True
            self._work.notify_all()

    def _mark(self, group: Group) -> None:
        if not self._dirty:
            self._work.notify_all()
        self._dirty[group] = None

    # -- claims in the commits of this process ------------------------------------------------------------------

    def wants(self, type: str, tags: Sequence[str]) -> bool:
        """Whether a stream has capacity for such a job, and no claim for it is about to be made."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            is_busy = self._held.is_claiming or self._dirty or self._offered or self._is_stopping
            return not is_busy and any(group.with_capacity() for group in self._groups.matching(type, tags))
        finally:
            self.lock.release()

    def requested(self, changes: Sequence[Change]) -> Sequence[ClaimRequest]:
        """Return claims for jobs that are about to be committed. Called by the store, inside a transaction."""
        available = [change for change in changes if change.available]
        if len(available) > MAX_PER_COMMIT or not self.lock.acquire(blocking=False):
            return ()
        try:
            # One offer at a time, also where several transactions are.
            is_busy = self._held.is_claiming or self._dirty or self._offered or self.owner.is_uncertain
            if is_busy or self._is_stopping or self.owner.needs_beat():
                return ()
            wanted: Counter[Group] = Counter()
            for change in available:
                wanted.update(itertools.islice(self._groups.matching(change.type, change.tags), 1))
            self._offered = [
                (group, stream, min(stream.free, count))
                for group, count in wanted.items()
                for stream in group.with_capacity()[:1]
            ]
            for _, stream, count in self._offered:
                stream.reserved += count
            return [self._request(stream, count, self.owner.id) for _, stream, count in self._offered]
        finally:
            self.lock.release()

    def deliver(self, jobs: Sequence[list[Job]]) -> None:
        """Deliver what was claimed in such a commit, one list per request; an empty sequence frees the slots again."""
        with self.lock:
            offered, self._offered = self._offered, []
            for (group, stream, count), batch in zip(offered, jobs or [[]] * len(offered), strict=True):
                stream.reserved -= count
                if jobs:
                    self._note_answer(group, stream, batch)
                if stream.is_open:
                    self._held.deliver(group, stream, batch)
                elif stream in self._closing:
                    stream.late += batch
                else:
                    self._releases.pending += batch
            self._rest.notify_all()
            if self._releases.pending:
                self._work.notify_all()

    def outcome_unknown(self) -> None:
        """Note that a claim may or may not have been committed; see `QueueOwner.outcome_unknown`."""
        with self.lock:
            offered, self._offered = self._offered, []
            for _, stream, count in offered:
                stream.reserved -= count
            if self.owner.outcome_unknown():
                for group in self._groups:
                    self._mark(group)  # the next claim is made under the new owner

    # -- unresponsive assignees ---------------------------------------------------------------------------------

    def restore_lost(self, assignee_id: str | None) -> None:
        """Free the lost slots of an assignee; None is of all."""
        self._check_fork()
        with self.lock:
            self._held.restore_lost(assignee_id)

    def withhold(self, assignee_id: str) -> None:
        """Deliver nothing to an assignee that was declared unresponsive, but free its lost slots."""
        self.restore_lost(assignee_id)
        with self.lock:
            self._withholding.withhold(assignee_id, is_now=True)

    def is_withheld(self, assignee_id: str) -> bool:
        """Whether streams of this queue do not serve an assignee."""
        return assignee_id in self._withholding

    def revive(self, assignee_id: str) -> None:
        """Serve an assignee again after a sign of life."""
        with self.lock:
            for group in self._withholding.revive(assignee_id):
                self._mark(group)

    def note_refused(self, job_id: str, attempt: int) -> None:
        """Take a refused report as a sign of life, if the job was reclaimed from its reporter."""
        with self.lock:
            assignee_id = self._withholding.reporter_of(job_id, attempt)
        if assignee_id is not None:
            self._backend.heartbeat(assignee_id)
            self.revive(assignee_id)

    def _note_answer(self, group: Group, stream: JobStream, jobs: Sequence[Job]) -> None:
        """Derive from the answer to a claim whether its assignee is served."""
        if isinstance(jobs, Withheld):
            self._withholding.withhold(stream.assignee_id)
            self._mark(group)  # for its other streams
        elif stream.is_new:
            stream.is_new = False
            self.revive(stream.assignee_id)

    # -- dispatching --------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Wait for dirty groups, a notification or the next poll, and claim."""
        with self.lock:
            if not self._dirty and not self._is_notified and not self._dispatching.is_stopping:
                self._work.wait(self._backend.runtime.poll_seconds)
            if self._dispatching.is_stopping:
                return
            is_notified, self._is_notified = self._is_notified, False
            is_due_unknown, self._is_due_unknown = self._is_due_unknown, False
            # A few groups claim at once instead of polling first, which would delay the job.
            claims_for_all = is_notified and len(self._groups) <= FEW_GROUPS
            dirty = list(self._groups if claims_for_all else self._dirty)
        try:
            self._releases.release_pending()
            if dirty:
                self._serve(dirty)
                self._after_commits()
            now = time.monotonic()
            # However busy some streams are, the others must learn what happened elsewhere.
            if is_notified or now >= self._next_poll or (not dirty and self._has_foreign_changes()):
                self._next_poll = now + FULL_POLL_SECONDS
                is_due_unknown = True
                self._poll(has_claimed=claims_for_all)
            # And however much happens elsewhere, delayed jobs become eligible in time.
            if is_due_unknown:
                self._next_due_poll = min(
                    self._next_due_poll, self._last_due_poll + self._backend.runtime.poll_seconds
                )
            if now >= self._next_due_poll:
                self._last_due_poll = now
                self._next_due_poll = now + self._promote_due()
        except PenstockError as error:
            self._fail(error)
        except Exception as error:  # a defect of ours must end the streams, not hang them
            logger.exception("the dispatcher failed")
            self._fail(error)

    def _has_foreign_changes(self) -> bool:
        return bool(self._groups) and self._retry(self._backend.runtime.has_foreign_changes)

    def _promote_due(self) -> float:
        """Promote delayed jobs that are due; return the seconds until the next poll for them."""
        due = self._retry(self._backend.runtime.next_due) if self._groups else None
        if due is not None and due <= 0:
            with self.lock:
                # Any claim promotes them all, and the listener says which groups that concerns.
                group = next((each for each in self._groups if each.with_capacity()), None)
                if group is not None:
                    self._mark(group)
            return self._backend.runtime.poll_seconds
        return DUE_POLL_SECONDS if due is None else min(due, DUE_POLL_SECONDS)

    def _poll(self, *, has_claimed: bool) -> None:
        """Find out what other processes did: slots freed elsewhere, jobs that became eligible.

        Args:
            has_claimed: whether a claim for all streams has just looked for such jobs.
        """
        with self.lock:
            held = self.owner.short_holds() | self._groups.held()
            withheld = self._withholding.assignees
        ended = self._retry(lambda: self._backend.runtime.released(held)) if held else {}
        unresponsive = (
            self._retry(lambda: self._backend.runtime.unresponsive(withheld)) if withheld else set()
        )
        asks_for_ready = not has_claimed and len(self._groups) > FEW_GROUPS
        ready = self._retry(self._backend.runtime.ready_filters) if asks_for_ready else None
        with self.lock:
            for job_id, verb in ended.items():
                stream = self._held.stream_of(job_id)
                if verb == Verb.UNRESPONSIVE and stream is not None:
                    self._withholding.reclaim(stream.assignee_id, job_id, held[job_id])
                status = JobStatus.UNKNOWN_STOPPED if verb == Verb.ACKNOWLEDGE else JobStatus.COMPLETED
                self._held.end_attempt(job_id, held[job_id], verb, status)
            for assignee_id in withheld - unresponsive:
                self.revive(assignee_id)
            if has_claimed:
                return
            for group in self._groups if ready is None else self._groups.matching_any(*ready):
                self._mark(group)

    def _serve(self, dirty: list[Group]) -> None:
        """Claim for dirty groups: once for every stream, or until a group is full or its filter is empty.

        Streams that are emptied as fast as they are filled are served again after all others.
        """
        with self.lock:
            for group in dirty:
                self._dirty.pop(group, None)
            self._held.begin_claims()
        try:
            width = 1
            most = max(len(group.streams) for group in dirty)
            while dirty and width < 4 * most:
                round_ = [(group, stream) for group in dirty for stream in group.next_up(width)]
                if not round_:
                    return
                emptied: set[Group] = set()
                for start in range(0, len(round_), STREAMS_PER_CLAIM):
                    emptied |= self._claim(round_[start : start + STREAMS_PER_CLAIM])
                dirty = [group for group in dirty if group not in emptied and group.with_capacity()]
                width *= 4
        finally:
            with self.lock:
                for group in dirty:
                    if group.with_capacity():
                        self._mark(group)
                self._held.end_claims()
                self._rest.notify_all()

    def _claim(self, streams: list[tuple[Group, JobStream]]) -> set[Group]:
        """Claim for some streams in one transaction; return the groups for which nothing is left."""
        return self._retry(lambda: self._claim_once(streams))

    def _claim_once(self, streams: list[tuple[Group, JobStream]]) -> set[Group]:
        owner = self.owner.live_id()
        with self.lock:
            streams = [(group, stream) for group, stream in streams if stream.is_open and stream.free > 0]
            requests = [self._request(stream, stream.free, owner) for _, stream in streams]
            self._claimed_for = frozenset(stream for _, stream in streams)
        emptied: set[Group] = set()
        undelivered: list[Job] = []
        try:
            found = self._claim_for(requests) if requests else []
            with self.lock:
                for (group, stream), request, jobs in zip(streams, requests, found, strict=True):
                    self._note_answer(group, stream, jobs)
                    if len(jobs) < request.limit and not isinstance(jobs, Withheld):
                        emptied.add(group)
                    if stream.is_open:
                        self._held.deliver(group, stream, jobs)
                    else:
                        undelivered += jobs
            if undelivered:
                with self.lock:
                    self._releases.pending += undelivered
                self._releases.release_pending()
        finally:
            with self.lock:
                self._claimed_for = frozenset()
                self._rest.notify_all()
        return emptied

    def _claim_for(self, requests: list[ClaimRequest]) -> list[list[Job]]:
        try:
            return self._backend.dequeue_jobs_for(requests)
        except BackendError as error:
            if error.outcome_unknown:
                self.outcome_unknown()
            raise

    def _request(self, stream: JobStream, limit: int, owner: str | None) -> ClaimRequest:
        return ClaimRequest(
            assignee_id=stream.assignee_id,
            tags=stream.tags,
            limit=limit,
            types=stream.types,
            owner=owner,
            pushed=True,
            revives=stream.is_new,
        )

    def _retry(self, call: Callable[[], T]) -> T:
        """Call, and call again while the store says that this may help, with growing pauses, for a limited time."""
        backoff, fails_at = Backoff(MIN_RETRY_SECONDS, MAX_RETRY_SECONDS), None
        while True:
            try:
                return call()
            except BackendError as error:
                now = time.monotonic()
                fails_at = now + OUTAGE_SECONDS if fails_at is None else fails_at
                if not error.retryable or now >= fails_at or not self._groups:
                    raise
                if backoff.is_first:
                    logger.log(retry_level(error), "the store failed and is retried: %s", error)
                if not self._dispatching.pause(backoff.next()):
                    raise

    def _fail(self, error: Exception) -> None:
        """End all streams with the store's error."""
        if self._dispatching.is_stopping:
            return
        with self.lock:
            streams = self._groups.streams()
        with contextlib.suppress(PenstockError):
            self.end(*streams, error=error)

    # -- upkeep -------------------------------------------------------------------------------------------------

    def _do_upkeep(self) -> None:
        """Enforce execution limits, and do the store's upkeep when it is this process's turn."""
        if self.owner.limits.enforce():
            self._after_commits()
        if self._backend.runtime.take_upkeep(timedelta(seconds=upkeep_seconds(self._backend))):
            self._backend.maintain()
            self._after_commits()
