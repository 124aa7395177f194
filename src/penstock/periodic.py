"""Periodic jobs: when a schedule ticks, and a ticker that makes a job of each tick, once over all processes.

    ticker = Ticker(queue, [Periodic("report", Cron("0 3 * * *", tz="Europe/Berlin"), make_job)]).start()
    ...
    ticker.close()

Any number of processes may run a ticker with the same schedules. The store remembers, by the schedule's name, up to which
tick it was dealt with; a tick's job is stored in the transaction that moves that mark, and only by who moves it from where
it stood. Two processes therefore never make two jobs of one tick, and one that dies half-way has done all of it or nothing.

Time is the store's. When it jumps forward, or no process was there for a while, ticks were missed: `missed` says what
becomes of them. When it jumps back, nothing ticks until it has come to where it was.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from types import TracebackType
from typing import Final, Literal, Protocol, Self

import msgspec

from penstock.clock import from_micros, to_micros
from penstock.errors import (
    InvalidArgumentError,
    PenstockError,
    QueueBlockedError,
    QueueClosedError,
    QueueFullError,
    shown,
)
from penstock.job import Job
from penstock.policy import duration
from penstock.queue import Queue

__all__ = ["Cron", "Every", "Missed", "Periodic", "Ticker", "Ticks"]

logger = logging.getLogger("penstock")

Missed = Literal["latest", "skip", "all"]
"""What becomes of ticks at which no worker was there: a job of the latest one, of none, or of all."""
#: With missed="skip", a tick that is older than this when it is first seen was missed.
GRACE: Final = timedelta(seconds=60)
#: With missed="all", so many ticks become jobs in one transaction.
TICKS_AT_ONCE: Final = 100
LOOK_SECONDS: Final = 1.0
_FAR_AHEAD: Final = timedelta(hours=1)
#: How far back the latest tick is looked for, in steps, so that a long absence costs no long walk.
_LOOK_BACK: Final = tuple(timedelta(days=days) for days in (1 / 24, 1, 32, 367, 3660))


class Ticks(Protocol):
    """A rule that says when something is due."""

    def after(self, moment: datetime) -> datetime:
        """Return the first tick later than a moment, in UTC."""
        ...


class Cron:
    """Five cron fields: minute, hour, day of month, month, day of week, as Debian's cron reads them.

    In a time zone with daylight saving, where an hour is skipped or comes twice:

    - a schedule with a fixed hour ticks once a day all the same: what falls into the skipped hour ticks right after
      it, what falls into the repeated one ticks the first time only;
    - one whose hour or minute begins with `*` follows the clock: it does not tick in the skipped hour, and ticks in
      both repeated ones.

    Where clocks change by half an hour (there is one such zone, Australia/Lord_Howe), a tick right after the change
    may be left out.

    Args:
        expression: such as "*/5 * * * *", "0 3 * * mon-fri", "0 0 L * *".
        tz: the time zone it is meant in, by name or as tzinfo; UTC unless given.

    Raises:
        InvalidArgumentError: the expression or the zone is wrong, or it never ticks.
    """

    def __init__(self, expression: str, tz: str | tzinfo = UTC) -> None:
        if not isinstance(expression, str) or len(expression.split()) != 5:
            raise InvalidArgumentError(
                f"a cron expression has five fields (minute hour day month weekday), got {shown(expression)}",
                field="expression",
                value=expression,
            )
        self.expression = " ".join(expression.split())
        self.tz = _zone(tz)
        # Imported by those who have such a schedule: most apps, and the processes of jobs, have none.
        from cronsim import CronSim, CronSimError  # noqa: PLC0415

        self._simulate = CronSim
        try:
            next(CronSim(self.expression, datetime(2024, 1, 1, tzinfo=self.tz)))
        except CronSimError as error:
            raise InvalidArgumentError(
                f"the cron expression {shown(expression)} is wrong: {error}",
                field="expression",
                value=expression,
            ) from None
        except StopIteration:
            raise InvalidArgumentError(
                f"the cron expression {shown(expression)} never ticks", field="expression", value=expression
            ) from None

    def after(self, moment: datetime) -> datetime:
        return next(self._simulate(self.expression, moment.astimezone(self.tz))).astimezone(UTC)

    def __repr__(self) -> str:
        return f"Cron({self.expression!r}, tz={str(self.tz)!r})"


class Every:
    """A fixed interval, counted from 1970 in UTC: whoever asks, and whenever it starts, the ticks are the same.

    Args:
        interval: timedelta or seconds, at least one second.
    """

    def __init__(self, interval: timedelta | float) -> None:
        self.interval = duration(interval, "interval", positive=True)
        if self.interval < timedelta(seconds=1):
            raise InvalidArgumentError(
                f"interval must be at least 1 second, got {shown(interval)}", field="interval", value=interval
            )
        self._micros = self.interval // timedelta(microseconds=1)

    def after(self, moment: datetime) -> datetime:
        return from_micros((to_micros(moment) // self._micros + 1) * self._micros)

    def __repr__(self) -> str:
        return f"Every({self.interval!r})"


class Periodic(msgspec.Struct, frozen=True):
    """A schedule: its name, when it ticks, the job it makes of a tick, and what becomes of missed ticks.

    Attributes:
        name: tells it from others in the store; the same in every process and every release.
        when: the rule, a `Cron` or an `Every`.
        job: makes the job of a tick.
        missed: "latest" makes a job of the latest missed tick only; "skip" makes none of ticks that are more than a
            minute old; "all" makes one of each, in order.
    """

    name: str
    when: Ticks
    job: Callable[[datetime], Job]
    missed: Missed = "latest"

    def __post_init__(self) -> None:
        if self.missed not in {"latest", "skip", "all"}:
            raise InvalidArgumentError(
                f'missed must be "latest", "skip" or "all", got {shown(self.missed)}',
                field="missed",
                value=self.missed,
            )


class Ticker:
    """Makes jobs of ticks while it is started, in the background. One per process is enough; any number is safe."""

    def __init__(self, queue: Queue, schedules: Iterable[Periodic]) -> None:
        self._backend = queue.backend
        self._schedules = {each.name: each for each in schedules}
        self._stood: dict[str, datetime] = {}
        self._warned: set[str] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Begin. Without schedules nothing begins."""
        if self._stopping.is_set():
            raise QueueClosedError("this Ticker was closed; make a new one")
        if self._schedules and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-ticker", daemon=True)
            self._thread.start()
        return self

    def close(self) -> None:
        """End. Idempotent."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        wait = 0.0
        while not self._stopping.wait(wait):
            wait = LOOK_SECONDS
            try:
                wait = min(LOOK_SECONDS, max(0.01, self.tick().total_seconds()))
            except QueueClosedError:
                return
            except PenstockError as error:
                logger.warning("periodic jobs wait for the store: %s", error)
            except Exception:  # a defect must not end all schedules in silence
                logger.exception("periodic jobs failed; they go on")

    # -- one pass -----------------------------------------------------------------------------------------------

    def tick(self) -> timedelta:
        """Make jobs of all ticks that are due now, and return how long it is until the next one."""
        now = self._backend.now()
        # Others may have been here: most processes find that there is nothing left to do.
        self._look()
        for each in self._schedules.values():
            with self._faults_kept_apart(each):
                while self._is_due(each, now) and not self._stopping.is_set():
                    self._advance(each, now)
        waits = [each.when.after(self._stood.get(each.name, now)) - now for each in self._schedules.values()]
        return min(waits, default=timedelta(seconds=LOOK_SECONDS))

    def _is_due(self, schedule: Periodic, now: datetime) -> bool:
        stood = self._stood.get(schedule.name)
        return stood is None or schedule.when.after(stood) <= now

    def _advance(self, schedule: Periodic, now: datetime) -> None:
        """Deal with what is due of one schedule, or find out that another process did."""
        stood = self._stood.get(schedule.name)
        if stood is None:
            # New: it begins now, with its next tick.
            upto, ticks = now, []
        else:
            ticks = _ticks(schedule, stood, now)
            upto = ticks[-1]
            if schedule.missed == "skip" and upto < now - GRACE:
                logger.info("the schedule %r skips ticks up to %s", schedule.name, upto)
                ticks = []
        jobs = [schedule.job(each) for each in ticks]
        if self._backend.tick_schedule(schedule.name, upto, jobs, after=stood):
            self._stood[schedule.name] = upto
        else:
            self._look()

    def _look(self) -> None:
        self._stood = {each.name: each.tick for each in self._backend.list_schedules()}

    @contextlib.contextmanager
    def _faults_kept_apart(self, schedule: Periodic) -> Iterator[None]:
        """Let no schedule suffer from another one's fault."""
        try:
            stood = self._stood.get(schedule.name)
            if stood is not None and stood > self._backend.now() + _FAR_AHEAD:
                self._warn(schedule, f"stands at {stood}, which is still to come: the clock was set back")
            yield
            self._warned.discard(schedule.name)
        except (QueueBlockedError, QueueFullError) as error:
            self._warn(schedule, f"waits: {error}")
        except InvalidArgumentError as error:
            self._warn(schedule, f"makes no valid job: {error}")
        except PenstockError:
            raise
        except Exception:  # the user's function that makes the job
            logger.exception("the schedule %r could not make its job", schedule.name)

    def _warn(self, schedule: Periodic, text: str) -> None:
        if schedule.name not in self._warned:
            self._warned.add(schedule.name)
            logger.warning("the schedule %r %s", schedule.name, text)


