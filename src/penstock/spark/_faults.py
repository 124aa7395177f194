"""What Spark says when something failed, cut down to what a person wants to read."""

from __future__ import annotations

from typing import Any

__all__ = ["short"]


def short(error: BaseException) -> str:
    """Return the last line of a Python traceback in Spark's message, or the first line of all."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("at ", "File ", "Driver stacktrace", "..."))]
    python = [
        line for line in told if line.partition(":")[0].rpartition(".")[2].endswith(("Error", "Exception"))
    ]
    chosen: Any = python[0] if python else (told or ["a task failed"])[0]
    return str(chosen)[:2000]
