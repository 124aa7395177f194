"""The threads of a queue: one claims jobs for all its streams, one says that the process lives, one does the upkeep.

Streams with the same filter form a group. A group is *dirty* when there may be something for it: a job became takeable,
a slot became free, a stream opened, another process changed the store. The dispatcher takes the dirty groups, clears the
mark, and claims for their streams, many claims in one transaction. Whatever happens while it claims marks groups dirty
again, so no wake-up is lost. A claim that brings less than was asked for has emptied its filter: the rest of that group
need not ask.

What this process commits is told by the store's listener, exactly. What other processes commit is noticed by a cheap
look every `poll_seconds`; then the store is asked which types and tags are ready, so that of thousands of groups only
those that may find something are dirty, and held jobs that ended elsewhere give their slots back.

Beats (`penstock._presence`) have a thread of their own, because an upkeep may take long.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, TypeVar

from penstock._groups import Group, Groups
from penstock._presence import Presence, going_on
from penstock.backends.base import Backend, Change, ClaimRequest
from penstock.errors import BackendError, PenstockError, QueueClosedError, ReportErrors
from penstock.job import ELIGIBLE, IN_FLIGHT, Job, JobStatus
from penstock.lifecycle import Verb
from penstock.scope import shielded
from penstock.stream import JobStream

__all__ = ["Dispatcher"]

logger = logging.getLogger("penstock")
T = TypeVar("T")

STREAMS_PER_CLAIM: Final = 64
OUTAGE_SECONDS: Final = 30.0  # streams outlive a store that says "try again" for this long
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
UPKEEP_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 1.0  # without any hint, the store is looked at this often
DUE_LOOK_SECONDS: Final = 0.25
FEW_GROUPS: Final = 8
MOST_AT_ONCE: Final = 16  # jobs of one commit that are handed out with it; more are work for the dispatcher
THREADS: Final = 3
NOT_DELIVERED: Final = "the stream was closed before the job was delivered (cancelled)"


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
        self._holders = self._groups.holders
        self._early: set[tuple[str, int]] = set()
        self.presence = Presence(backend, self.lock, self._groups)
        self._claiming = False
        #: The streams of the claim that is under way at the store.
        self._claimed_for: frozenset[JobStream] = frozenset()
        self._ending: set[JobStream] = set()
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._stopping = False
        self._unlisten: Callable[[], None] | None = None
        self._unwatch: Callable[[], None] | None = None
        self._unserve: Callable[[], None] | None = None
        self._offered: list[tuple[Group, JobStream, int]] = []
        self._orphans: list[Job] = []
        self._hinted = False
        self._is_due_unknown = True
        self._return_at = 0.0

    # -- streams ------------------------------------------------------------------------------------------------

    def _after_fork(self) -> None:
        """Begin anew in a child: threads, streams and locks stayed with the parent."""
        if self._pid != os.getpid():
            self.__init__(self._backend, self._after_commits)  # type: ignore[misc]  # all state is per process

    def open(
        self, assignee_id: str, tags: tuple[str, ...], capacity: int, types: tuple[str, ...] | None
    ) -> JobStream:
        """Register a stream and have it served at once."""
        self._after_fork()
        with self.lock:
            if self._stopping:
                raise QueueClosedError
            stream = JobStream(self, assignee_id, tags, capacity, types)
            self._start()
            self._mark(self._groups.join(stream))
            self.presence.intakes_changed()
        return stream

    def resize(self, stream: JobStream, capacity: int) -> None:
        """Change a stream's capacity and serve it if that has made room."""
        with self.lock:
            stream.max_assigned_jobs = capacity
            self.presence.intakes_changed()
            group = self._groups.find(stream)
            if group is not None and stream.free > 0:
                self._mark(group)

    def hold(self, types: Sequence[str] | None = None) -> str:
        """Return this process's owner id, for a claim of these types outside any stream; it beats from now on."""
        self._after_fork()
        with self.lock:
            if self._stopping:
                raise QueueClosedError
            self._start()
            self.presence.hold_by_hand(types)
        return self.presence.living_name()

    def end(self, *streams: JobStream, error: BaseException | None = None) -> None:
        """Close streams and give back what their consumers have not taken, before returning."""
        own = [stream for stream in streams if not stream.is_foreign()]
        if not own:
            return  # in the child of a fork: they are the parent's, and so are its jobs and its lock
        with self.lock:
            closing = [stream for stream in own if stream.is_open]
            untaken: list[Job] = []
            for stream in closing:
                self._ending.add(stream)
                untaken += stream.shut(error)
                group = self._groups.leave(stream)
                if group is not None:
                    self._dirty.pop(group, None)
            if closing:
                self.presence.intakes_changed()
            for job in untaken:
                self._holders.pop(job.id, None)
                self.presence.release(job.id)
        try:
            with self.lock:
                # What a claim under way brings for them is given back by the dispatcher; no later one is for them.
                while not self._is_dispatching() and any(
                    stream in self._claimed_for or stream.reserved for stream in closing
                ):
                    self._rest.wait()
                for stream in closing:
                    untaken += stream.late
                    stream.late = []
            self._give_back(untaken, NOT_DELIVERED)
        except BaseException:
            with self.lock:
                self._orphans += untaken  # they are tried again for as long as this process holds them
            raise
        finally:
            with self.lock:
                for stream in closing:
                    self._ending.discard(stream)
                    self._orphans += stream.late
                    stream.late = []
                self._rest.notify_all()
        with self.lock:
            while not self._is_dispatching() and not self._ending.isdisjoint(own):
                self._rest.wait()  # somebody else is closing them

    def stop(self) -> None:
        """Close all streams and end the threads. Every step is taken, whichever fails."""
        self._after_fork()
        with self.lock:
            self._stopping = True
            streams = self._groups.streams()
        with contextlib.ExitStack() as steps:  # from the last to the first
            steps.callback(self.presence.close)
            for step in (self._unlisten, self._unwatch, self._unserve):
                if step is not None:
                    steps.callback(step)
            steps.callback(self._end_threads)
            steps.callback(self.end, *streams)

    def _end_threads(self) -> None:
        self._stop.set()
        with self.lock:
            self._work.notify_all()
            self.presence.wake()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _start(self) -> None:
        """Begin to hold jobs, if that has not happened yet: wholly or not at all."""
        if self._threads:
            return
        gate = threading.Event()
        with contextlib.ExitStack() as undo:
            owner = self._backend.open_owner()
            undo.callback(self._backend.close_owner, owner)
            unlisten = self._backend.listen(self._notice)
            undo.callback(unlisten)
            unwatch = self._backend.watch(self._hint)
            undo.callback(unwatch)
            unserve = self._backend.serve(self)
            undo.callback(unserve)
            threads: list[threading.Thread] = []
            undo.callback(gate.set)
            for name, target in (
                ("dispatch", self._dispatch),
                ("beat", lambda: self.presence.keep_beating(self._stop)),
                ("upkeep", self._keep_up),
            ):
                # Until the gate opens they touch nothing, so that they can be dropped.
                thread = threading.Thread(
                    target=_gated, args=(gate, threads, target), name=f"penstock-{name}", daemon=True
                )
                thread.start()
                threads.append(thread)
            undo.pop_all()
        self.presence.begin(owner)
        self._unlisten, self._unwatch, self._unserve = unlisten, unwatch, unserve
        self._threads = threads
        gate.set()

    def _is_dispatching(self) -> bool:
        return threading.current_thread() in self._threads

    # -- noticing -----------------------------------------------------------------------------------------------

    def _notice(self, changes: Sequence[Change]) -> None:
        """Learn from a commit of this process. Called by the store: quick, and never raises."""
        with self.lock:
            kinds: dict[tuple[str, tuple[str, ...]], None] = {}
            taken = {change.job_id for change in changes if change.verb == Verb.CLAIM}
            for change in changes:
                if change.available and change.job_id not in taken:
                    kinds[change.type, change.tags] = None
                elif change.status in ELIGIBLE:
                    self._is_due_unknown = True  # it may be delayed, and due before we look again
                if change.from_status in IN_FLIGHT and change.status not in IN_FLIGHT:
                    self._free(change.job_id, change.attempt, change.verb, change.status)
            for type_, tags in kinds:
                for group in self._groups.matching(type_, tags):
                    self._mark(group)

    def wants(self, type: str, tags: Sequence[str]) -> bool:
        """Whether a stream waits for such a job, and nobody is looking for it already."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            is_busy = self._claiming or self._dirty or self._offered or self._stopping
            return not is_busy and any(group.hungry() for group in self._groups.matching(type, tags))
        finally:
            self.lock.release()

    def wishes(self, changes: Sequence[Change]) -> Sequence[ClaimRequest]:
        """Say what streams want of jobs that are about to be committed. Called by the store, inside a transaction."""
        news = [change for change in changes if change.available]
        if len(news) > MOST_AT_ONCE or not self.lock.acquire(blocking=False):
            return ()
        try:
            # One offer at a time, also where several transactions are.
            is_busy = self._claiming or self._dirty or self._offered or self.presence.is_doubted
            if is_busy or self._stopping or self.presence.needs_beat():
                return ()
            wanted: Counter[Group] = Counter()
            for change in news:
                wanted.update(itertools.islice(self._groups.matching(change.type, change.tags), 1))
            self._offered = [
                (group, stream, min(stream.free, count))
                for group, count in wanted.items()
                for stream in group.hungry()[:1]
            ]
            for _, stream, count in self._offered:
                stream.reserved += count
            return [self._request(stream, count, self.presence.owner) for _, stream, count in self._offered]
        finally:
            self.lock.release()

    def receive(self, jobs: Sequence[list[Job]]) -> None:
        """Hand out what was claimed in a commit of somebody else's; without any, only the slots are free again."""
        with self.lock:
            offered, self._offered = self._offered, []
            for (group, stream, count), batch in zip(offered, jobs or [[]] * len(offered), strict=True):
                stream.reserved -= count
                if stream.is_open:
                    self._push(group, stream, batch)
                elif stream in self._ending:
                    stream.late += batch
                else:
                    self._orphans += batch
            self._rest.notify_all()
            if self._orphans:
                self._work.notify_all()

    def doubt(self) -> None:
        """Learn that nobody can say whether a claim was committed; see `Presence.doubt`."""
        with self.lock:
            offered, self._offered = self._offered, []
            for _, stream, count in offered:
                stream.reserved -= count
            if self.presence.doubt():
                for group in self._groups:
                    self._mark(group)  # whoever claims next takes the new name

    def _hint(self) -> None:
        """Be told that another process has committed something."""
        with self.lock:
            self._hinted = True
            self._work.notify_all()

    def restore_lost(self, assignee_id: str | None) -> None:
        """Give back lost slots of an assignee, or of all."""
        self._after_fork()
        with self.lock:
            for group in self._groups:
                for stream in group.streams:
                    if stream.lost and assignee_id in (None, stream.assignee_id):
                        for job_id in stream.lost:
                            self._holders.pop(job_id, None)
                        stream.lost.clear()
                        self._mark(group)

    def _free(self, job_id: str, attempt: int, verb: str, status: str) -> None:
        """Learn that an attempt, and with it every earlier one, is over."""
        self.presence.end_attempt(job_id, attempt)
        stream = self._holders.get(job_id)
        if stream is None:
            if self._claiming:
                self._early.add((job_id, attempt))
            return
        held = stream.held.get(job_id)
        if held is None or held > attempt:
            return
        del stream.held[job_id]
        if verb == Verb.ACKNOWLEDGE and status == JobStatus.UNKNOWN_STOPPED:
            stream.lost[job_id] = held
            return
        self._holders.pop(job_id, None)
        group = self._groups.find(stream)
        if group is not None:
            self._mark(group)

    def _mark(self, group: Group) -> None:
        if not self._dirty:
            self._work.notify_all()
        self._dirty[group] = None

    # -- dispatching --------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        next_look = time.monotonic() + LOOK_SECONDS
        next_due_look = last_due_look = 0.0
        while not self._stop.is_set():
            with self.lock:
                if not self._dirty and not self._hinted:
                    self._work.wait(self._backend.poll_seconds)
                hinted, self._hinted = self._hinted, False
                is_due_unknown, self._is_due_unknown = self._is_due_unknown, False
                # A few groups find out what others did by claiming, at once: no question comes before the job.
                is_sought = hinted and len(self._groups) <= FEW_GROUPS
                dirty = list(self._groups if is_sought else self._dirty)
            try:
                self._return_orphans()
                if dirty:
                    self._serve(dirty)
                    self._after_commits()
                now = time.monotonic()
                # However busy some streams are, the others must learn what happened elsewhere.
                if hinted or now >= next_look or (not dirty and self._has_news()):
                    next_look = now + LOOK_SECONDS
                    is_due_unknown = True
                    self._look_everywhere(is_sought=is_sought)
                # And however much happens elsewhere, delayed jobs come in time.
                if is_due_unknown:
                    next_due_look = min(next_due_look, last_due_look + self._backend.poll_seconds)
                if now >= next_due_look:
                    last_due_look = now
                    next_due_look = now + self._until_due()
            except PenstockError as error:
                self._fail(error)
            except Exception as error:  # a fault of ours must end the streams, not hang them
                logger.exception("the dispatcher failed")
                self._fail(error)

    def _return_orphans(self) -> None:
        """Give back what was claimed for streams that are closed; if the store fails, later."""
        with self.lock:
            if not self._orphans or time.monotonic() < self._return_at:
                return
            orphans, self._orphans = self._orphans, []
        try:
            self._give_back(orphans, NOT_DELIVERED)
        except PenstockError as error:
            logger.warning("jobs were not given back, which is tried again: %s", error)
            with self.lock:
                self._orphans += orphans
                self._return_at = time.monotonic() + LONGEST_PAUSE

    def _has_news(self) -> bool:
        return bool(self._groups) and self._retry(self._backend.has_foreign_changes)

    def _until_due(self) -> float:
        """See to it that delayed jobs that are due become takeable; return when to ask again."""
        due = self._retry(self._backend.next_due) if self._groups else None
        if due is not None and due <= 0:
            with self.lock:
                # Any claim moves them all into the ready set, and we are told which groups that concerns.
                group = next((each for each in self._groups if each.hungry()), None)
                if group is not None:
                    self._mark(group)
            return self._backend.poll_seconds
        return DUE_LOOK_SECONDS if due is None else min(due, DUE_LOOK_SECONDS)

    def _look_everywhere(self, *, is_sought: bool) -> None:
        """Find out what others did: slots freed elsewhere, jobs that became takeable.

        Args:
            is_sought: whether a claim for all streams has just looked for such jobs.
        """
        with self.lock:
            held = self.presence.short_holds() | self._groups.held()
        gone = self._retry(lambda: self._backend.released(held)) if held else {}
        is_asking = not is_sought and len(self._groups) > FEW_GROUPS
        ready = self._retry(self._backend.ready_filters) if is_asking else None
        with self.lock:
            for job_id, verb in gone.items():
                status = JobStatus.UNKNOWN_STOPPED if verb == Verb.ACKNOWLEDGE else JobStatus.COMPLETED
                self._free(job_id, held[job_id], verb, status)
            if is_sought:
                return
            for group in self._groups if ready is None else self._groups.matching_any(*ready):
                self._mark(group)

    def _serve(self, dirty: list[Group]) -> None:
        """Claim for dirty groups: once for every stream, or until a group is full or has found nothing more.

        Those that are emptied as fast as they are filled come again, after all others had their turn.
        """
        with self.lock:
            for group in dirty:
                self._dirty.pop(group, None)
            self._claiming = True
        try:
            width = 1
            most = max(len(group.streams) for group in dirty)
            while dirty and width < 4 * most:
                round_ = [(group, stream) for group in dirty for stream in group.hungry()[:width]]
                if not round_:
                    return
                emptied: set[Group] = set()
                for start in range(0, len(round_), STREAMS_PER_CLAIM):
                    emptied |= self._claim(round_[start : start + STREAMS_PER_CLAIM])
                dirty = [group for group in dirty if group not in emptied and group.hungry()]
                width *= 4
        finally:
            with self.lock:
                for group in dirty:
                    if group.hungry():
                        self._mark(group)
                self._claiming = False
                self._early.clear()
                self._rest.notify_all()

    def _claim(self, wishes: list[tuple[Group, JobStream]]) -> set[Group]:
        """Claim for some streams in one transaction; return the groups for which nothing is left."""
        return self._retry(lambda: self._claim_once(wishes))

    def _claim_once(self, wishes: list[tuple[Group, JobStream]]) -> set[Group]:
        owner = self.presence.living_name()
        with self.lock:
            wishes = [(group, stream) for group, stream in wishes if stream.is_open and stream.free > 0]
            requests = [self._request(stream, stream.free, owner) for _, stream in wishes]
            self._claimed_for = frozenset(stream for _, stream in wishes)
        emptied: set[Group] = set()
        orphans: list[Job] = []
        try:
            found = self._claim_for(requests) if requests else []
            with self.lock:
                for (group, stream), request, jobs in zip(wishes, requests, found, strict=True):
                    if len(jobs) < request.limit:
                        emptied.add(group)
                    if stream.is_open:
                        self._push(group, stream, jobs)
                    else:
                        orphans += jobs
            if orphans:
                with self.lock:
                    self._orphans += orphans
                self._return_orphans()
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
                self.doubt()
            raise

    def _request(self, stream: JobStream, limit: int, owner: str | None) -> ClaimRequest:
        return ClaimRequest(
            assignee_id=stream.assignee_id, tags=stream.tags, limit=limit, types=stream.types, owner=owner
        )

    def _push(self, group: Group, stream: JobStream, jobs: Sequence[Job]) -> None:
        """Hand jobs to an open stream."""
        if not jobs:
            return
        for job in jobs:
            self._holders[job.id] = stream
        stream.push(jobs)
        self.presence.keep_alive(jobs)
        for job in jobs:
            if (job.id, job.attempt) in self._early:  # somebody reported it before we knew we had it
                stream.held.pop(job.id, None)
                self._holders.pop(job.id, None)
        group.put_last(stream)

    def _give_back(self, jobs: list[Job], message: str) -> None:
        if not jobs:
            return
        try:
            with shielded():  # what ends a consumer must not keep its jobs from others
                self._backend.release_jobs(
                    {job.id: message for job in jobs}, attempts={job.id: job.attempt for job in jobs}
                )
        except ReportErrors as group:
            # Cancelled, reported or lost meanwhile: nothing to give back.
            logger.debug("not given back: %s", group)

    def _retry(self, call: Callable[[], T]) -> T:
        """Call, and call again while the store says that this may help, with growing pauses, for a limited time."""
        pause, give_up_at = FIRST_PAUSE, None
        while True:
            try:
                return call()
            except BackendError as error:
                now = time.monotonic()
                give_up_at = now + OUTAGE_SECONDS if give_up_at is None else give_up_at
                if not error.retryable or now >= give_up_at or not self._groups or self._stop.wait(pause):
                    raise
                if pause == FIRST_PAUSE:
                    logger.warning("the store failed and is tried again: %s", error)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _fail(self, error: Exception) -> None:
        """End all streams with the store's error."""
        if self._stop.is_set():
            return
        with self.lock:
            streams = self._groups.streams()
        with contextlib.suppress(PenstockError):
            self.end(*streams, error=error)

    # -- upkeep -------------------------------------------------------------------------------------------------

    def _keep_up(self) -> None:
        """Do the store's upkeep when it is this process's turn."""
        while not self._stop.wait(UPKEEP_SECONDS):
            with going_on("upkeep"):
                if self._backend.take_upkeep(timedelta(seconds=UPKEEP_SECONDS)):
                    self._backend.maintain()
                    self._after_commits()


def _gated(gate: threading.Event, published: list[threading.Thread], run: Callable[[], None]) -> None:
    """Run a thread once all of them have been started; do nothing if one could not be."""
    gate.wait()
    if len(published) == THREADS:
        run()
