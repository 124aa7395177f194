"""Measure Penstock beside other job queues, by turns, each at its best durable settings.

python -m benchmarks.peers                                   everything: three rounds, hours
python -m benchmarks.peers --quick                           a first look: one round of a tenth of the jobs
python -m benchmarks.peers --only pgqueuer --stores postgres beside one product, on one store
python -m benchmarks.peers --workloads w1,w3 --rounds 5

`make bench-peers` is the same and makes the environments first; BENCH_ARGS gives it options.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import report
from benchmarks.peers.catalogue import choose_products
from benchmarks.peers.disturbance import LIMIT, REPEATS, adopt_orphans
from benchmarks.peers.environments import ROOT, InstallError, interpreter, make_environment
from benchmarks.peers.figures import STORES, WORKLOADS, Line, Run, summarise
from benchmarks.peers.product import Product
from benchmarks.peers.rounds import Limits, Rounds, plan
from benchmarks.peers.servers import MissingError, Places
from benchmarks.peers.table import markdown, replace_table

RESULTS: Final = ROOT / "benchmarks" / "results" / "peers.json"
PAGE: Final = ROOT / "docs" / "benchmarks.md"
PICTURE: Final = ROOT / "docs" / "assets" / "peers.svg"
QUICK_NOTE: Final = "A quick run: one round of a tenth of the jobs, for a first look only."


def main(
    only: Annotated[str, typer.Option(help="Products beside Penstock, separated by commas.")] = "",
    workloads: Annotated[str, typer.Option(help="Separated by commas.")] = ",".join(WORKLOADS),
    stores: Annotated[str, typer.Option(help="Separated by commas.")] = ",".join(STORES),
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="How often every product takes its turn; 3 by default, 1 with --quick."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of the jobs, one round, no repeated runs.")
    ] = False,
    folder: Annotated[Path | None, typer.Option(help="Where stores lie; the disk that is measured.")] = None,
    limit: Annotated[
        float, typer.Option(min=0, max=1, help="Part of the machine's processor time that others may have.")
    ] = LIMIT,
    repeats: Annotated[
        int | None,
        typer.Option(min=0, help="How often a disturbed run is repeated; 2 by default, 0 with --quick."),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            show_default="benchmarks/results/peers.json, or peers-quick.json",
            help="Where the figures are written; table (.md) and plot (.svg) are written beside them.",
        ),
    ] = None,
    docs: Annotated[
        bool, typer.Option("--docs", help="Also put table and plot into docs/benchmarks.md.")
    ] = False,
    install_only: Annotated[
        bool, typer.Option("--install-only", help="Make the environments and stop.")
    ] = False,
) -> None:
    """Measure Penstock beside other job queues and write figures, a table and a plot."""
    chosen_workloads = _chosen("--workloads", workloads, WORKLOADS)
    chosen_stores = _chosen("--stores", stores, STORES)
    try:
        products = choose_products(name for name in only.split(",") if name)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--only") from None
    products = [kind for kind in products if set(kind.stores) & set(chosen_stores)]
    json_file = json_file or RESULTS.with_name("peers-quick.json" if quick else "peers.json")
    console = Console()
    if not console.is_terminal:
        console.width = 150  # of a file or a pipe, where nothing says how wide it may be
    missing = _make_environments(products, console)
    if install_only:
        return
    adopt_orphans()
    limits = Limits(limit, repeats if repeats is not None else 0 if quick else REPEATS)
    with tempfile.TemporaryDirectory(
        prefix="penstock-peers-", dir=folder, ignore_cleanup_errors=True
    ) as place:
        session = Session(Places(Path(place)), products, missing, console, limits, is_quick=quick)
        session.facts |= report.machine(Path(place), None)
        try:
            session.run(chosen_workloads, chosen_stores, rounds or (1 if quick else 3), json_file)
        except KeyboardInterrupt:
            console.print("[yellow]interrupted; what was measured so far:[/]")
        finally:
            session.close()
    session.write(json_file)
    console.print(
        json_file.with_suffix(".md").read_text(encoding="utf-8"),
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"{json_file}, {json_file.with_suffix('.md').name}, {json_file.with_suffix('.svg').name}")
    if docs:
        _put_into_docs(json_file)


class Session:
    """What a run of this command has found so far."""

    def __init__(
        self,
        places: Places,
        products: Sequence[type[Product]],
        missing: Mapping[str, str],
        console: Console,
        limits: Limits,
        *,
        is_quick: bool,
    ) -> None:
        self._places = places
        self._products = list(products)
        self._console = console
        self._limits = limits
        self._is_quick = is_quick
        self._missing = dict(missing)
        self._runs: list[Run] = []
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._rounds = Rounds(places, limits, self._tell, is_quick=is_quick)
        self._task = self._progress.add_task("starting")
        self.facts: dict[str, str] = {"date": f"{datetime.now(UTC):%Y-%m-%d}"}

    def run(self, workloads: Sequence[str], stores: Sequence[str], rounds: int, json_file: Path) -> None:
        """Measure, and write what is known after every workload."""
        present = self._start_servers(stores)
        self._find_versions(present)
        turns = plan(rounds, workloads, present, self._products)
        self._progress.update(self._task, total=len(turns), completed=0)
        with self._progress:
            for found in self._rounds.run(turns):
                self._runs += found
                self._progress.update(self._task, completed=len(self._runs))
                for run in found:
                    self._show(run)
                self.write(json_file, plots=False)

    def write(self, json_file: Path, *, plots: bool = True) -> None:
        """Write figures, table and plot."""
        lines = summarise(self._runs)
        note = QUICK_NOTE if self._is_quick else ""
        about = {kind.name: kind.guarantees for kind in self._products}
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(self._as_json(lines, note), indent=1), encoding="utf-8")
        text = markdown(lines, about, self.facts, self._missing, note)
        json_file.with_suffix(".md").write_text(text, encoding="utf-8")
        if plots and lines:
            _plot(json_file, self._console)

    def close(self) -> None:
        self._rounds.close()
        self._places.close()

    def _as_json(self, lines: Sequence[Line], note: str) -> dict[str, Any]:
        return {
            "facts": self.facts,
            "note": note,
            "limits": {"share": self._limits.share, "repeats": self._limits.repeats},
            "products": {
                kind.name: {"guarantees": kind.guarantees, "settings": kind.settings, "stores": kind.stores}
                for kind in self._products
            },
            "missing": self._missing,
            "lines": [line.as_json() for line in lines],
            "runs": [run.as_json() for run in self._runs],
        }

    def _start_servers(self, stores: Sequence[str]) -> list[str]:
        present = []
        for store in stores:
            try:
                self.facts |= self._places.prepare(store)
                present.append(store)
            except MissingError as error:
                self._console.print(f"[yellow]{STORES[store]} is left out: {error}[/]")
                for kind in self._products:
                    if kind.stores == (store,):
                        self._missing[kind.name] = str(error)
        return present

    def _find_versions(self, stores: Sequence[str]) -> None:
        """Drop products that cannot run here, and say the versions of the others."""
        versions = []
        for kind in list(self._products):
            reason = self._missing.get(kind.name, "")
            if not reason and set(kind.stores) & set(stores):
                try:
                    versions.append(f"{kind.name} {self._rounds.version(kind)}")
                    continue
                except LookupError as error:
                    reason = self._missing[kind.name] = str(error)
            if reason:
                self._console.print(f"[yellow]{kind.name} is left out: {reason}[/]")
            self._products.remove(kind)
        self.facts["products"] = ", ".join(versions)

    def _tell(self, text: str) -> None:
        self._progress.update(self._task, description=text)
        self._progress.advance(self._task, 0)

    def _show(self, run: Run) -> None:
        """Say what came of a turn, where no progress line is shown."""
        what = f"{run.error[:160]}" if run.value is None else f"{run.value:,.1f}"
        others = "" if run.share is None else f", others had {run.share:.0%}"
        mark = " †" if run.is_disturbed else ""
        self._console.print(
            f"{time.strftime('%H:%M:%S')} {run.round} {run.workload:4} {run.store:9} {run.product:14} {what}{mark}"
            f" (raw {run.raw or 0:,.0f}{others})",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def _chosen(option: str, text: str, known: Mapping[str, str]) -> list[str]:
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise typer.BadParameter(
            f"unknown: {', '.join(unknown)}; there are {', '.join(known)}", param_hint=option
        )
    return [name for name in known if name in names]


def _make_environments(products: Sequence[type[Product]], console: Console) -> dict[str, str]:
    """Make the environments that are needed; return why products are missing."""
    missing: dict[str, str] = {}
    for environment in dict.fromkeys(["peers", *(kind.environment for kind in products)]):
        try:
            make_environment(environment, sys.stdout)
        except (InstallError, OSError, subprocess.CalledProcessError) as error:
            console.print(f"[yellow]{environment}: {error}[/]")
            missing |= {kind.name: str(error) for kind in products if kind.environment == environment}
    return missing


def _plot(json_file: Path, console: Console) -> None:
    command = [
        str(interpreter("peers")), "-m", "benchmarks.peers.plot",
        str(json_file.resolve()), str(json_file.resolve().with_suffix(".svg")),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        console.print(f"[yellow]no plot: {done.stderr.strip()[-300:]}[/]")


def _put_into_docs(json_file: Path) -> None:
    picture = json_file.with_suffix(".svg").read_text(encoding="utf-8")
    PICTURE.write_text(picture, encoding="utf-8")
    table = json_file.with_suffix(".md").read_text(encoding="utf-8")
    text = f"![Penstock beside other queues](assets/{PICTURE.name})\n\n{table}"
    PAGE.write_text(replace_table(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
