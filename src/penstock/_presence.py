"""How a process says that it lives, so that the jobs it holds stay its own.

The store knows a process by a name, its liveness row; claims are made under it. The process beats at a third of the
store's liveness, or of the shortest visibility it holds: two beats may fail before anybody takes its jobs. With a beat it
also tells, when that has changed, what its streams take.

A name can be lost in two ways. The store gave it up, because the process was frozen for too long: its jobs are others'
now, and it goes on under a new name. Or nobody can say whether a claim was committed (`doubt`): then jobs may be held
under the name that the process knows nothing of.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from penstock._groups import Groups
from penstock.backends.base import Backend
from penstock.errors import PenstockError, QueueClosedError
from penstock.job import Job
from penstock.overview import Intake
from penstock.scope import shielded

__all__ = ["Presence", "going_on"]

logger = logging.getLogger("penstock")

BEATS_PER_HOLD: Final = 3
SHORTEST_BEAT_SECONDS: Final = 0.05  # below that, beating would be all that the store does
TELL_SECONDS: Final = 0.25  # how long the store may not know what the streams of this process take
MOST_INTAKES: Final = 100
MOST_TYPES: Final = 1_000


class Presence:
    """The name under which a process holds jobs, and the beats that keep it.

    Args:
        backend: the store.
        lock: guards the state here and the groups.
        groups: the streams for which jobs are held.
    """

    def __init__(self, backend: Backend, lock: threading.RLock, groups: Groups) -> None:
        self._backend = backend
        self._lock = lock
        self._groups = groups
        self._tempo = threading.Condition(lock)
        #: The name of this process; None until it holds something.
        self.owner: str | None = None
        #: Whether the store may hold claims for us under this name that we never got.
        self.is_doubted = False
        #: Earlier names of that kind, and the jobs for whose sake each still beats.
        self._doubted: dict[str, set[str]] = {}
        #: Attempt and seconds of visibility of held jobs whose visibility is shorter than the store's liveness.
        self._short: dict[str, tuple[int, float]] = {}
        self._holds_by_hand = False
        #: Types that were claimed by hand.
        self._pulled: set[str] = set()
        #: Whether streams have come, gone or changed since the store was told what they take.
        self._is_untold = False
        self._beaten = (0.0, 0.0)
        self._beating = threading.Lock()

    # -- the name -----------------------------------------------------------------------------------------------

    def begin(self, owner: str) -> None:
        """Hold jobs under a name that was just opened."""
        self.owner, self._beaten = owner, _clocks()

    def close(self) -> None:
        """Give up all names."""
        for owner in (*self._doubted, self.owner):
            if owner is not None:
                with contextlib.suppress(PenstockError), shielded():
                    self._backend.close_owner(owner)

    def living_name(self) -> str:
        """Return the name under which this process claims, after making sure that nobody has given it up.

        A process that was frozen wakes up in the middle of anything. What it claimed under a name that is gone would
        be taken from it at once.
        """
        if self.is_doubted:
            self._rename()
        elif self.needs_beat():
            self.beat()
        return self.owner or ""

    def doubt(self) -> bool:
        """Learn that nobody can say whether a claim was committed; return whether claims need a new name.

        If it was, jobs are held by a process that does not know of them and would never let them go. So this process
        takes another name, and the old one beats only until the jobs that are known to be held under it have ended;
        then the store takes the others back. What was claimed by hand cannot be told from them: then nothing is done.
        """
        if not self._holds_by_hand:
            self.is_doubted = True
        return not self._holds_by_hand

    def _rename(self) -> None:
        """Claim under a new name from now on; see `doubt`."""
        with self._beating:
            owner = self._backend.open_owner()
            with self._lock:
                if self.owner is not None:
                    self._doubted[self.owner] = set(self._groups.held())
                self.owner, self.is_doubted, self._beaten = owner, False, _clocks()
                self._is_untold = True
        logger.warning("the outcome of a claim is unknown; this process goes on under a new name")
        self.beat()

    # -- what is held, and what is taken --------------------------------------------------------------------------

    def hold_by_hand(self, types: Sequence[str] | None) -> None:
        """Learn that jobs of these types are claimed outside any stream."""
        self._holds_by_hand = True
        fresh = set(types or ()) - self._pulled
        if fresh and len(self._pulled) < MOST_TYPES:
            self._pulled |= fresh
            self.intakes_changed()

    def keep_alive(self, jobs: Sequence[Job]) -> None:
        """Beat often enough for jobs that this process holds from now on."""
        short = {
            job.id: (job.attempt, visibility.total_seconds())
            for job in jobs
            if (visibility := job.timeouts.visibility) is not None and visibility < self._backend.liveness
        }
        if short:
            with self._lock:
                self._short |= short
                self._tempo.notify_all()

    def short_holds(self) -> dict[str, int]:
        """Return ids and attempts of the held jobs that need more frequent beats."""
        return {job_id: attempt for job_id, (attempt, _) in self._short.items()}

    def release(self, job_id: str) -> None:
        """Learn that a job is held no more."""
        self._short.pop(job_id, None)

    def end_attempt(self, job_id: str, attempt: int) -> None:
        """Learn that an attempt, and with it every earlier one, is over."""
        for kept in self._doubted.values():
            kept.discard(job_id)
        if job_id in self._short and self._short[job_id][0] <= attempt:
            del self._short[job_id]

    def intakes_changed(self) -> None:
        """Tell the store soon what the streams take."""
        with self._lock:
            self._is_untold = True
            self._tempo.notify_all()

    def _intakes(self) -> list[Intake]:
        """Return what this process takes, by its streams and by hand."""
        found = self._groups.intakes()
        if self._pulled:
            found.append(Intake(types=tuple(sorted(self._pulled))))
        return found if len(found) <= MOST_INTAKES else [_merged(found)]

    # -- beats --------------------------------------------------------------------------------------------------

    def keep_beating(self, stop: threading.Event) -> None:
        """Say that this process lives, as often as the jobs it holds need it, until it is stopped and woken."""
        tried = time.monotonic()
        while True:
            with self._lock:
                while not stop.is_set():
                    pause = self.beat_seconds()
                    left = tried + (min(pause, TELL_SECONDS) if self._is_untold else pause) - time.monotonic()
                    if left <= 0:
                        break
                    self._tempo.wait(left)
                if stop.is_set():
                    return
            tried = time.monotonic()
            with going_on("the beat"):
                self.beat()

    def wake(self) -> None:
        """Have `keep_beating` look again at what it waits for."""
        self._tempo.notify_all()

    def beat(self) -> None:
        """Say now that this process lives."""
        with self._beating:
            now = _clocks()
            if self.owner is not None and not self._beat_as(self.owner):
                logger.warning(
                    "this process was taken for dead and lost its jobs; it goes on under a new name"
                )
                self.owner = self._backend.open_owner()
                self.intakes_changed()
            self._beaten = now
            for owner, kept in list(self._doubted.items()):
                if kept:
                    self._backend.beat_owner(owner)
                else:
                    self._backend.close_owner(owner)
                    with self._lock:
                        del self._doubted[owner]

    def _beat_as(self, owner: str) -> bool:
        """Say that this process lives and, if that is news, what its streams take."""
        with self._lock:
            news = self._intakes() if self._is_untold else None
            self._is_untold = False
        if news is None:
            return self._backend.beat_owner(owner)
        try:
            return self._backend.beat_owner(owner, intakes=news)
        except BaseException:
            self._is_untold = True
            raise

    def needs_beat(self) -> bool:
        """Whether the last beat is so old that the name may be lost in a moment."""
        most = self._backend.liveness.total_seconds() * 2 / 3
        return any(now - then > most for now, then in zip(_clocks(), self._beaten, strict=True))

    def beat_seconds(self) -> float:
        """Return how long after a beat the next one comes."""
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
def going_on(what: str) -> Iterator[None]:
    """Log what fails and is tried again."""
    try:
        yield
    except QueueClosedError:
        pass  # the thread is told to stop in a moment
    except PenstockError as error:
        logger.warning("%s failed and is tried again: %s", what, error)
    except Exception:
        logger.exception("%s failed and is tried again", what)


def _clocks() -> tuple[float, float]:
    """Return the clocks of which one goes on while a process, or its machine, sleeps."""
    return time.monotonic(), time.time()
