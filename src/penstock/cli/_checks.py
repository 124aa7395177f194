"""The checks of `penstock doctor` that do not depend on the kind of store: this installation, workers and jobs."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import penstock
from penstock._extras import how_to_install
from penstock.backends.contract.overview import Finding, Overview, OwnerView
from penstock.cli._counts import ready_bound
from penstock.cli._text import counted, span
from penstock.errors import PenstockError

__all__ = ["check_machine", "check_work"]

#: The packages of each extra.
EXTRAS: Final = {
    "postgres": ("psycopg",),
    "spark": ("pyspark", "pyarrow"),
    "metrics": ("prometheus-client",),
    "otel": ("opentelemetry-api",),
}
LONG_WAIT: Final = timedelta(hours=1)
MAX_NAMED: Final = 10


def check_machine() -> Iterator[Finding]:
    """Check this installation; it runs Java once to learn its version, if Spark is installed."""
    yield Finding.ok(
        "penstock", f"{penstock.__version__} on Python {platform.python_version()} ({platform.system()})"
    )
    for extra, packages in EXTRAS.items():
        versions = [f"{name} {version}" for name in packages if (version := _version(name))]
        yield Finding.ok(f"extra {extra}", ", ".join(versions) or "is not installed")
    if _version("pyspark"):
        yield _java()


def _version(package: str) -> str | None:
    import importlib.metadata  # noqa: PLC0415  # takes long, and no other command needs it

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _java() -> Finding:
    from penstock.spark.java import find_java  # noqa: PLC0415  # needs the extra

    try:
        found = find_java()
    except PenstockError as error:
        return Finding.problem("Java", str(error), how_to_install("spark"))
    version = ".".join(map(str, found.version))
    return Finding.ok("Java", f"{version} in {found.home}")


def check_work(seen: Overview) -> Iterator[Finding]:
    """Check the workers and the jobs of a store."""
    yield Finding.ok("schema", f"version {seen.schema_version}")
    yield _workers(seen)
    yield from _stalled(seen)
    yield _ended(seen)
    yield _types(seen)
    yield _waiting(seen)
    yield _callbacks(seen)
    if seen.is_blocked:
        yield Finding.warning("block", "new jobs are refused", "run penstock unblock to accept them again")


def _place(owner: OwnerView) -> str:
    """Return the name of a worker, and the host and pid it runs at."""
    return f"{owner.name + ' on ' if owner.names else ''}{owner.host}:{owner.pid}"


def _workers(seen: Overview) -> Finding:
    living = seen.living
    slots, free = sum(each.slots for each in living), sum(each.free for each in living)
    message = f"{len(living)} living, with {slots} slots, {free} of them free"
    dead = [each for each in seen.owners if not each.is_alive]
    if dead:
        named = ", ".join(
            f"{_place(each)} ({counted(each.running, 'job')}, silent for {span(seen.at - each.beat_at)})"
            for each in dead[:MAX_NAMED]
        )
        return Finding.warning(
            "workers",
            f"{message}; {len(dead)} dead: {named}",
            "a living worker reclaims their jobs: start one, and find out why these ended",
        )
    waiting = seen.counts.pending + seen.counts.retrying + seen.counts.handed_back
    if waiting and not any(each.intakes for each in living):
        return Finding.warning(
            "workers",
            f"no worker is alive, and {waiting:,} {'job waits' if waiting == 1 else 'jobs wait'}",
            "start one with the same store: penstock worker module:app --url …",
        )
    if seen.types and not living:
        return Finding.warning(
            "workers",
            "no worker is alive; no job waits",
            "start one: penstock worker module:app",
        )
    return Finding.ok("workers", message)


def _ended(seen: Overview) -> Finding:
    """Warn of jobs that failed and were neither redriven nor deleted."""
    counts = seen.counts
    message = (
        f"{counts.completed:,} completed, {counts.failed:,} failed, {counts.dead:,} dead, "
        f"{counts.cancelled:,} cancelled"
    )
    if not counts.failed and not counts.dead:
        return Finding.ok("ended", message)
    worst = sorted(seen.types, key=lambda each: (-each.counts.failed - each.counts.dead, each.type))
    named = ", ".join(each.type for each in worst[:MAX_NAMED] if each.counts.failed or each.counts.dead)
    return Finding.warning(
        "ended",
        f"{message} (failed or dead: {named})",
        "penstock list --status dead,failed lists them, penstock show ID shows why; "
        "then penstock redrive --status dead,failed, or penstock delete",
    )


def _stalled(seen: Overview) -> Iterator[Finding]:
    """Warn of workers whose jobs all wait for other jobs."""
    stalled = [each for each in seen.living if each.is_stalled]
    if stalled:
        named = ", ".join(f"{_place(each)} ({counted(each.waiting, 'job')})" for each in stalled[:MAX_NAMED])
        yield Finding.warning(
            "waiting workers",
            f"every job of {named} waits for another job, so no slot is free",
            "see in their log what they wait for, and start a worker that claims it; better, submit dependent jobs with"
            " after=, which need no slot while they wait",
        )


def _types(seen: Overview) -> Finding:
    lonely = seen.unhandled
    if not lonely:
        return Finding.ok("types", "every type with ready jobs has a worker")
    named = ", ".join(lonely[:MAX_NAMED]) + (" …" if len(lonely) > MAX_NAMED else "")
    return Finding.warning(
        "types",
        f"no living worker claims {named}",
        "start a worker whose app has handlers for them: penstock worker module:app",
    )


def _waiting(seen: Overview) -> Finding:
    oldest = seen.oldest_ready
    if oldest is None:
        return Finding.ok("waiting", "no job is ready")
    are_ready = "job is ready" if seen.ready == 1 else "jobs are ready"
    message = f"{_at_least(seen.ready, ready_bound(seen))} {are_ready}, the oldest for {span(oldest)}"
    if oldest > LONG_WAIT:
        return Finding.warning(
            "waiting",
            message,
            "start more workers, or give them more slots: penstock worker --concurrency, --processes",
        )
    return Finding.ok("waiting", message)


def _callbacks(seen: Overview) -> Finding:
    limit = seen.most_counted
    message = f"{_at_least(seen.undelivered, limit)} to deliver, {_at_least(seen.given_up, limit)} given up"
    if seen.given_up:
        advice = "see Backend.outbox.list_deliveries; once the endpoints answer again, call Backend.outbox.retry_deliveries"
        return Finding.warning("callbacks", message, advice)
    if seen.undelivered and not seen.living:
        advice = "workers deliver them: start one"
        return Finding.warning("callbacks", message, advice)
    return Finding.ok("callbacks", message)


def _at_least(count: int, limit: float) -> str:
    return f"{count:,}" if count < limit else f"{count:,} or more"