def _ticks(schedule: Periodic, stood: datetime, now: datetime) -> list[datetime]:
    """Return the ticks to make jobs of, of those after `stood` up to `now`; there is at least one."""
    if schedule.missed == "all":
        return list(itertools.islice(_walk(schedule.when, stood, now), TICKS_AT_ONCE))
    for span in _LOOK_BACK:
        if now - span <= stood:
            break
        found = list(_walk(schedule.when, now - span, now))
        if found:
            return found[-1:]
    return list(_walk(schedule.when, stood, now))[-1:]


def _walk(when: Ticks, start: datetime, now: datetime) -> Iterator[datetime]:
    tick = when.after(start)
    while tick <= now:
        yield tick
        tick = when.after(tick)


def _zone(tz: object) -> tzinfo:
    if isinstance(tz, tzinfo):
        return tz
    from zoneinfo import ZoneInfo  # noqa: PLC0415  # see `Cron`

    try:
        return ZoneInfo(tz)  # type: ignore[arg-type]  # whatever it is, the constructor is the check
    except (ValueError, KeyError, OSError, TypeError, AttributeError):
        raise InvalidArgumentError(
            f'tz must be the name of a time zone, such as "Europe/Berlin", got {shown(tz)}',
            field="tz",
            value=tz,
        ) from None
