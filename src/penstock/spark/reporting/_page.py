"""The report as one self-contained HTML page, with its script, its style and the plotting library."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from plotly.offline import get_plotlyjs

__all__ = ["report_page"]


def report_page(figures: dict[str, Any]) -> str:
    """Return a report as HTML. Texts of jobs are embedded as data, never as markup."""
    page = resources.files("penstock.spark.reporting").joinpath("page.html").read_text("utf-8")
    # "<" could end the script element; the last two are line separators for some JSON parsers.
    data = json.dumps(figures, ensure_ascii=False, allow_nan=False)
    for sign in ("<", ">", "&", "\u2028", "\u2029"):
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    before, _, rest = page.partition("/*FIGURES*/")
    between, _, after = rest.partition("/*PLOTLY*/")
    return f"{before}{data}{between}{get_plotlyjs()}{after}"
