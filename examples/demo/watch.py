"""The display while the workers run: a live table in a terminal, one line per second elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from examples.demo.cast import KINDS, Cast, Settings
from examples.demo.story import words
from examples.demo.workers import Workers
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock import Backend, JobStats
from penstock.job import JournalEntry

#: Generous: on a busy machine the workers alone may take a minute to start.
PATIENCE = 300.0


class Watch:
    """Shows the jobs until all have ended; meanwhile it cancels two of them and kills a worker."""

    def __init__(self, backend: Backend, settings: Settings, console: Console) -> None:
        self._backend = backend
        self._settings = settings
        self._console = console
        self._began = time.monotonic()
        self._seq = 0
        self._news: list[JournalEntry] = []
        #: The job whose worker was killed.
        self.survivor: str | None = None

    def run(self, cast: Cast, workers: Workers) -> None:
        """Return when every job has ended."""
        cast.unwanted.cancel()
        is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        with self._live_display() if is_live else self._line_display() as show:
            while not self._is_over():
                self._interfere(cast, workers)
                show()
                time.sleep(0.1)
            show(last=True)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _is_over(self) -> bool:
        stats = self._backend.get_job_stats()
        if stats.completed_jobs + stats.stopped_jobs == stats.total_jobs:
            return True
        if self._elapsed > PATIENCE:
            raise TimeoutError(f"{stats.total_jobs} jobs did not end within {PATIENCE:g} s")
        return False

    def _interfere(self, cast: Cast, workers: Workers) -> None:
        workers.check()
        if not workers.killed:
            self.survivor = workers.kill_one(self._backend)
        if cast.endless.job().attempt and self._elapsed > self._settings.seconds(4):
            cast.endless.cancel()

    @contextlib.contextmanager
    def _live_display(self) -> Iterator[Callable[..., None]]:
        with Live(self._picture(), console=self._console, auto_refresh=False) as live:
            yield lambda **_: live.update(self._picture(), refresh=True)

    @contextlib.contextmanager
    def _line_display(self) -> Iterator[Callable[..., None]]:
        shown_at = float("-inf")

        def show(*, last: bool = False) -> None:
            nonlocal shown_at
            if last or self._elapsed - shown_at >= 1:
                shown_at = self._elapsed
                self._console.print(self._line(), soft_wrap=True)

        yield show

    def _line(self) -> str:
        stats = self._backend.get_job_stats()
        return (
            f"  {self._elapsed:5.1f} s   waiting {stats.pending_jobs:>4}   running {stats.running_jobs:>2}   "
            f"retrying {stats.failed_jobs:>2}   completed {stats.completed_jobs:>4}   "
            f"ended otherwise {stats.stopped_jobs:>2}"
        )

    def _picture(self) -> Group:
        is_wide = self._console.width >= 116
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("kind", no_wrap=True)
        table.add_column("", width=16)
        for name in ("waiting", "running", "retrying", "completed", "other"):
            table.add_column(name, justify="right", no_wrap=True)
        if is_wide:
            table.add_column("what it shows", style="dim", no_wrap=True)
        for kind, meaning in KINDS.items():
            stats = self._backend.get_job_stats([kind])
            table.add_row(kind, _bar(stats), *_counts(stats), *([meaning] if is_wide else ()))
        heading = Text(f"{self._elapsed:.0f} s; the journal, as it is written:", style="dim")
        room = max(0, min(8, self._console.height - len(KINDS) - 5))
        return Group(table, Text(), heading, *self._ticker(room))

    def _ticker(self, room: int) -> list[Text]:
        """Return the latest journal rows, those of the many fast jobs left out."""
        while rows := self._backend.read_journal(after=self._seq):
            self._seq = rows[-1].seq
            self._news = [*self._news, *(row for row in rows if row.type != "fast")][-8:]
        shown = self._news[-room:] if room else []
        return [
            Text(f"  {row.seq:>5}  {row.type:<9} {words(row)}", no_wrap=True, overflow="ellipsis")
            for row in shown
        ]


def _bar(stats: JobStats) -> ProgressBar:
    ended = stats.completed_jobs + stats.stopped_jobs
    return ProgressBar(total=max(stats.total_jobs, 1), completed=ended, width=16)


def _counts(stats: JobStats) -> list[str]:
    counts = (stats.pending_jobs, stats.running_jobs, stats.failed_jobs)
    counts += (stats.completed_jobs, stats.stopped_jobs)
    return [str(count) if count else "·" for count in counts]
