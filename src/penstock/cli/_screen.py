"""A terminal that is written to as a whole."""

from __future__ import annotations

import sys

from rich.console import Console

__all__ = ["console"]


def console() -> Console:
    """Return a console on stdout that reads no markup: what it shows was written by others."""
    return Console(file=sys.stdout, markup=False, emoji=False, highlight=False)
