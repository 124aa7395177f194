"""What a PostgreSQL store has to say about itself and the server it lives on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from penstock.backends.contract.overview import Finding, Level
from penstock.backends.postgres.connection import BoundedConnection
from penstock.backends.postgres.statements import NOW, Statements
from penstock.backends.sql_files import read_sql

__all__ = ["examine_server", "pooler_finding"]

#: Seconds by which the clocks of client and server may differ without a word.
CLOCK_SECONDS: Final = 2.0
LONG_SECONDS: Final = 300.0
VERY_LONG_SECONDS: Final = 3600.0
MANY_DEAD: Final = 100_000
MANY_TRANSACTIONS: Final = 1_000_000
MOST_CONNECTIONS: Final = 0.9

_SETTINGS: Final = (
    "SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN"
    " ('server_version', 'fsync', 'synchronous_commit', 'full_page_writes', 'autovacuum', 'max_connections')"
)
_OLDEST: Final = read_sql(__package__, "oldest_transaction")
_PREPARED: Final = """SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::float8
FROM pg_catalog.pg_prepared_xacts WHERE database = current_database() ORDER BY prepared LIMIT 1"""
_SLOTS: Final = """SELECT slot_name, active, greatest(age(xmin), age(catalog_xmin))
FROM pg_catalog.pg_replication_slots WHERE coalesce(xmin, catalog_xmin) IS NOT NULL ORDER BY 3 DESC LIMIT 1"""
_TABLES: Final = read_sql(__package__, "table_health")
_CONNECTIONS: Final = "SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend'"


def examine_server(
    connection: BoundedConnection, sql: Statements, *, pgbouncer: bool, has_own_clock: bool
) -> list[Finding]:
    """Return every finding, by one connection."""
    settings = {name: value for name, value in connection.execute(_SETTINGS)}  # noqa: C416  # rows of a cursor
    tables = connection.execute(_TABLES, {"schema": sql.schema}).fetchall()
    found = [
        Finding.ok("server", f"PostgreSQL {settings.get('server_version', '?')}"),
        _durability(settings, tables),
        _pooler(connection, pgbouncer=pgbouncer),
        *_horizon(connection),
        _vacuum(settings, tables),
        _connections(connection, int(settings.get("max_connections", 0))),
    ]
    if not has_own_clock:
        found.append(_clock(connection))
    return found


def _durability(settings: dict[str, str], tables: list[tuple[Any, ...]]) -> Finding:
    check = "durability"
    unlogged = [name for name, persistence, *_ in tables if persistence == "u"]
    if unlogged:
        return Finding.problem(
            check,
            f"unlogged tables are emptied by a crash: {', '.join(unlogged)}",
            "ALTER TABLE … SET LOGGED",
        )
    off = [name for name in ("fsync", "full_page_writes") if settings.get(name) == "off"]
    if off:
        return Finding.problem(
            check,
            f"{' and '.join(off)} off: a power cut may destroy the whole database",
            "turn it on in postgresql.conf and reload",
        )
    if settings.get("synchronous_commit") == "off":
        return Finding.problem(
            check,
            "synchronous_commit is off: a crash of the server takes acknowledged changes with it",
            "ALTER ROLE or DATABASE … SET synchronous_commit = on",
        )
    return Finding.ok(check, f"fsync on, synchronous_commit {settings.get('synchronous_commit', '?')}")


def _pooler(connection: BoundedConnection, *, pgbouncer: bool) -> Finding:
    (real,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (0,)
    return pooler_finding(connection.info.backend_pid, real, pgbouncer=pgbouncer)


def pooler_finding(told: int, real: int, *, pgbouncer: bool) -> Finding:
    """Judge by the process that greeted us and the one that answers: a pooler greets in its own name."""
    check = "pooler"
    if told == real:
        return Finding.ok(
            check,
            "none is seen"
            + (", though the store was told of one (pgbouncer): that costs speed" if pgbouncer else ""),
        )
    if pgbouncer:
        return Finding.ok(check, "there is one, and the store knows (pgbouncer)")
    return Finding.warning(
        check,
        "a pooler such as PgBouncer answers in the server's place",
        "if it pools transactions, add pgbouncer=true to the url, or connect directly",
    )


def _horizon(connection: BoundedConnection) -> Iterator[Finding]:
    """Name who keeps dead rows from being removed: claims and the journal get slow beside them."""
    check = "old snapshots"
    is_quiet = True
    oldest = connection.execute(_OLDEST).fetchone()
    if oldest is not None and oldest[4] > LONG_SECONDS:
        pid, user, application, state, seconds = oldest
        is_quiet = False
        yield Finding(
            check=check,
            level=Level.PROBLEM if seconds > VERY_LONG_SECONDS else Level.WARNING,
            message=f"process {pid} of {user} ({application or 'unnamed'}, {state}) has had a transaction open for"
            f" {seconds:.0f} s; no dead row of that time can be removed",
            advice=f"end it there, or SELECT pg_terminate_backend({pid});"
            " set idle_in_transaction_session_timeout",
        )
    prepared = connection.execute(_PREPARED).fetchone()
    if prepared is not None and prepared[1] > LONG_SECONDS:
        is_quiet = False
        yield Finding.warning(
            check,
            f"the prepared transaction {prepared[0]!r} is {prepared[1]:.0f} s old",
            "COMMIT PREPARED or ROLLBACK PREPARED it",
        )
    slot = connection.execute(_SLOTS).fetchone()
    if slot is not None and slot[2] > MANY_TRANSACTIONS:
        is_quiet = False
        yield Finding.warning(
            check,
            f"the replication slot {slot[0]!r} is {slot[2]} transactions behind",
            "let its reader catch up, or drop it",
        )
    if is_quiet:
        yield Finding.ok(check, "no transaction is older than five minutes")


def _vacuum(settings: dict[str, str], tables: list[tuple[Any, ...]]) -> Finding:
    check = "autovacuum"
    if settings.get("autovacuum") == "off":
        return Finding.problem(
            check,
            "autovacuum is off: dead rows pile up and everything gets slower",
            "turn it on in postgresql.conf and reload",
        )
    off = [name for name, _, is_off, _, _ in tables if is_off]
    if off:
        return Finding.problem(
            check, f"autovacuum is off for {', '.join(off)}", "ALTER TABLE … RESET (autovacuum_enabled)"
        )
    heavy = [
        f"{name} ({dead} dead beside {live} living rows)"
        for name, _, _, live, dead in tables
        if dead > MANY_DEAD and dead > 2 * live
    ]
    if heavy:
        return Finding.warning(
            check,
            f"vacuuming does not keep up: {', '.join(heavy)}",
            "look for old snapshots, then VACUUM these tables",
        )
    return Finding.ok(check, "on, and keeping up")


def _connections(connection: BoundedConnection, most: int) -> Finding:
    (used,) = connection.execute(_CONNECTIONS).fetchone() or (0,)
    message = f"{used} of {most} are in use"
    if most and used > MOST_CONNECTIONS * most:
        return Finding.warning(
            "connections", message, "raise max_connections, lower pool_size, or put a pooler in between"
        )
    return Finding.ok("connections", message)


def _clock(connection: BoundedConnection) -> Finding:
    before = time.time()
    (server,) = connection.execute(f"SELECT {NOW}").fetchone() or (0,)
    after = time.time()
    seconds = server / 1_000_000 - (before + after) / 2
    message = f"the server's clock is {abs(seconds):.1f} s {'ahead' if seconds > 0 else 'behind'}"
    if abs(seconds) > CLOCK_SECONDS + (after - before):
        return Finding.warning(
            "clock",
            message,
            "let both machines follow a time server: run_at is made by this one and met by the other",
        )
    return Finding.ok("clock", "server and client agree")
