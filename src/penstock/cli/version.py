"""`penstock version`: the versions of Penstock and what it runs on."""

from __future__ import annotations

import platform

import apsw

import penstock
from penstock.cli._output import emit, emit_json
from penstock.cli._store import AsJson

__all__ = ["version", "version_line"]


def version(as_json: AsJson = False) -> None:
    """Show the versions of Penstock, Python and SQLite.

    Examples:
        penstock version
        penstock version --json
    """
    if as_json:
        emit_json(
            {
                "penstock": penstock.__version__,
                "python": platform.python_version(),
                "sqlite": apsw.sqlite_lib_version(),
            }
        )
    else:
        emit(version_line())


def version_line() -> str:
    """Return the versions as one line."""
    return f"penstock {penstock.__version__} (Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()})"
