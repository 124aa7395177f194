"""Run the demo. See the package for its parts."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from examples.demo.cast import Settings
from examples.demo.places import PlaceError, open_store, output_folder
from rich.console import Console
from rich.text import Text

from penstock import PenstockError

PROGRAM = "python -m examples.demo"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Watch a queue at work, on real workers and Spark."
    )
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo-output"),
        metavar="DIR",
        help="where everything is kept (demo-output)",
    )
    parser.add_argument("--jobs", type=int, default=300, help="how many fast jobs (300)")
    parser.add_argument("--pace", type=float, default=1.0, help="length of every wait; 0.5 is twice as fast")
    parser.add_argument(
        "--no-spark", action="store_true", help="leave out the pipeline, the audit and the report"
    )
    parser.add_argument(
        "--stay", action="store_true", help="keep the PostgreSQL server up at the end, until Ctrl-C"
    )
    options = parser.parse_args(arguments)
    if not 1 <= options.jobs <= 1_000_000 or not 0.1 <= options.pace <= 10:
        parser.error("--jobs is 1 to 1,000,000, --pace 0.1 to 10")
    return options


def run(options: argparse.Namespace, url: str, folder: Path, console: Console) -> bool:
    """Run all parts; return whether the audit found no violation."""
    os.environ["PENSTOCK_URL"] = url  # before the app opens its store
    from examples.demo import jobs, lake, story  # noqa: PLC0415  # see above
    from examples.demo.cast import submit_all  # noqa: PLC0415
    from examples.demo.watch import Watch  # noqa: PLC0415
    from examples.demo.workers import COMMAND, Workers  # noqa: PLC0415

    settings = Settings(options.jobs, options.pace)
    heading(console, "1  Jobs go in")
    cast = submit_all(settings)
    console.print(f"  {cast.total} jobs of 12 kinds are on disk in {shown(url)}")
    console.print(
        f"  the {settings.jobs} fast ones went in together, at {cast.stored_per_second:,.0f} per second"
    )

    heading(console, "2  Workers run them, each job in a process of its own")
    console.print(f"  twice: penstock {' '.join(COMMAND)}")
    console.print("  one of them will be killed, with kill -9, in the middle of a slow job", style="dim")
    try:
        backend = jobs.app.queue.backend
        watch = Watch(backend, settings, console)
        with Workers(url, folder) as workers:
            watch.run(cast, workers)
        heading(console, "3  The journal tells what happened")
        story.tell(console, backend, watch.survivor, cast.stuck.id)
    finally:
        jobs.app.close()
    violations = 0
    if not options.no_spark:
        heading(console, "4  Spark makes tables of it")
        violations = lake.show(console, url, folder)
    show_next(console, options, url, folder, watch.survivor or cast.stuck.id)
    return violations == 0


def show_next(console: Console, options: argparse.Namespace, url: str, folder: Path, job_id: str) -> None:
    """Print what there is to see, and commands to paste."""
    is_up = options.store == "sqlite" or options.stay
    has_lake = not options.no_spark
    looks = {}
    if has_lake:
        looks[str(folder / "report.html")] = "the report: open it in a browser"
        looks[str(folder / "lake")] = "the tables, as Parquet files"
    if options.store == "sqlite":
        looks[str(folder / "jobs.db")] = "the store, one SQLite file"
    looks[str(folder / "worker-1.log")] = "the log of a worker"
    looks["docs/quickstart.md"] = "how to write your own"
    heading(console, "Look at")
    show_lines(console, looks)
    penstock = command()
    tries = {}
    if is_up:
        where = f"--url {shlex.quote(shown(url))}"  # not PENSTOCK_URL: it would stay set in the shell
        tries[f"{penstock} stats {where}"] = "how many jobs are in which state"
        tries[f"{penstock} show {job_id} {where}"] = "every change of one job"
        tries[f"{penstock} list --status dead_letter {where}"] = "jobs that used up their attempts"
    if has_lake:
        tries[f"{penstock} report --lake {folder / 'lake'} --json"] = "the report's numbers"
        tries[f"{penstock} audit --lake {folder / 'lake'}"] = "the audit, again"
    tries |= {
        "make demo STORE=postgres": "the same on PostgreSQL",
        f"{python()} examples/hello/hello.py": "ten lines; more in examples/",
    }
    if options.store == "postgres":
        del tries["make demo STORE=postgres"]
        tries["make demo STORE=postgres DEMO_ARGS=--stay"] = "and keep the server up"
    heading(console, "Try next")
    show_lines(console, tries)


def heading(console: Console, text: str) -> None:
    console.print()
    console.rule(f"[bold]{text}", align="left")


def show_lines(console: Console, lines: dict[str, str]) -> None:
    width = max(map(len, lines))
    fits = not console.is_terminal or width + max(map(len, lines.values())) + 5 < console.width
    for what, why in lines.items():
        if fits:
            console.print(Text.assemble(f"  {what:<{width}}   ", (why, "dim")), soft_wrap=True)
        else:
            console.print(Text.assemble("  ", (f"# {why}", "dim"), f"\n  {what}"), soft_wrap=True)


def command() -> str:
    """Return how to call `penstock` from here."""
    path = Path(sys.executable).parent / "penstock"
    if not path.exists():
        return "python -m penstock"
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def python() -> str:
    """Return how to call this Python from here."""
    path = Path(sys.executable)
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def shown(url: str) -> str:
    """Return a url relative to this folder, if it can be."""
    path = url.removeprefix("sqlite:///")
    if path != url and Path(path).is_relative_to(Path.cwd()):
        return f"sqlite:///{os.path.relpath(path)}"
    return url


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    options = parse(arguments)
    console = Console(highlight=False, force_terminal=False if os.environ.get("CI") else None)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # also then, workers and server are stopped
    try:
        with output_folder(options.out) as folder, open_store(options.store, folder.absolute()) as url:
            is_sound = run(options, url, folder, console)
            console.print(f"\nThat took {time.monotonic() - began:.0f} s.")
            if options.stay and options.store == "postgres":
                console.print(f"PostgreSQL is up at {url} until Ctrl-C.", soft_wrap=True)
                threading.Event().wait()
    except ImportError as error:
        console.print(f"The demo failed: {error}. `make demo` installs what it needs.", style="red")
        return 1
    except (PenstockError, PlaceError, TimeoutError, ChildProcessError) as error:
        console.print(f"The demo failed: {error}", style="red", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
