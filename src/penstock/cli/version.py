"""`penstock version`."""

from __future__ import annotations

import platform

import apsw
import typer

import penstock

__all__ = ["version"]


def version() -> None:
    """Show the versions of Penstock, Python and SQLite."""
    typer.echo(
        f"penstock {penstock.__version__} (Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()})"
    )
