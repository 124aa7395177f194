"""The raw probe on PostgreSQL: psycopg on the product's schema, everything prepared, round trips saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from benchmarks.items import TYPE, Item
from benchmarks.raw import RawStore

# Columns that a plain new job leaves at their default are not named.
_SUBMIT: Final = """WITH added AS (
    INSERT INTO {schema}.job (seq, id, order_at, created_at, updated_at, ready_at, gate, type)
    VALUES (nextval('{schema}.job_number'), %(id)s, %(now)s, %(now)s, %(now)s, %(now)s, 0, '{type}')
    RETURNING seq
), paid AS (
    INSERT INTO {schema}.payload (seq, data) SELECT seq, %(data)s FROM added
)
INSERT INTO {schema}.journal_inbox (
    job_seq, recorded_at, job_id, n, type, verb, status, attempt, retry_count, failures, priority, tags, progress)
SELECT seq, %(now)s, %(id)s, 1, '{type}', 'enqueue', 'initial_pending', 0, 0, 0, 2, '[]', 0 FROM added"""
_NUMBERS: Final = "SELECT nextval('{schema}.job_number') FROM generate_series(1, %(number)s)"
_COPY_JOBS: Final = (
    "COPY {schema}.job (seq, id, order_at, created_at, updated_at, ready_at, gate, type) FROM STDIN"
)
_COPY_PAYLOADS: Final = "COPY {schema}.payload (seq, data) FROM STDIN"
_COPY_JOURNAL: Final = """COPY {schema}.journal_inbox (
    job_seq, job_id, recorded_at, n, type, verb, status, attempt, retry_count, failures, priority, tags, progress)
FROM STDIN"""
_JOURNAL: Final = """INSERT INTO {schema}.journal_inbox (
    job_seq, recorded_at, job_id, n, type, verb, from_status, status, attempt, retry_count, failures, priority, tags,
    assignee_id, progress, ready_at, started_at)"""
_CLAIM: Final = f"""WITH picked AS MATERIALIZED (
    SELECT seq FROM {{schema}}.job WHERE gate = 0
    ORDER BY priority, order_at, seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE {{schema}}.job SET
        from_status = status, status = 'running', gate = NULL, verb = 'claim', n = n + 1, attempt = attempt + 1,
        assignee_id = 'raw', assigned_at = %(now)s, attempt_started_at = %(now)s, updated_at = %(now)s,
        started_at = %(now)s, attempt_ready_at = ready_at
    FROM picked WHERE job.seq = picked.seq
    RETURNING job.seq, id, n, type, verb, from_status, attempt, retry_count, failures, priority, tags
), noted AS (
    {_JOURNAL}
    SELECT seq, %(now)s, id, n, type, verb, from_status, 'running', attempt, retry_count, failures, priority, tags,
        'raw', 0, NULL, NULL
    FROM taken
)
SELECT taken.seq, id, type, attempt, data FROM taken JOIN {{schema}}.payload USING (seq)"""
_COMPLETE: Final = f"""WITH ended AS (
    UPDATE {{schema}}.job SET
        from_status = 'running', status = 'completed', closed = 1, verb = 'complete', n = n + 1,
        finalized_at = %(now)s, updated_at = %(now)s
    WHERE seq = ANY(%(seqs)s) AND status = 'running'
    RETURNING seq, id, n, type, attempt, retry_count, failures, priority, tags, attempt_ready_at, attempt_started_at
)
{_JOURNAL}
SELECT seq, %(now)s, id, n, type, 'complete', 'running', 'completed', attempt, retry_count, failures, priority, tags,
    'raw', 0, attempt_ready_at, attempt_started_at
FROM ended"""


class RawPostgres(RawStore):
    """One connection, and one more for each client."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._schema = schema
        self._opened: list[psycopg.Connection[Any]] = []
        self._connection = self._connect()

    def submit(self, item: Item) -> None:
        self._submit(self._connection, item)

    def clients(self, number: int) -> list[Callable[[Item], object]]:
        return [self._client() for _ in range(number)]

    def bulk(self, items: Sequence[Item]) -> None:
        now = _now()
        with self._connection.transaction():
            cursor = self._connection.cursor()
            found = cursor.execute(self._text(_NUMBERS), {"number": len(items)}).fetchall()
            numbered = [(seq, job_id, data) for (seq,), (job_id, data) in zip(found, items, strict=True)]
            # Written as text in one piece: quicker than row by row through the driver.
            rest = f"\t{now}\t{now}\t{now}\t{now}\t0\t{TYPE}\n"
            with cursor.copy(self._text(_COPY_JOBS)) as copy:
                copy.write("".join([f"{seq}\t{job_id}{rest}" for seq, job_id, _ in numbered]))
            with cursor.copy(self._text(_COPY_PAYLOADS)) as copy:
                copy.write("".join([f"{seq}\t\\\\x{data.hex()}\n" for seq, _, data in numbered]))
            rest = f"\t{now}\t1\t{TYPE}\tenqueue\tinitial_pending\t0\t0\t0\t2\t[]\t0\n"
            with cursor.copy(self._text(_COPY_JOURNAL)) as copy:
                copy.write("".join([f"{seq}\t{job_id}{rest}" for seq, job_id, _ in numbered]))

    def drain(self, batch: int) -> int:
        connection = self._connection
        claim, complete = self._text(_CLAIM), self._text(_COMPLETE)
        seqs: list[int] = []
        done = 0
        while True:
            now = _now()
            with connection.pipeline(), connection.transaction():
                if seqs:
                    connection.execute(complete, {"now": now, "seqs": seqs}, prepare=True)
                cursor = connection.execute(claim, {"now": now, "limit": batch}, prepare=True)
            done += len(seqs)
            seqs = [row[0] for row in cursor.fetchall()]
            if not seqs:
                return done

    def checkpoint(self) -> None:
        self._connection.execute("CHECKPOINT")

    def close(self) -> None:
        for connection in self._opened:
            connection.close()

    def _client(self) -> Callable[[Item], object]:
        connection = self._connect()
        return lambda item: self._submit(connection, item)

    def _connect(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(self._url, autocommit=True, prepare_threshold=0)
        self._opened.append(connection)
        return connection

    def _submit(self, connection: psycopg.Connection[Any], item: Item) -> None:
        connection.execute(
            self._text(_SUBMIT), {"id": item[0], "data": item[1], "now": _now()}, prepare=True, binary=False
        )

    def _text(self, template: str) -> bytes:
        return template.replace("{schema}", self._schema).replace("{type}", TYPE).encode()


def drop_schema(url: str, schema: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


def _now() -> int:
    return time.time_ns() // 1000
