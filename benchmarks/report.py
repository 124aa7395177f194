"""The header with the machine, and the table."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich import box
from rich.table import Table

from benchmarks.results import Result


def machine(folder: Path, emulated: float | None) -> dict[str, str]:
    """Return what the figures depend on."""
    return {
        "machine": f"{os.cpu_count()} cores ({_processor()}), load {os.getloadavg()[0]:.1f} at the start",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "penstock": _version("penstock"),
        "flush": flush(folder, emulated),
    }


def flush(folder: Path, emulated: float | None) -> str:
    """Say how long a flush takes now: the figures of single commits depend on it more than on anything else."""
    if emulated is not None:
        return f"{emulated} ms by a pause, in {folder}"
    return f"{_flush_milliseconds(folder):.2f} ms in {folder}"


def table(results: Iterable[Result]) -> Table:
    """Return the results as they are printed."""
    shown = Table(header_style="bold", box=box.SIMPLE_HEAD)
    for heading in ("workload", "store", "against"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("ours", "reference", "ratio", "spread", "goal"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("met")
    for result in results:
        ratios = result.ratios
        met = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[result.is_met]
        shown.add_row(
            result.workload,
            result.store,
            result.against,
            _figure(result.ours, result.unit),
            "" if result.reference is None else _figure(result.reference, result.unit),
            f"{statistics.median(ratios):.2f}" if ratios else "",
            f"{min(ratios):.2f}-{max(ratios):.2f}" if ratios else "",
            ""
            if result.goal is None
            else f"{result.goal}{'' if result.goal.of_ratio else f' {result.unit}'}",
            met,
        )
    return shown


def notes(results: Iterable[Result]) -> list[str]:
    """Return what must be said about single lines."""
    return [f"{each.workload}, {each.store}: {each.note}" for each in results if each.note]


def _figure(value: float, unit: str) -> str:
    return f"{value:,.0f}{unit}" if value >= 100 else f"{value:.3g} {unit}".replace(" /s", "/s")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "from a source tree"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _flush_milliseconds(folder: Path) -> float:
    """Return the median time of a flushed write of 4 KiB; next to nothing means that it is not a real disk."""
    path = folder / "flush"
    taken = []
    with path.open("wb", buffering=0) as file:
        for _ in range(50):
            file.write(b"\0" * 4096)
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - start)
    path.unlink()
    return statistics.median(taken) * 1000
