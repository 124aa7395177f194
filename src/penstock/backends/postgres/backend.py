"""Opening the shared store by url."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict

from penstock.backends import _arguments as arguments
from penstock.backends._options import StoreOptions, boolean, read_options
from penstock.backends._store import Claim, Transaction
from penstock.backends.engine import PROMOTED_PER_CLAIM, EngineBackend
from penstock.backends.postgres.joined import JoinedBackend
from penstock.backends.postgres.statements import checked_schema
from penstock.backends.postgres.store import PostgresStore
from penstock.backends.postgres.transaction import PostgresTransaction
from penstock.clock import Clock
from penstock.errors import InvalidArgumentError, shown
from penstock.job import Job

__all__ = ["PostgresBackend", "open_postgres"]

_OWN_OPTIONS: Final = {
    "schema": "penstock",
    "pool_size": 4,
    "timeout": 30.0,
    "migrate": False,
    "pgbouncer": False,
    "create": True,
    "listen": True,
}


class PostgresBackend(EngineBackend):
    """The contract on a schema of a PostgreSQL database."""

    _store: PostgresStore

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        options: StoreOptions | None = None,
        schema: str = "penstock",
        pool_size: int = 4,
        timeout: float = 30.0,
        migrate: bool = False,
        pgbouncer: bool = False,
        create: bool = True,
        listen: bool = True,
    ) -> None:
        store = PostgresStore(
            url,
            clock=clock,
            schema=schema,
            pool_size=pool_size,
            timeout=timeout,
            migrate=migrate,
            pgbouncer=pgbouncer,
            create=create,
            listen=listen,
        )
        self._place = _place_of(url, schema)
        super().__init__(store, options or StoreOptions(), has_own_clock=clock is not None)

    def enqueue_job(self, job: Job) -> str:
        arguments.check_job(job, self._options.max_payload)
        if self._options.max_pending is None and job.is_plain and not self._is_iterated():
            taker = self._taker
            if taker is None or not taker.wants(job.type, job.tags):
                self._store.enqueue(job)
                return job.id
        # A transaction of its own: in it a stream that waits here takes the job, which costs no second flush.
        return super().enqueue_job(job)

    def joined(self, connection: object) -> JoinedBackend:
        return JoinedBackend(self._store.joined(connection), self._options)

    def _claim(self, tx: Transaction, claim: Claim) -> list[Job]:
        if claim.job_ids is not None or claim.types == () or not isinstance(tx, PostgresTransaction):
            return super()._claim(tx, claim)
        jobs = tx.claim_due(claim, max(PROMOTED_PER_CLAIM, claim.limit))
        if len(jobs) < claim.limit and tx.is_due:
            # What the claim wants may be due behind a portion of jobs that it does not want.
            jobs += super()._claim(tx, claim._replace(limit=claim.limit - len(jobs)))
        return jobs

    def __repr__(self) -> str:
        return f"<PostgresBackend {self._place}>"


def open_postgres(url: str, *, clock: Clock | None, options: Mapping[str, Any]) -> PostgresBackend:
    """Open the store at a PostgreSQL url, creating its schema if it is empty.

    Own options:
        schema: where the tables are; "penstock".
        pool_size: connections at most; 4.
        timeout: seconds a call may take in all, waiting and reconnecting included; 30.
        migrate: bring an older schema up to date instead of refusing it; False.
        pgbouncer: the url leads to a pooler in transaction mode: nothing is prepared and no setting outlives a
            transaction; False.
        create: make the store if the schema is empty; False refuses an empty schema, and leaves it as it is.
        listen: keep one more connection, by which others' commits wake waiting streams at once; without it they
            look by themselves. True; never with a pooler.
    """
    common, own = read_options(options, _OWN_OPTIONS, _OWN_READERS, clock=clock)
    return PostgresBackend(
        url,
        clock=clock,
        options=common,
        schema=own["schema"],
        pool_size=own["pool_size"],
        timeout=own["timeout"],
        migrate=own["migrate"],
        pgbouncer=own["pgbouncer"],
        create=own["create"],
        listen=own["listen"],
    )


def _schema(_: str, value: Any) -> str:
    return checked_schema(value)


def _pool_size(name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 100:
        raise InvalidArgumentError(f"{name} must be a whole number from 1 to 100, got {shown(value)}")
    return value


def _timeout(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 3600:
        raise InvalidArgumentError(f"{name} must be a number of seconds up to 3600, got {shown(value)}")
    return float(value)


_OWN_READERS: Final = {
    "schema": _schema,
    "pool_size": _pool_size,
    "timeout": _timeout,
    "migrate": boolean,
    "pgbouncer": boolean,
    "create": boolean,
    "listen": boolean,
}


def _place_of(url: str, schema: str) -> str:
    """Name the store without its password."""
    known = conninfo_to_dict(url)
    return f"{known.get('host', 'localhost')}/{known.get('dbname', '')} schema={schema}"
