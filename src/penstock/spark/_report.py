"""The base of the reports that calls return."""

from __future__ import annotations

import msgspec

from penstock._html import html_table

__all__ = ["Report"]


class Report(msgspec.Struct, frozen=True):
    """Frozen data about a finished call; a notebook shows it as a table."""

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, msgspec.structs.asdict(self))
