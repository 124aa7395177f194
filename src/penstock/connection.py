"""The composition root: from a url to a store. The only module that names concrete stores."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.backends.base import Backend
from penstock.clock import Clock
from penstock.errors import InvalidArgumentError, shown
from penstock.overview import MigrationStep
from penstock.queue import Queue

__all__ = [
    "connect",
    "default_url",
    "list_migrations",
    "migrate_store",
    "migration_script",
    "open_backend",
    "postgres_location",
    "sqlite_file",
]


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
            own: `durability` and `timeout` for SQLite; `schema`, `pool_size`, `timeout`, `migrate`, `pgbouncer` and
            `listen` for PostgreSQL; `create=False` for both, which refuses a place without a store instead of making
            one.

    Raises:
        InvalidArgumentError: an unknown kind of url, or options that are wrong; all of them are named at once.
        BackendError: the store cannot be opened.
    """
    url = default_url() if url is None else url
    if _is_postgres(url):
        _check_driver()
        from penstock.backends.postgres import open_postgres

        location, in_url = postgres_location(url)
        return open_postgres(location, clock=clock, options=_merged(in_url, options))
    from penstock.backends.sqlite import open_sqlite

    path, in_url = _sqlite_location(url)
    _check_known(in_url)
    return open_sqlite(path, clock=clock, options=_merged(in_url, options))


def list_migrations(url: str | None = None, *, schema: str | None = None) -> list[MigrationStep]:
    """Return every step of a store's schema, applied or not; changes nothing, also if there is no store.

    Args:
        url: as for `open_backend`.
        schema: of a PostgreSQL store.

    Raises:
        InvalidArgumentError: the url or the schema is wrong, or names a file that does not exist.
        BackendError: the store cannot be reached.
    """
    url = default_url() if url is None else url
    if _is_postgres(url):
        _check_driver()
        from penstock.backends.postgres import list_steps as list_schema_steps

        return list_schema_steps(*_place(url, schema))
    from penstock.backends.sqlite import list_steps

    return list_steps(_file(url))


def migrate_store(url: str | None = None, *, schema: str | None = None) -> list[int]:
    """Bring a store to the version this code needs, making it if there is none; return the steps applied.

    Each step is one transaction; several processes may try at once.

    Raises:
        InvalidArgumentError: the url or the schema is wrong.
        BackendError: the store cannot be reached, or is so new that this code may not touch it.
    """
    url = default_url() if url is None else url
    if _is_postgres(url):
        _check_driver()
        from penstock.backends.postgres import migrate

        return migrate(*_place(url, schema))
    from penstock.backends.sqlite import migrate_file

    return migrate_file(_file(url))


def migration_script(url: str | None = None, *, schema: str | None = None, after: int = 0) -> str:
    """Return the SQL of all steps above `after` for a store of that kind; reaches for no store."""
    url = default_url() if url is None else url
    if _is_postgres(url):
        _check_driver()
        from penstock.backends.postgres import migration_sql as schema_migration_sql

        return schema_migration_sql(_place(url, schema)[1], after=after)
    from penstock.backends.sqlite import migration_sql

    return migration_sql(after)


def _is_postgres(url: str) -> bool:
    """Whether a url names a PostgreSQL store, False for SQLite; refuse what names neither."""
    if not isinstance(url, str):
        raise InvalidArgumentError(f"url must be a string, got {shown(url)}", field="url", value=url)
    if "\0" in url:
        raise InvalidArgumentError(
            f"url must hold no NUL character, got {shown(url)}", field="url", value=url
        )
    scheme = url.partition(":")[0].lower()
    if scheme in ("memory", "sqlite"):
        return False
    if scheme in ("postgresql", "postgres"):
        return True
    raise InvalidArgumentError(
        f"url must begin with memory:, sqlite:/// or postgresql://, got {shown(scheme)}",
        field="url",
        value=scheme,
    )


def _check_driver() -> None:
    try:
        import penstock.backends.postgres  # noqa: F401  # whether it can be
    except ImportError as error:
        raise InvalidArgumentError(
            "PostgreSQL needs an extra: pip install 'penstock[postgres]'", field="url", value="postgresql"
        ) from error


def _place(url: str, schema: str | None) -> tuple[str, str]:
    """Return address and schema of a PostgreSQL store."""
    location, in_url = postgres_location(url)
    given = {} if schema is None else {"schema": schema}
    return location, _merged({key: in_url[key] for key in in_url if key == "schema"}, given).get(
        "schema", "penstock"
    )


def _file(url: str) -> str:
    path, in_url = _sqlite_location(url)
    _check_known(in_url)
    if path == ":memory:":
        raise InvalidArgumentError(
            "memory: has no schema that outlives its object; name sqlite:///jobs.db or postgresql://…",
            field="url",
            value=url,
        )
    return path


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
