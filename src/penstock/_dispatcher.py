"""The threads of a queue: one claims jobs for all its streams, one says that the process lives, one does the upkeep.

Streams with the same filter form a group. A group is *dirty* when there may be something for it: a job became takeable,
a slot became free, a stream opened, another process changed the store. The dispatcher takes the dirty groups, clears the
mark, and claims for their streams, many claims in one transaction. Whatever happens while it claims marks groups dirty
again, so no wake-up is lost. A claim that brings less than was asked for has emptied its filter: the rest of that group
need not ask.

What this process commits is told by the store's listener, exactly. What other processes commit is noticed by a cheap
look every `poll_seconds`; then the store is asked which types and tags are ready, so that of thousands of groups only
those that may find something are dirty, and held jobs that ended elsewhere give their slots back.

The process beats at a third of the store's liveness, or of the shortest visibility it holds: two beats may fail before
anybody takes its jobs. Beats have a thread of their own, because an upkeep may take long.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Final, TypeVar

from penstock._filters import FilterIndex
from penstock.backends.base import Backend, Change, ClaimRequest
from penstock.errors import BackendError, PenstockError, QueueClosedError, ReportErrors
from penstock.job import ELIGIBLE, IN_FLIGHT, Job, JobStatus
from penstock.lifecycle import Verb
from penstock.overview import Intake
from penstock.scope import shielded
from penstock.stream import JobStream

__all__ = ["Dispatcher"]

logger = logging.getLogger("penstock")
T = TypeVar("T")

STREAMS_PER_CLAIM: Final = 64
OUTAGE_SECONDS: Final = 30.0  # streams outlive a store that says "try again" for this long
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
BEATS_PER_HOLD: Final = 3
SHORTEST_BEAT_SECONDS: Final = 0.05  # below that, beating would be all that the store does
UPKEEP_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 1.0  # without any hint, the store is looked at this often
DUE_LOOK_SECONDS: Final = 0.25
FEW_GROUPS: Final = 8
MOST_AT_ONCE: Final = 16  # jobs of one commit that are handed out with it; more are work for the dispatcher
THREADS: Final = 3
TELL_SECONDS: Final = 0.25  # how long the store may not know what the streams of this process take
MOST_INTAKES: Final = 100
MOST_TYPES: Final = 1_000
NOT_DELIVERED: Final = "the stream was closed before the job was delivered (cancelled)"


class _Group:
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


class Dispatcher:
    """Claims for the streams of one queue."""

    def __init__(self, backend: Backend, after_commits: Callable[[], None]) -> None:
        self._backend = backend
        self._after_commits = after_commits
        self._pid = os.getpid()
        self.lock = threading.RLock()
        self._work = threading.Condition(self.lock)
        self._rest = threading.Condition(self.lock)
        self._groups: dict[tuple[frozenset[str], frozenset[str] | None], _Group] = {}
        self._index: FilterIndex[_Group] = FilterIndex()
        self._dirty: dict[_Group, None] = {}
        self._holders: dict[str, JobStream] = {}
        self._early: set[tuple[str, int]] = set()
        #: Attempt and seconds of visibility of held jobs whose visibility is shorter than the store's liveness.
        self._short: dict[str, tuple[int, float]] = {}
        self._tempo = threading.Condition(self.lock)
        self._claiming = False
        #: The streams of the claim that is under way at the store.
        self._claimed_for: frozenset[JobStream] = frozenset()
        self._ending: set[JobStream] = set()
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._stopping = False
        self._owner: str | None = None
        #: Whether the store may hold claims for us under this name that we never got.
        self._is_doubted = False
        #: Earlier names of that kind, and the jobs for whose sake each still beats.
        self._doubted: dict[str, set[str]] = {}
        self._holds_by_hand = False
        #: Types that were claimed by hand.
        self._pulled: set[str] = set()
        #: Whether streams have come, gone or changed since the store was told what they take.
        self._is_untold = False
        self._beaten = (0.0, 0.0)
        self._beating = threading.Lock()
        self._unlisten: Callable[[], None] | None = None
        self._unwatch: Callable[[], None] | None = None
        self._unserve: Callable[[], None] | None = None
        self._offered: list[tuple[_Group, JobStream, int]] = []
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
            group = self._groups.get(stream.filter)
            if group is None:
                group = self._groups[stream.filter] = _Group(stream.filter)
                self._index.add(group, *stream.filter)
            group.streams[stream] = None
            self._mark(group)
            self._intakes_changed()
        return stream

    def resize(self, stream: JobStream, capacity: int) -> None:
        """Change a stream's capacity and serve it if that has made room."""
        with self.lock:
            stream.max_assigned_jobs = capacity
            self._intakes_changed()
            group = self._groups.get(stream.filter)
            if group is not None and stream.free > 0:
                self._mark(group)

    def hold(self, types: Sequence[str] | None = None) -> str:
        """Return this process's owner id, for a claim of these types outside any stream; it beats from now on."""
        self._after_fork()
        with self.lock:
            if self._stopping:
                raise QueueClosedError
            self._start()
            self._holds_by_hand = True
            fresh = set(types or ()) - self._pulled
            if fresh and len(self._pulled) < MOST_TYPES:
                self._pulled |= fresh
                self._intakes_changed()
        return self._living_name()

    def keep_alive(self, jobs: Sequence[Job]) -> None:
        """Beat often enough for jobs that this process holds from now on."""
        short = {
            job.id: (job.attempt, visibility.total_seconds())
            for job in jobs
            if (visibility := job.timeouts.visibility) is not None and visibility < self._backend.liveness
        }
        if short:
            with self.lock:
                self._short |= short
                self._tempo.notify_all()

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
                self._leave(stream)
            for job in untaken:
                self._holders.pop(job.id, None)
                self._short.pop(job.id, None)
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
            streams = [stream for group in self._groups.values() for stream in group.streams]
        with contextlib.ExitStack() as steps:  # from the last to the first
            steps.callback(self._close_owner)
            for step in (self._unlisten, self._unwatch, self._unserve):
                if step is not None:
                    steps.callback(step)
            steps.callback(self._end_threads)
            steps.callback(self.end, *streams)

    def _end_threads(self) -> None:
        self._stop.set()
        with self.lock:
            self._work.notify_all()
            self._tempo.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _close_owner(self) -> None:
        for owner in (*self._doubted, self._owner):
            if owner is not None:
                with contextlib.suppress(PenstockError), shielded():
                    self._backend.close_owner(owner)

    def _leave(self, stream: JobStream) -> None:
        group = self._groups.get(stream.filter)
        if group is None:
            return
        group.streams.pop(stream, None)
        self._intakes_changed()
        for job_id in (*stream.held, *stream.lost):
            self._holders.pop(job_id, None)
        if not group.streams:
            del self._groups[stream.filter]
            self._index.remove(group)
            self._dirty.pop(group, None)

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
                ("beat", self._keep_beating),
                ("upkeep", self._keep_up),
            ):
                # Until the gate opens they touch nothing, so that they can be dropped.
                thread = threading.Thread(
                    target=_gated, args=(gate, threads, target), name=f"penstock-{name}", daemon=True
                )
                thread.start()
                threads.append(thread)
            undo.pop_all()
        self._owner, self._beaten = owner, _clocks()
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
                for group in self._index.matching(type_, tags):
                    self._mark(group)

    def wants(self, type: str, tags: Sequence[str]) -> bool:
        """Whether a stream waits for such a job, and nobody is looking for it already."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            is_busy = self._claiming or self._dirty or self._offered or self._stopping
            return not is_busy and any(group.hungry() for group in self._index.matching(type, tags))
        finally:
            self.lock.release()

    def wishes(self, changes: Sequence[Change]) -> Sequence[ClaimRequest]:
        """Say what streams want of jobs that are about to be committed. Called by the store, inside a transaction."""
        news = [change for change in changes if change.available]
        if len(news) > MOST_AT_ONCE or not self.lock.acquire(blocking=False):
            return ()
        try:
            # One offer at a time, also where several transactions are.
            is_busy = self._claiming or self._dirty or self._offered or self._is_doubted
            if is_busy or self._stopping or self._needs_beat():
                return ()
            wanted: Counter[_Group] = Counter()
            for change in news:
                wanted.update(itertools.islice(self._index.matching(change.type, change.tags), 1))
            self._offered = [
                (group, stream, min(stream.free, count))
                for group, count in wanted.items()
                for stream in group.hungry()[:1]
            ]
            for _, stream, count in self._offered:
                stream.reserved += count
            return [self._request(stream, count, self._owner) for _, stream, count in self._offered]
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
        """Learn that nobody can say whether a claim was committed.

        If it was, jobs are held by a process that does not know of them and would never let them go. So this process
        takes another name, and the old one beats only until the jobs that are known to be held under it have ended;
        then the store takes the others back. What was claimed by hand cannot be told from them: then nothing is done.
        """
        with self.lock:
            offered, self._offered = self._offered, []
            for _, stream, count in offered:
                stream.reserved -= count
            if not self._holds_by_hand:
                self._is_doubted = True
                for group in self._groups.values():
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
            for group in self._groups.values():
                for stream in group.streams:
                    if stream.lost and assignee_id in (None, stream.assignee_id):
                        for job_id in stream.lost:
                            self._holders.pop(job_id, None)
                        stream.lost.clear()
                        self._mark(group)

    def _free(self, job_id: str, attempt: int, verb: str, status: str) -> None:
        """Learn that an attempt, and with it every earlier one, is over."""
        for kept in self._doubted.values():
            kept.discard(job_id)
        if job_id in self._short and self._short[job_id][0] <= attempt:
            del self._short[job_id]
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
        group = self._groups.get(stream.filter)
        if group is not None:
            self._mark(group)

    def _mark(self, group: _Group) -> None:
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
                dirty = list(self._groups.values() if is_sought else self._dirty)
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
                group = next((each for each in self._groups.values() if each.hungry()), None)
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
            held = {
                job_id: attempt
                for group in self._groups.values()
                for stream in group.streams
                for job_id, attempt in stream.held.items()
            }
            held |= {job_id: attempt for job_id, (attempt, _) in self._short.items() if job_id not in held}
        gone = self._retry(lambda: self._backend.released(held)) if held else {}
        is_asking = not is_sought and len(self._groups) > FEW_GROUPS
        ready = self._retry(self._backend.ready_filters) if is_asking else None
        with self.lock:
            for job_id, verb in gone.items():
                status = JobStatus.UNKNOWN_STOPPED if verb == Verb.ACKNOWLEDGE else JobStatus.COMPLETED
                self._free(job_id, held[job_id], verb, status)
            if is_sought:
                return
            for group in self._groups.values() if ready is None else self._index.matching_any(*ready):
                self._mark(group)

    def _serve(self, dirty: list[_Group]) -> None:
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
                emptied: set[_Group] = set()
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

    def _claim(self, wishes: list[tuple[_Group, JobStream]]) -> set[_Group]:
        """Claim for some streams in one transaction; return the groups for which nothing is left."""
        return self._retry(lambda: self._claim_once(wishes))

    def _claim_once(self, wishes: list[tuple[_Group, JobStream]]) -> set[_Group]:
        owner = self._living_name()
        with self.lock:
            wishes = [(group, stream) for group, stream in wishes if stream.is_open and stream.free > 0]
            requests = [self._request(stream, stream.free, owner) for _, stream in wishes]
            self._claimed_for = frozenset(stream for _, stream in wishes)
        emptied: set[_Group] = set()
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

    def _push(self, group: _Group, stream: JobStream, jobs: Sequence[Job]) -> None:
        """Hand jobs to an open stream."""
        if not jobs:
            return
        for job in jobs:
            self._holders[job.id] = stream
        stream.push(jobs)
        self.keep_alive(jobs)
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
            streams = [stream for group in self._groups.values() for stream in group.streams]
        with contextlib.suppress(PenstockError):
            self.end(*streams, error=error)

    # -- upkeep -------------------------------------------------------------------------------------------------

    def _keep_up(self) -> None:
        """Do the store's upkeep when it is this process's turn."""
        while not self._stop.wait(UPKEEP_SECONDS):
            with _going_on("upkeep"):
                if self._backend.take_upkeep(timedelta(seconds=UPKEEP_SECONDS)):
                    self._backend.maintain()
                    self._after_commits()

    def _keep_beating(self) -> None:
        """Say that this process lives, as often as the jobs it holds need it."""
        tried = time.monotonic()
        while True:
            with self.lock:
                while not self._stop.is_set():
                    pause = self._beat_seconds()
                    left = tried + (min(pause, TELL_SECONDS) if self._is_untold else pause) - time.monotonic()
                    if left <= 0:
                        break
                    self._tempo.wait(left)
                if self._stop.is_set():
                    return
            tried = time.monotonic()
            with _going_on("the beat"):
                self._beat()

    def _beat(self) -> None:
        with self._beating:
            now = _clocks()
            if self._owner is not None and not self._beat_as(self._owner):
                logger.warning(
                    "this process was taken for dead and lost its jobs; it goes on under a new name"
                )
                self._owner = self._backend.open_owner()
                self._intakes_changed()
            self._beaten = now
            for owner, kept in list(self._doubted.items()):
                if kept:
                    self._backend.beat_owner(owner)
                else:
                    self._backend.close_owner(owner)
                    with self.lock:
                        del self._doubted[owner]

    def _beat_as(self, owner: str) -> bool:
        """Say that this process lives and, if that is news, what its streams take."""
        with self.lock:
            news = self._intakes() if self._is_untold else None
            self._is_untold = False
        if news is None:
            return self._backend.beat_owner(owner)
        try:
            return self._backend.beat_owner(owner, intakes=news)
        except BaseException:
            self._is_untold = True
            raise

    def _intakes_changed(self) -> None:
        with self.lock:
            self._is_untold = True
            self._tempo.notify_all()

    def _intakes(self) -> list[Intake]:
        """Return what this process takes, one entry for the streams of one filter."""
        found = [
            Intake(
                types=None if types is None else tuple(sorted(types)),
                tags=tuple(sorted(tags)),
                slots=sum(stream.max_assigned_jobs for stream in group.streams),
            )
            for (tags, types), group in self._groups.items()
        ]
        if self._pulled:
            found.append(Intake(types=tuple(sorted(self._pulled))))
        return found if len(found) <= MOST_INTAKES else [_merged(found)]

    def _rename(self) -> None:
        """Claim under a new name from now on; see `doubt`."""
        with self._beating:
            owner = self._backend.open_owner()
            with self.lock:
                if self._owner is not None:
                    self._doubted[self._owner] = {
                        job_id for stream in self._holders.values() for job_id in stream.held
                    }
                self._owner, self._is_doubted, self._beaten = owner, False, _clocks()
                self._is_untold = True
        logger.warning("the outcome of a claim is unknown; this process goes on under a new name")
        self._beat()

    def _living_name(self) -> str:
        """Return the name under which this process claims, after making sure that nobody has given it up.

        A process that was frozen wakes up in the middle of anything. What it claimed under a name that is gone would
        be taken from it at once.
        """
        if self._is_doubted:
            self._rename()
        elif self._needs_beat():
            self._beat()
        return self._owner or ""

    def _needs_beat(self) -> bool:
        most = self._backend.liveness.total_seconds() * 2 / 3
        return any(now - then > most for now, then in zip(_clocks(), self._beaten, strict=True))

    def _beat_seconds(self) -> float:
        shortest = min(
            (visibility for _, visibility in self._short.values()),
            default=self._backend.liveness.total_seconds(),
        )
        return max(SHORTEST_BEAT_SECONDS, shortest / BEATS_PER_HOLD)


def _merged(intakes: Sequence[Intake]) -> Intake:
    """Return very many filters as one that lets through at least as much."""
    types = {each for intake in intakes for each in intake.types or ()}
    is_any = any(intake.types is None for intake in intakes) or len(types) > MOST_TYPES
    return Intake(
        types=None if is_any else tuple(sorted(types)), slots=sum(intake.slots for intake in intakes)
    )


@contextlib.contextmanager
def _going_on(what: str) -> Iterator[None]:
    """Log what fails and is tried again."""
    try:
        yield
    except QueueClosedError:
        pass  # the thread is told to stop in a moment
    except PenstockError as error:
        logger.warning("%s failed and is tried again: %s", what, error)
    except Exception:
        logger.exception("%s failed and is tried again", what)


def _gated(gate: threading.Event, published: list[threading.Thread], run: Callable[[], None]) -> None:
    """Run a thread once all of them have been started; do nothing if one could not be."""
    gate.wait()
    if len(published) == THREADS:
        run()


def _clocks() -> tuple[float, float]:
    """Return the clocks of which one goes on while a process, or its machine, sleeps."""
    return time.monotonic(), time.time()
