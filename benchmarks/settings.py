"""How much is measured, and how the wait is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rich.progress import Progress


class Step(Protocol):
    """Says that something was done."""

    def __call__(self, done: int = 1, /) -> None: ...


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

    def say(self, text: str) -> None:
        """Tell the person at the terminal something, once."""
        self.display.console.print(f"[yellow]{text}[/]")

    @property
    def rounds_of_bulk(self) -> int:
        return max(1, self.rounds // 2)

    def progress(self, name: str, total: int) -> Step:
        """Return a function to call after each of `total` steps, or with how many were done."""
        task = self.display.add_task(name, total=total)

        def step(done: int = 1, /) -> None:
            self.display.advance(task, done)

        return step
