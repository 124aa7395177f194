"""The composition root: from a url to a store. The only module that names concrete stores."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.backends.base import Backend
from penstock.clock import Clock
from penstock.errors import InvalidArgumentError, shown
from penstock.queue import Queue

__all__ = ["connect", "default_url", "open_backend", "postgres_location", "sqlite_file"]


def default_url() -> str:
    """Return `$PENSTOCK_URL`, or the file penstock.db in the working folder."""
    return os.environ.get("PENSTOCK_URL") or "sqlite:///penstock.db"


def connect(url: str | None = None, *, clock: Clock | None = None, **options: Any) -> Queue:
    """Open a queue.

    Args:
        url: "memory:", "sqlite:///file.db" (four slashes for an absolute path), or "postgresql://…". None is
            `$PENSTOCK_URL`, else sqlite:///penstock.db.
        clock: replaces the store's clock; anything with `now()`.
        **options: those of `open_backend`, such as `max_pending` and `retention`.

    Example:
        with penstock.connect("sqlite:///jobs.db") as queue:
            queue.submit("resize", {"image": "cat.png"})

    Raises:
        InvalidArgumentError: an unknown kind of url, or options that are wrong; all of them are named at once.
        BackendError: the store cannot be opened.
    """
    return Queue(open_backend(url, clock=clock, **options))


def open_backend(url: str | None = None, *, clock: Clock | None = None, **options: Any) -> Backend:
    """Open a store.

    Args:
        url: "memory:", "sqlite:///file.db" (four slashes for an absolute path), or "postgresql://…". None is
            `$PENSTOCK_URL`, else sqlite:///penstock.db. What says where and how a store is kept may stand in the
            query: "sqlite:///file.db?durability=normal", "postgresql://…?schema=shop&pgbouncer=true".
        clock: replaces the store's clock; anything with `now()`.
        **options: `max_payload`, `idempotency_window`, `max_pending`, `max_depth`, `retention`, `liveness`, and the store's
            own: `durability` and `timeout` for SQLite; `schema`, `pool_size`, `timeout`, `migrate` and `pgbouncer` for
            PostgreSQL; `create=False` for both, which refuses a place without a store instead of making one.

    Raises:
        InvalidArgumentError: an unknown kind of url, or options that are wrong; all of them are named at once.
        BackendError: the store cannot be opened.
    """
    url = default_url() if url is None else url
    if not isinstance(url, str):
        raise InvalidArgumentError(f"url must be a string, got {shown(url)}", field="url", value=url)
    if "\0" in url:
        raise InvalidArgumentError(
            f"url must hold no NUL character, got {shown(url)}", field="url", value=url
        )
    scheme = url.partition(":")[0].lower()
    if scheme in ("memory", "sqlite"):
        from penstock.backends.sqlite import open_sqlite

        path, in_url = _sqlite_location(url)
        _check_known(in_url)
        return open_sqlite(path, clock=clock, options=_merged(in_url, options))
    if scheme in ("postgresql", "postgres"):
        try:
            from penstock.backends.postgres import open_postgres
        except ImportError as error:
            raise InvalidArgumentError(
                "PostgreSQL needs an extra: pip install 'penstock[postgres]'", field="url", value=scheme
            ) from error
        location, in_url = postgres_location(url)
        return open_postgres(location, clock=clock, options=_merged(in_url, options))
    raise InvalidArgumentError(
        f"url must begin with memory:, sqlite:/// or postgresql://, got {shown(scheme)}",
        field="url",
        value=scheme,
    )


def sqlite_file(url: str) -> str:
    """Return the path of the file that a SQLite url names, as it stands in the url."""
    return _sqlite_location(url)[0]


def postgres_location(url: str) -> tuple[str, dict[str, Any]]:
    """Return a PostgreSQL url without what is Penstock's in its query, and that: `schema` and `pgbouncer`.

    The rest is the driver's, which refuses words that it does not know.
    """
    base, mark, query = url.partition("?")
    rest: list[str] = []
    found: dict[str, Any] = {}
    for part in query.split("&") if mark else ():
        name, _, text = part.partition("=")
        if name not in ("schema", "pgbouncer"):
            rest.append(part)
        elif name in found:
            raise InvalidArgumentError(f"{name} stands twice in the url", field="url", value=name)
        else:
            found[name] = unquote(text)
    if "pgbouncer" in found:
        if found["pgbouncer"] not in ("true", "false"):
            raise InvalidArgumentError(
                f"pgbouncer in the url must be true or false, got {shown(found['pgbouncer'])}",
                field="pgbouncer",
                value=found["pgbouncer"],
            )
        found["pgbouncer"] = found["pgbouncer"] == "true"
    return base + ("?" + "&".join(rest) if rest else ""), found


def _sqlite_location(url: str) -> tuple[str, dict[str, str]]:
    if not url.isprintable() or "\0" in unquote(url):
        # urlsplit would drop line breaks and tabs in silence, and so name another file.
        raise InvalidArgumentError(
            f"url must have no control characters and no lone surrogates, got {shown(url)}",
            field="url",
            value=url,
        )
    try:
        parts = urlsplit(url)
        given = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError as error:
        raise InvalidArgumentError(f"url is malformed: {error}", field="url", value=url) from None
    in_url = dict(given)
    if len(in_url) < len(given):
        raise InvalidArgumentError(f"an option stands twice in the url {shown(url)}", field="url", value=url)
    if parts.fragment or parts.netloc:
        raise InvalidArgumentError(
            f"a SQLite url is sqlite:///file.db or sqlite:////absolute/file.db, got {shown(url)}",
            field="url",
            value=url,
        )
    if parts.scheme == "memory":
        if parts.path.strip("/"):
            raise InvalidArgumentError(f"memory: takes no path, got {shown(url)}", field="url", value=url)
        return ":memory:", in_url
    path = unquote(parts.path).removeprefix("/")
    if not path or path == ":memory:":
        raise InvalidArgumentError(
            f"a SQLite url names a file (sqlite:///file.db); memory: is the one without, got {shown(url)}",
            field="url",
            value=url,
        )
    return path, in_url


def _merged(in_url: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    twice = sorted(in_url.keys() & options.keys())
    if twice:
        raise InvalidArgumentError(
            f"{', '.join(twice)} is given in the url and as an option", field="options", value=twice
        )
    return {**in_url, **options}


def _check_known(in_url: dict[str, str]) -> None:
    unknown = sorted(in_url.keys() - {"durability"})
    if unknown:
        raise InvalidArgumentError(
            f"unknown in a SQLite url: {', '.join(unknown)} (known: durability)", field="url", value=unknown
        )
