"""Draws the figures: `python -m benchmarks.peers.plot peers.json peers.svg`, in the environment that has matplotlib.

A row of panels per workload, a panel per store, a bar per product. A thin line is the raw store.
"""

# mypy: disable-error-code="import-not-found, no-untyped-call, unused-ignore"
from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.peers.figures import OUR_NAME, STORES, TIMES, WORKLOADS
from benchmarks.peers.table import figure, short_name

OURS: Final = "#d9480f"
THEIRS: Final = "#9db2c6"
INK: Final = "#212529"
QUIET: Final = "#868e96"
BAR_HEIGHT: Final = 0.30
PANEL_HEIGHT: Final = 0.75
WIDTH: Final = 15.0


class Bar(NamedTuple):
    name: str
    value: float
    least: float
    most: float
    is_ours: bool
    is_disturbed: bool


class Panel(NamedTuple):
    workload: str
    store: str
    bars: list[Bar]
    raw: float | None


def panels(data: dict[str, Any]) -> dict[tuple[str, str], Panel]:
    """Return what is drawn, by workload and store; the best product first. Redis is shown beside both stores of ours."""
    found: dict[tuple[str, str], Panel] = {}
    for line in data["lines"]:
        if line["value"] is not None:
            key = (line["workload"], line["store"])
            panel = found.setdefault(key, Panel(*key, [], _raw(data, *key)))
            panel.bars.append(_bar(line, line["product"]))
    for (workload, store), panel in found.items():
        if store == "redis":
            panel.bars.extend(
                _bar(line, f"{OUR_NAME}, {STORES[line['store']]}")
                for line in data["lines"]
                if line["workload"] == workload and line["product"] == OUR_NAME and line["value"] is not None
            )
        panel.bars.sort(key=lambda bar: bar.value, reverse=workload not in TIMES)
    return found


def _bar(line: dict[str, Any], name: str) -> Bar:
    median, least, most = line["value"]
    return Bar(name, median, least, most, line["product"] == OUR_NAME, line["disturbed"] > 0)


def _raw(data: dict[str, Any], workload: str, store: str) -> float | None:
    raws = [
        run["raw"]
        for run in data["runs"]
        if (run["workload"], run["store"]) == (workload, store) and run["raw"] is not None
    ]
    return statistics.median(raws) if raws else None


def draw(data: dict[str, Any], path: Path) -> None:
    """Write the plot."""
    import matplotlib as mpl  # noqa: PLC0415  # only one environment has it
    from matplotlib.figure import Figure  # noqa: PLC0415  # the same

    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["font.family"] = ["DejaVu Sans", "sans-serif"]
    found = panels(data)
    workloads = [name for name in WORKLOADS if any(key[0] == name for key in found)]
    stores = [name for name in STORES if any(key[1] == name for key in found)]
    if not found:
        return
    heights = [
        PANEL_HEIGHT + BAR_HEIGHT * max(len(found[key].bars) for key in found if key[0] == name)
        for name in workloads
    ]
    drawing = Figure(
        figsize=(WIDTH * len(stores) / 3 + 1, sum(heights) + 1.0), layout="constrained", facecolor="white"
    )
    drawing.get_layout_engine().set(hspace=0.02, wspace=0.04)
    axes = drawing.subplots(len(workloads), len(stores), squeeze=False, height_ratios=heights)
    for row, workload in enumerate(workloads):
        for column, store in enumerate(stores):
            _draw_panel(axes[row][column], found.get((workload, store)), workload, store)
    drawing.suptitle(
        "Penstock beside other queues", color=INK, fontsize=14, fontweight="bold", x=0.01, ha="left"
    )
    notes = [
        data.get("note") or "",
        "Jobs per second; in W4 milliseconds. Dashed: the raw store. Black line: the spread over rounds.",
    ]
    if any(bar.is_disturbed for panel in found.values() for bar in panel.bars):
        notes.append("† disturbed by other processes.")
    drawing.supxlabel("\n".join(filter(None, notes)), color=QUIET, fontsize=9, x=0.01, ha="left")
    drawing.savefig(path)


def _draw_panel(axes: Any, panel: Panel | None, workload: str, store: str) -> None:
    if panel is None:
        axes.set_axis_off()
        return
    bars = panel.bars[::-1]
    places = range(len(bars))
    most = max([bar.value for bar in bars] + [panel.raw or 0.0])
    axes.barh(
        places, [bar.value for bar in bars], height=0.72,
        color=[OURS if bar.is_ours else THEIRS for bar in bars],
    )  # fmt: skip
    for place, bar in zip(places, bars, strict=True):
        axes.plot([bar.least, bar.most], [place, place], color=INK, linewidth=0.8, alpha=0.55)
        label = f"{figure(bar.value, workload)}{'†' if bar.is_disturbed else ''}"
        axes.text(
            max(bar.most, bar.value) + most * 0.012, place, label, va="center", fontsize=8.5,
            color=OURS if bar.is_ours else INK, fontweight="bold" if bar.is_ours else "normal",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        )  # fmt: skip
    if panel.raw:
        axes.axvline(panel.raw, color=QUIET, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        axes.text(
            panel.raw, len(bars) - 0.45, "raw store ", color=QUIET, fontsize=7.5, ha="right", va="bottom"
        )
    axes.set_yticks(places, [bar.name for bar in bars], fontsize=9, color=INK)
    for tick, bar in zip(axes.get_yticklabels(), bars, strict=True):
        tick.set_fontweight("bold" if bar.is_ours else "normal")
    axes.set_xlim(0, most * 1.22)
    axes.set_ylim(-0.6, len(bars) - 0.1)
    better = " (less is better)" if workload in TIMES else ""
    axes.set_title(
        f"{short_name(workload)} on {STORES[store]}: {WORKLOADS[workload]}{better}",
        fontsize=9, color=INK, loc="left",
    )  # fmt: skip
    axes.tick_params(length=0)
    axes.set_xticks([])
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color("#ced4da")


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
