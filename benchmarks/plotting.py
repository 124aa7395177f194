"""The cost of two common tags, drawn: by matplotlib if it is installed, else in letters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.results import Result

WIDTH: Final = 60


def points(results: Iterable[Result]) -> dict[str, list[tuple[int, float]]]:
    """Return (ready jobs of each tag, milliseconds of a claim) by store."""
    found: dict[str, list[tuple[int, float]]] = {}
    for result in results:
        if "jobs" in result.extra:
            found.setdefault(result.store, []).append((result.extra["jobs"], result.ours))
    return found


def text_plot(results: Iterable[Result]) -> str:
    """Return a bar for each point; empty if nothing was measured."""
    lines = []
    for store, series in points(results).items():
        most = max(cost for _, cost in series)
        lines.append(f"claim 1 with two common tags, {store}: ms by the number of ready jobs of each tag")
        lines += [
            f"{jobs:>9,} {'█' * max(1, round(cost / most * WIDTH))} {cost:.2f}" for jobs, cost in series
        ]
    return "\n".join(lines)


def write_plot(results: Sequence[Result], path: Path) -> str:
    """Write the plot to a file and return what was done."""
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415  # drawn only if somebody has it
    except ImportError:
        path.with_suffix(".txt").write_text(text_plot(results) + "\n")
        return f"{path.with_suffix('.txt')} (in letters: matplotlib is not installed)"
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for store, series in points(results).items():
        axes.plot([jobs for jobs, _ in series], [cost for _, cost in series], marker="o", label=store)
    axes.set(xscale="log", yscale="log", xlabel="ready jobs of each tag", ylabel="ms per claim of one job")
    axes.set_title("Claiming with two common tags")
    axes.legend()
    figure.savefig(path)
    return str(path)
