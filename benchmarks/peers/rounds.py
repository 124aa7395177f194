"""The rounds: in each, every product takes its turn in every workload and store, between two probes of the raw store.

Every turn is a process of its own, in the product's environment, on an empty store.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from benchmarks.peers.catalogue import runs_workload
from benchmarks.peers.disturbance import Judged, read_usage, reap_orphans, run_undisturbed
from benchmarks.peers.environments import ROOT, interpreter
from benchmarks.peers.figures import Run
from benchmarks.peers.product import OURS, Product
from benchmarks.peers.servers import Places

#: Of one turn; a drain gives up by itself before.
TURN_SECONDS: Final = 300.0
LOAD_SECONDS: Final = 1800.0
END_SECONDS: Final = 20.0
FINISHED: Final = 1_000_000
DELAYED: Final = 100_000
#: Workloads without a raw probe: there is no raw form of waking a worker up.
NO_PROBE: Final = frozenset({"w4"})


class Turn(NamedTuple):
    round: int
    workload: str
    store: str
    product: type[Product]


@dataclass(frozen=True)
class Limits:
    """When a turn counts as disturbed, and how often it is repeated then."""

    share: float
    repeats: int


def plan(
    rounds: int, workloads: Sequence[str], stores: Sequence[str], products: Sequence[type[Product]]
) -> list[Turn]:
    """Return all turns in order; each round begins with another product, so that what drifts hits all alike."""
    turns = []
    for number in range(rounds):
        for workload in workloads:
            for store in stores:
                chosen = [kind for kind in products if store in kind.stores and runs_workload(kind, workload)]
                shift = number % len(chosen) if chosen else 0
                turns += [Turn(number + 1, workload, store, kind) for kind in chosen[shift:] + chosen[:shift]]
    return turns


def with_raw(runs: Sequence[Run], probes: Sequence[float | None]) -> list[Run]:
    """Return runs with the mean of the probes before and after each; there is one probe more than runs."""
    found = []
    for index, run in enumerate(runs):
        near = [probe for probe in probes[index : index + 2] if probe is not None]
        found.append(replace(run, raw=sum(near) / len(near) if near else None))
    return found


class Rounds:
    """Runs turns and gives their figures.

    Args:
        told: called with a line of text before each turn.
        call: runs `benchmarks.peers.child` in an environment, with these arguments, and returns its answer.
    """

    def __init__(
        self,
        places: Places,
        limits: Limits,
        told: Callable[[str], None],
        *,
        is_quick: bool,
        call: Callable[..., dict[str, Any]] | None = None,
    ) -> None:
        self._call = call or _child
        self._places = places
        self._limits = limits
        self._told = told
        self._size = "quick" if is_quick else "full"
        self._past = (FINISHED // 50, DELAYED // 50) if is_quick else (FINISHED, DELAYED)
        self._loaded: dict[tuple[str, str], str] = {}
        self._stack = ExitStack()

    def version(self, kind: type[Product]) -> str:
        """Return a product's version.

        Raises:
            LookupError: its environment does not have it.
        """
        answer = self._call(kind.environment, "check", kind.__module__, seconds=60)
        if "error" in answer:
            raise LookupError(answer["error"])
        return str(answer["version"])

    def run(self, turns: Sequence[Turn]) -> Iterator[list[Run]]:
        """Yield the runs of each workload and store of each round, as soon as they are known."""
        for group in _groups(turns):
            yield self._run_group(group)

    def close(self) -> None:
        """Remove the stores that were kept over rounds."""
        self._stack.close()

    def _run_group(self, turns: Sequence[Turn]) -> list[Run]:
        runs: list[Run] = []
        probes = [self._probe(turns[0])]
        for turn in turns:
            self._told(f"round {turn.round}, {turn.workload.upper()}, {turn.store}: {turn.product.name}")
            runs.append(self._turn(turn))
            probes.append(self._probe(turn))
        return with_raw(runs, probes)

    def _turn(self, turn: Turn) -> Run:
        judged = run_undisturbed(
            lambda: self._measure(turn), read_usage, self._limits.share, self._limits.repeats,
            is_final=lambda answer: "error" in answer,
        )  # fmt: skip
        return _run_of(turn, judged)

    def _measure(self, turn: Turn) -> dict[str, Any]:
        arguments = ("measure", turn.product.__module__, turn.store)
        try:
            if turn.workload == "w5":
                place = self._place_with_past(turn)
                return self._call(turn.product.environment, *arguments, place, "w5", self._size)
            with self._places.empty(turn.store) as place:
                return self._call(turn.product.environment, *arguments, place, turn.workload, self._size)
        except Exception as error:  # of one product on one store: the others go on
            return {"error": f"{type(error).__name__}: {error}"}

    def _place_with_past(self, turn: Turn) -> str:
        """Return the store with finished and delayed jobs, which is loaded once and kept for all rounds."""
        key = (turn.product.name, turn.store)
        if key not in self._loaded:
            place = self._stack.enter_context(self._places.empty(turn.store))
            answer = self._call(
                turn.product.environment, "load", turn.product.__module__, turn.store, place,
                *map(str, self._past), seconds=LOAD_SECONDS,
            )  # fmt: skip
            if "error" in answer:
                raise RuntimeError(f"loading: {answer['error']}")
            self._loaded[key] = place
        return self._loaded[key]

    def _probe(self, turn: Turn) -> float | None:
        if turn.workload in NO_PROBE:
            return None
        module, environment = ("raw_redis", "peers") if turn.store == "redis" else ("raw_probe", OURS)
        try:
            with self._places.empty(turn.store) as place:
                answer = self._call(
                    environment, "probe", f"benchmarks.peers.{module}", turn.store, place, turn.workload,
                    self._size,
                )  # fmt: skip
        except Exception as error:  # the ratio is left out
            answer = {"error": f"{type(error).__name__}: {error}"}
        if "error" in answer:
            self._told(f"the raw probe of {turn.workload} on {turn.store} failed: {answer['error']}")
        return answer.get("value")


def _groups(turns: Sequence[Turn]) -> Iterator[list[Turn]]:
    group: list[Turn] = []
    for turn in turns:
        if group and group[-1][:3] != turn[:3]:
            yield group
            group = []
        group.append(turn)
    if group:
        yield group


def _run_of(turn: Turn, judged: Judged[dict[str, Any]]) -> Run:
    answer = dict(judged.answer)
    error = str(answer.pop("error", ""))
    return Run(
        turn.round, turn.workload, turn.store, turn.product.name,
        value=answer.pop("value", None), share=judged.share, repeats=judged.repeats,
        is_disturbed=judged.is_disturbed, error=error, extra=answer,
    )  # fmt: skip


def _child(environment: str, *arguments: str, seconds: float = TURN_SECONDS) -> dict[str, Any]:
    """Run `benchmarks.peers.child` in an environment; return its answer, or an error with the end of its output."""
    command = [str(interpreter(environment)), "-m", "benchmarks.peers.child", *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"error": f"it took longer than {seconds:.0f} s"}
    finally:
        _end(process)
        reap_orphans()
    return read_answer(out, errors, process.returncode)


def read_answer(out: str, errors: str, code: int) -> dict[str, Any]:
    """Return the JSON object in the last line, or an error."""
    last = out.strip().rpartition("\n")[2]
    try:
        answer = json.loads(last)
    except ValueError:
        answer = None
    if isinstance(answer, Mapping):
        return dict(answer)
    words = " / ".join(errors.strip().splitlines()[-2:])[-300:]
    return {"error": f"its process ended with {code}: {words or 'it said nothing'}"}


def _environment() -> dict[str, str]:
    # Settings of other programs must not reach the products, nor ours a store of the user's.
    dropped = ("PENSTOCK_", "PG", "DBOS_", "CELERY_", "RQ_", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "PYTHONUNBUFFERED": "1"}


def _end(process: subprocess.Popen[str]) -> None:
    """End a process with all that it started: its workers are in sessions of their own, so it must end them itself."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=END_SECONDS)
    with suppress(ProcessLookupError):  # all of it has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
