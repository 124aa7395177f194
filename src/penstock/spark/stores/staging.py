"""Where tasks leave rows for Spark's driver to publish; they are no jobs before that.

Every task attempt writes a stage of its own, and the commit message of the attempt that won names it. So a stage of a
failed, repeated or speculative attempt is never read; it is removed with its write, or when it is stale.
"""

from __future__ import annotations

import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Final

__all__ = ["STALE_SECONDS", "Staging", "is_stale"]

#: A stage that was not published for so long never will be: its driver process has ended.
STALE_SECONDS: Final = 24 * 3600


class Staging(ABC):
    """The stages of one write; pickled into its tasks.

    Attributes:
        group: names the write, and when it began.
    """

    def __init__(self) -> None:
        self.group = f"{int(time.time())}_{uuid.uuid4().hex[:16]}"

    @abstractmethod
    def check(self) -> None:
        """Check, in a task, that Spark's driver will find what is written here."""

    @abstractmethod
    def write(self, chunks: Iterable[bytes]) -> str:
        """Write chunks to a new stage, whole or not at all, and return its name."""

    @abstractmethod
    def read(self, name: str) -> Iterator[bytes]:
        """Yield the chunks of a stage."""

    @abstractmethod
    def clear(self, group: str) -> None:
        """Remove all stages of a write, and stale ones of any write. Failures are left to a later write."""


def is_stale(name: str) -> bool:
    """Whether the write that a group is named after began too long ago to be published."""
    began = re.match(r"(\d+)_[0-9a-f]{16}", name)
    return began is not None and int(began[1]) < time.time() - STALE_SECONDS
