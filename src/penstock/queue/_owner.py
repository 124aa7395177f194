"""The owner of a queue's jobs: the row in the store under which this process claims, and its heartbeats.

    what the store decides                         what the process may only assume
    which owner rows are alive                     that its row is alive, if its last heartbeat is recent
    which owner holds a job                        that it holds the jobs it received
    whether a claim was committed                  nothing, if the answer was lost (`outcome_unknown`)

Heartbeats come at a third of the store's liveness, or of the shortest visibility among the held jobs. A heartbeat also
publishes what the streams of this process accept, when that has changed.

A process gets another owner in two cases. The store gave the old one up because the process was frozen (see
`penstock.liveness`): its jobs were reclaimed. Or the outcome of a claim is unknown: the store may hold jobs for this
process that it never received. Then the old owner is *superseded*: it beats only until the jobs that are known to be held
under it have ended, and the store reclaims the others after that.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import Final

from penstock.backends import Backend
from penstock.backends.contract.overview import Intake
from penstock.errors import PenstockError
from penstock.job import Job
from penstock.liveness import BEATS_PER_LIVENESS, Heartbeat, Owner
from penstock.queue._execution_limits import ExecutionLimits
from penstock.queue._groups import Groups
from penstock.scope import shielded

__all__ = ["QueueOwner"]

logger = logging.getLogger("penstock")

MIN_BEAT_SECONDS: Final = 0.05  # below that, heartbeats would be most of the store's work
PUBLISH_SECONDS: Final = 0.25  # how long the store may have outdated intakes of this process
MAX_INTAKES: Final = 100
MAX_TYPES: Final = 1_000


class QueueOwner:
    """The owner that a queue claims under, and its heartbeats.

    Args:
        backend: the store.
        lock: guards the state here and the groups.
        groups: the streams for which jobs are held.
    """

    def __init__(self, backend: Backend, lock: threading.RLock, groups: Groups) -> None:
        self._backend = backend
        self._lock = lock
        self._groups = groups
        #: None until the queue holds something.
        self._owner: Owner | None = None
        #: Whether the store may hold claims under this owner that the process never received.
        self.is_uncertain = False
        #: Earlier owners of that kind, and the jobs for which each still beats.
        self._superseded: dict[Owner, set[str]] = {}
        #: Attempt and seconds of visibility of held jobs whose visibility is shorter than the store's liveness.
        self._short: dict[str, tuple[int, float]] = {}
        #: How long the held jobs may run.
        self.limits = ExecutionLimits(backend)
        self._claims_manually = False
        #: Types that were claimed outside streams.
        self._pulled_types: set[str] = set()
        #: Whether streams were opened, closed or changed since their intakes were published.
        self._has_unpublished = False
        self._beating = threading.Lock()
        self.heartbeat = Heartbeat("beat", backend, self.beat, interval=self._next_beat_seconds)

    # -- the owner ----------------------------------------------------------------------------------------------

    @property
    def id(self) -> str | None:
        """The id of the owner row; None until the queue holds something."""
        return None if self._owner is None else self._owner.id

    def open(self) -> None:
        """Register an owner to claim under."""
        self._owner = Owner(self._backend)

    def close(self) -> None:
        """Remove all owner rows of this queue."""
        for owner in (*self._superseded, self._owner):
            if owner is not None:
                with contextlib.suppress(PenstockError), shielded():
                    owner.close()
        self._owner = None

    def live_id(self) -> str:
        """Return the id to claim under, after making sure that the store has not given it up.

        A frozen process may resume anywhere. Jobs claimed under a removed owner would be reclaimed at once.
        """
        if self.is_uncertain:
            self._supersede()
        elif self.needs_beat():
            self.beat()
        return self.id or ""

    def outcome_unknown(self) -> bool:
        """Note that a claim may or may not have been committed; return whether claims need a new owner.

        If it was committed, jobs are held by a process that does not have them and would never report them. So this
        process claims under another owner from now on. Nothing is done for a process that claims outside streams: its
        jobs cannot be distinguished from those that it never received.
        """
        if not self._claims_manually:
            self.is_uncertain = True
        return not self._claims_manually

    def _supersede(self) -> None:
        """Claim under a new owner from now on; see `outcome_unknown`."""
        with self._beating:
            owner = Owner(self._backend)
            with self._lock:
                if self._owner is not None:
                    self._superseded[self._owner] = set(self._groups.held())
                self._owner, self.is_uncertain = owner, False
                self._has_unpublished = True
        logger.warning("the outcome of a claim is unknown; this process continues as another owner")
        self.beat()

    # -- held jobs and intakes ------------------------------------------------------------------------------------

    def add_manual(self, types: Sequence[str] | None) -> None:
        """Note that jobs of these types are claimed outside streams."""
        self._claims_manually = True
        new = set(types or ()) - self._pulled_types
        if new and len(self._pulled_types) < MAX_TYPES:
            self._pulled_types |= new
            self.intakes_changed()

    def hold(self, jobs: Sequence[Job]) -> None:
        """Beat often enough for jobs that were claimed just now, and start the clocks of their execution limits."""
        self.limits.hold(jobs)
        short = {
            job.id: (job.attempt, visibility.total_seconds())
            for job in jobs
            if (visibility := job.timeouts.visibility) is not None
            and visibility < self._backend.options.liveness
        }
        if short:
            with self._lock:
                self._short |= short
            self.heartbeat.wake()

    def short_holds(self) -> dict[str, int]:
        """Return ids and attempts of the held jobs that need more frequent heartbeats."""
        return {job_id: attempt for job_id, (attempt, _) in self._short.items()}

    def release(self, job_id: str) -> None:
        """Forget a job that is not held any more."""
        self._short.pop(job_id, None)
        self.limits.release(job_id)

    def end_attempt(self, job_id: str, attempt: int) -> None:
        """Forget an attempt that has ended, and every earlier one of its job."""
        self.limits.release(job_id, attempt)
        for kept in self._superseded.values():
            kept.discard(job_id)
        if job_id in self._short and self._short[job_id][0] <= attempt:
            del self._short[job_id]

    def intakes_changed(self) -> None:
        """Publish soon what the streams accept."""
        self._has_unpublished = True
        self.heartbeat.wake()

    def _intakes(self) -> list[Intake]:
        """Return what this process accepts, by its streams and outside them."""
        found = self._groups.intakes()
        if self._pulled_types:
            found.append(Intake(types=tuple(sorted(self._pulled_types))))
        return found if len(found) <= MAX_INTAKES else [_merged(found)]

    # -- heartbeats ---------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Send a heartbeat now; if the store gave the owner up, register a new one."""
        with self._beating:
            if self._owner is not None and not self._beat_owner(self._owner):
                self.intakes_changed()
            for owner, kept in list(self._superseded.items()):
                if kept:
                    owner.keep()
                else:
                    owner.close()
                    with self._lock:
                        del self._superseded[owner]

    def _beat_owner(self, owner: Owner) -> bool:
        """Send a heartbeat, with what the streams accept if that has changed."""
        with self._lock:
            intakes = self._intakes() if self._has_unpublished else None
            self._has_unpublished = False
        try:
            return owner.beat(intakes)
        except (
            TypeError,
            ValueError,
        ):  # intakes are for operators: without them, the heartbeat is sent all the same
            logger.exception("what the streams of this process accept could not be stored")
            return owner.beat()
        except BaseException:
            self._has_unpublished = self._has_unpublished or intakes is not None
            raise

    def needs_beat(self) -> bool:
        """Whether the last heartbeat is so old that claims must wait for another one."""
        return self._owner is None or self._owner.needs_beat()

    def beat_seconds(self) -> float:
        """Return the pause between two heartbeats, given what is held."""
        with self._lock:
            shortest = min(
                (visibility for _, visibility in self._short.values()),
                default=self._backend.options.liveness.total_seconds(),
            )
        return max(MIN_BEAT_SECONDS, shortest / BEATS_PER_LIVENESS)

    def _next_beat_seconds(self) -> float:
        pause = self.beat_seconds()
        return min(pause, PUBLISH_SECONDS) if self._has_unpublished else pause


def _merged(intakes: Sequence[Intake]) -> Intake:
    """Return very many filters as one that accepts at least as much."""
    types = {each for intake in intakes for each in intake.types or ()}
    is_any = any(intake.types is None for intake in intakes) or len(types) > MAX_TYPES
    return Intake(
        types=None if is_any else tuple(sorted(types)),
        slots=sum(intake.slots for intake in intakes),
        waiting=sum(intake.waiting for intake in intakes),
    )
