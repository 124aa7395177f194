"""The clock: rates over a time, from one thread or several, in rounds that alternate."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence

from benchmarks.items import Item

Call = Callable[[Item], object]
Measure = Callable[[], float]


def alternate(
    rounds: int, measures: Sequence[Measure], progress: Callable[[], None]
) -> list[tuple[float, ...]]:
    """Take every measure once a round, beginning with another one each time, so that what drifts hits all alike."""
    found = []
    for number in range(rounds):
        order = [(number + step) % len(measures) for step in range(len(measures))]
        taken = {index: _settled(measures[index]) for index in order}
        found.append(tuple(taken[index] for index in range(len(measures))))
        progress()
    return found


def _settled(measure: Measure) -> float:
    gc.collect()
    return measure()


def rate(call: Call, items: Sequence[Item], seconds: float) -> float:
    """Return calls per second; ends early if the items do."""
    clock = time.perf_counter
    done = 0
    start = clock()
    end = start + seconds
    for item in items:
        call(item)
        done += 1
        if clock() >= end:
            break
    return done / (clock() - start)


def shared_rate(calls: Sequence[Call], items: Sequence[Sequence[Item]], seconds: float) -> float:
    """Return calls per second of several threads together, one per call."""
    done = [0] * len(calls)
    start_line = threading.Barrier(len(calls) + 1)
    faults: list[BaseException] = []

    def run(number: int, call: Call) -> None:
        clock = time.perf_counter
        start_line.wait()
        end = clock() + seconds
        count = 0
        try:
            for item in items[number]:
                call(item)
                count += 1
                if clock() >= end:
                    break
        except BaseException as error:  # raised below, where somebody sees it
            faults.append(error)
        done[number] = count

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    start_line.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - start
    if faults:
        raise faults[0]
    return sum(done) / elapsed


def timed(call: Callable[[], object]) -> float:
    """Return the seconds a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
