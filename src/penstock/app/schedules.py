"""Periodic jobs: when a schedule ticks, and a ticker that makes a job of each tick, once over all processes.

    ticker = Ticker(queue, [Periodic("report", Cron("0 3 * * *", tz="Europe/Berlin"), make_job)]).start()
    ...
    ticker.close()

Any number of processes may run a ticker with the same schedules. The store keeps the last processed tick by the schedule's
name; the job of a tick is stored in the transaction that moves that mark, which only succeeds from the
mark that the process has read. Two processes therefore never make two jobs of one tick, and a process that dies half-way
has done all of it or nothing.

Time is the store's. When it jumps forward, or no process ran for a while, ticks were missed: `missed` says what becomes of
them. When it jumps back, nothing ticks until it reaches the mark again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, Literal, Protocol, Self

import msgspec

from penstock.clock import from_micros, to_micros
from penstock.durations import Duration, duration
from penstock.errors import (
    InvalidArgumentError,
    PenstockError,
    QueueBlockedError,
    QueueClosedError,
    QueueFullError,
    shown,
)
from penstock.job import Job
from penstock.queue import Queue
from penstock.service import Service

__all__ = ["Cron", "Every", "Missed", "Periodic", "Ticker", "Ticks"]

logger = logging.getLogger("penstock")

Missed = Literal["latest", "skip", "all"]
"""What becomes of ticks at which no worker ran: a job of the latest one, of none, or of all."""
#: With missed="skip", a tick that is older than this when it is first seen was missed.
GRACE: Final = timedelta(seconds=60)
#: With missed="all", how many ticks become jobs in one transaction.
TICKS_PER_TRANSACTION: Final = 100
POLL_SECONDS: Final = 1.0
MAX_NAME: Final = 256
_FAR_AHEAD: Final = timedelta(hours=1)
#: How far back the latest tick is searched, in steps, so that a long absence costs no long walk.
_SEARCH_BACK: Final = tuple(timedelta(days=days) for days in (1 / 24, 1, 32, 367, 3660))


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
        # Imported here because most apps, and the child processes, have no such schedule.
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
    """A fixed interval, counted from 1970 in UTC, so that the ticks are the same in every process and after every start.

    Args:
        interval: timedelta or seconds, at least one second.
    """

    def __init__(self, interval: Duration) -> None:
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
        name: identifies it in the store; the same in every process and every release.
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
        if (
            not isinstance(self.name, str)
            or not 0 < len(self.name) <= MAX_NAME
            or not self.name.isprintable()
        ):
            raise InvalidArgumentError(
                f"name must be a printable text of 1 to {MAX_NAME} characters, got {shown(self.name)}",
                field="name",
                value=self.name,
            )
        if not isinstance(self.missed, str) or self.missed not in {"latest", "skip", "all"}:
            raise InvalidArgumentError(
                f'missed must be "latest", "skip" or "all", got {shown(self.missed)}',
                field="missed",
                value=self.missed,
            )


class Ticker:
    """Makes jobs of ticks in the background while it is started. One per process is enough; any number is safe."""

    def __init__(self, queue: Queue, schedules: Iterable[Periodic]) -> None:
        if not isinstance(queue, Queue):
            raise InvalidArgumentError(
                f"queue must be a Queue, got {shown(queue)}", field="queue", value=queue
            )
        wanted = list(schedules) if isinstance(schedules, Iterable) else [schedules]
        for each in wanted:
            if not isinstance(each, Periodic):
                raise InvalidArgumentError(
                    f"schedules must hold Periodic objects, got {shown(each)}", field="schedules", value=each
                )
        self._backend = queue.backend
        self._schedules = {each.name: each for each in wanted}
        self._marks: dict[str, datetime] = {}
        self._warned: set[str] = set()
        self._is_closed = False
        self._service = Service("ticker", self._run, seconds=POLL_SECONDS, label="making periodic jobs")

    def start(self) -> Self:
        """Start the thread. Without schedules there is none."""
        if self._is_closed:
            raise QueueClosedError("this Ticker was closed; make a new one")
        if self._schedules:
            self._service.start()
        return self

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._is_closed = True
        self._service.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> float:
        return min(POLL_SECONDS, max(0.01, self.tick().total_seconds()))

    # -- one pass -----------------------------------------------------------------------------------------------

    def tick(self) -> timedelta:
        """Make jobs of all ticks that are due now, and return how long it is until the next one."""
        now = self._backend.now()
        # Another process may have done it: most find that there is nothing left to do.
        self._read_marks()
        for each in self._schedules.values():
            with self._isolating_errors(each):
                while self._is_due(each, now) and not self._is_closed:
                    self._advance(each, now)
        waits = [each.when.after(self._marks.get(each.name, now)) - now for each in self._schedules.values()]
        return min(waits, default=timedelta(seconds=POLL_SECONDS))

    def _is_due(self, schedule: Periodic, now: datetime) -> bool:
        mark = self._marks.get(schedule.name)
        return mark is None or schedule.when.after(mark) <= now

    def _advance(self, schedule: Periodic, now: datetime) -> None:
        """Make the jobs of what is due of one schedule, or find out that another process did."""
        mark = self._marks.get(schedule.name)
        if mark is None:
            # New: it begins now, with its next tick.
            upto, ticks = now, []
        else:
            ticks = _ticks(schedule, mark, now)
            upto = ticks[-1]
            if schedule.missed == "skip" and upto < now - GRACE:
                logger.info("the schedule %r skips ticks up to %s", schedule.name, upto)
                ticks = []
        jobs = [schedule.job(each) for each in ticks]
        if self._backend.outbox.tick_schedule(schedule.name, upto, jobs, after=mark):
            self._marks[schedule.name] = upto
        else:
            self._read_marks()

    def _read_marks(self) -> None:
        self._marks = {each.name: each.tick for each in self._backend.outbox.list_schedules()}

    @contextlib.contextmanager
    def _isolating_errors(self, schedule: Periodic) -> Iterator[None]:
        """Keep the error of one schedule from stopping the others."""
        try:
            mark = self._marks.get(schedule.name)
            if mark is not None and mark > self._backend.now() + _FAR_AHEAD:
                self._warn(schedule, f"stands at {mark}, which is in the future: the clock was set back")
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


def _ticks(schedule: Periodic, mark: datetime, now: datetime) -> list[datetime]:
    """Return the ticks to make jobs of, of those after `mark` up to `now`; there is at least one."""
    if schedule.missed == "all":
        return list(itertools.islice(_walk(schedule.when, mark, now), TICKS_PER_TRANSACTION))
    for span in _SEARCH_BACK:
        if now - span <= mark:
            break
        found = list(_walk(schedule.when, now - span, now))
        if found:
            return found[-1:]
    return list(_walk(schedule.when, mark, now))[-1:]


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
        return ZoneInfo(tz)  # type: ignore[arg-type]  # see below
    except Exception:  # whatever it is, the constructor is the check
        raise InvalidArgumentError(
            f'tz must be the name of a time zone, such as "Europe/Berlin", got {shown(tz)}',
            field="tz",
            value=tz,
        ) from None
