"""The command that installs an extra, as error messages name it."""

from __future__ import annotations

__all__ = ["how_to_install"]


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra."""
    # Until there is a release, the name alone is not this package.
    return f"pip install '.[{extra}]' in a checkout of Penstock"
