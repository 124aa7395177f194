"""What the doctor looks at beside the store itself: this machine, and who works."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import penstock
from penstock.cli._output import span
from penstock.errors import PenstockError
from penstock.overview import Finding, Overview

__all__ = ["check_machine", "check_work"]

#: What each extra brings, by the name people install it under.
EXTRAS: Final = {
    "postgres": ("psycopg",),
    "spark": ("pyspark", "pyarrow"),
    "metrics": ("prometheus-client",),
    "otel": ("opentelemetry-api",),
}
LONG_WAIT: Final = timedelta(hours=1)
MOST_NAMED: Final = 10


def check_machine() -> Iterator[Finding]:
    """Look at this installation; nothing is started but, for Spark, a Java that says its version."""
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
    from penstock.spark._java import find_java  # noqa: PLC0415  # needs the extra

    try:
        found = find_java()
    except PenstockError as error:
        return Finding.problem("Java", str(error), "pip install 'penstock[spark]'")
    version = ".".join(map(str, found.version))
    return Finding.ok("Java", f"{version} in {found.home}")


def check_work(seen: Overview) -> Iterator[Finding]:
    """Look at what waits and who works."""
    yield Finding.ok("schema", f"version {seen.schema_version}")
    yield _workers(seen)
    yield _types(seen)
    yield _waiting(seen)
    yield _callbacks(seen)
    if seen.is_blocked:
        yield Finding.warning("block", "new jobs are refused", "penstock unblock, when that is over")


def _workers(seen: Overview) -> Finding:
    living = seen.living
    slots, free = sum(each.slots for each in living), sum(each.free for each in living)
    message = f"{len(living)} living, with {slots} slots, {free} of them free"
    dead = [each for each in seen.owners if not each.is_alive]
    if not dead:
        return Finding.ok("workers", message)
    named = ", ".join(
        f"{each.host}:{each.pid} ({each.running} jobs, silent for {span(seen.at - each.beat_at)})"
        for each in dead[:MOST_NAMED]
    )
    return Finding.warning(
        "workers",
        f"{message}; {len(dead)} dead: {named}",
        "their jobs come back as soon as a worker lives: see to it that one does, and why these ended",
    )


def _types(seen: Overview) -> Finding:
    lonely = seen.unhandled
    if not lonely:
        return Finding.ok("types", "every type with ready jobs has a worker")
    named = ", ".join(lonely[:MOST_NAMED]) + (" …" if len(lonely) > MOST_NAMED else "")
    return Finding.warning(
        "types",
        f"nobody takes {named}",
        "start a worker whose app has handlers for them: penstock worker module:app",
    )


def _waiting(seen: Overview) -> Finding:
    oldest = seen.oldest_ready
    if oldest is None:
        return Finding.ok("waiting", "no job is ready")
    message = f"{_more(seen.ready, seen)} jobs are ready, the oldest for {span(oldest)}"
    if oldest > LONG_WAIT:
        return Finding.warning(
            "waiting", message, "more workers, or more slots: penstock worker --concurrency, --processes"
        )
    return Finding.ok("waiting", message)


def _callbacks(seen: Overview) -> Finding:
    message = f"{_more(seen.undelivered, seen)} to deliver, {_more(seen.given_up, seen)} given up"
    if seen.given_up:
        advice = "see Backend.list_deliveries; when the endpoints are well again, Backend.retry_deliveries"
        return Finding.warning("callbacks", message, advice)
    if seen.undelivered and not seen.living:
        advice = "workers deliver them: start one"
        return Finding.warning("callbacks", message, advice)
    return Finding.ok("callbacks", message)


def _more(count: int, seen: Overview) -> str:
    return f"{count:,}" if count < seen.most_counted else f"{count:,} or more"
