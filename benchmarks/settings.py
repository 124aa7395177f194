"""How much is measured, and how the wait is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.progress import Progress


@dataclass(frozen=True)
class Settings:
    """What the command line decided.

    Attributes:
        rounds: alternating rounds of the short workloads; the long ones take half as many.
        quick: smaller stores and fewer jobs, for a first look.
    """

    rounds: int
    quick: bool
    display: Progress

    @property
    def rounds_of_bulk(self) -> int:
        return max(1, self.rounds // 2)

    def progress(self, name: str, total: int) -> Callable[[], None]:
        """Return a function to call after each of `total` steps."""
        task = self.display.add_task(name, total=total)
        return lambda: self.display.advance(task)
