"""A journal of any length, made by DuckDB in seconds: what a queue of some workers would have written in two days.

Most jobs complete; some are tried twice, fail, wait, or are deleted afterwards; some wait for others, have keys, tags
and idempotency keys. The rows are legal, and numbered in the order of their times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

START: Final = "2026-11-01 00:00:00"
#: Journal rows of an average job, by the mix below.
ROWS_PER_JOB: Final = 3.19

_ROWS: Final = """
WITH job AS (
    SELECT i,
        'job-' || lpad(i::VARCHAR, 10, '0') || '-' || substr(md5(i::VARCHAR), 1, 16) AS job_id,
        'type-' || (i % 6) AS type,
        ['region=' || (i % 4)] AS tags,
        CASE WHEN i % 20 = 5 THEN ['k', (i % 100003)::VARCHAR] END AS key,
        CASE WHEN i % 7 = 0 THEN 'once-' || i END AS idempotency_key,
        'worker-' || (hash(i) % 8) AS worker,
        i % 100 AS kind,
        TIMESTAMP '{start}' + to_microseconds(i * {gap}) AS t0,
        1 + hash(i + 1) % 300 AS waits, 1 + hash(i + 2) % 120 AS runs
    FROM range({jobs}) AS r (i)
),
step AS (
    SELECT unnest(CASE
        WHEN kind < 86 THEN [1, 2, 3]
        WHEN kind < 96 THEN [1, 2, 4, 5, 6]
        WHEN kind < 98 THEN [1, 2, 7]
        WHEN kind = 98 THEN [1]
        ELSE [1, 2, 3, 8] END) AS step, *
    FROM job
),
placed AS (
    SELECT *, t0 + to_seconds(CASE step
        WHEN 1 THEN 0 WHEN 2 THEN waits WHEN 3 THEN waits + runs WHEN 4 THEN waits + runs WHEN 7 THEN waits + runs
        WHEN 5 THEN waits + runs + 60 WHEN 6 THEN waits + 2 * runs + 60 ELSE waits + runs + 3600 END) AS recorded_at
    FROM step
)
SELECT 'bench' AS source,
    row_number() OVER (ORDER BY recorded_at, i, step) AS seq,
    recorded_at::TIMESTAMPTZ AS recorded_at,
    job_id,
    (CASE step WHEN 1 THEN 1 WHEN 2 THEN 2 WHEN 5 THEN 4 WHEN 6 THEN 5 WHEN 8 THEN 4 ELSE 3 END)::INTEGER AS n,
    type,
    CASE step WHEN 1 THEN 'enqueue' WHEN 2 THEN 'claim' WHEN 5 THEN 'claim' WHEN 4 THEN 'fail' WHEN 7 THEN 'fail'
        WHEN 8 THEN 'delete' ELSE 'complete' END AS verb,
    CASE step WHEN 1 THEN NULL WHEN 2 THEN 'initial_pending' WHEN 5 THEN 'failed_retry' WHEN 8 THEN 'completed'
        ELSE 'running' END AS from_status,
    CASE step WHEN 1 THEN 'initial_pending' WHEN 2 THEN 'running' WHEN 5 THEN 'running' WHEN 4 THEN 'failed_retry'
        WHEN 7 THEN 'failed' ELSE 'completed' END AS status,
    (CASE step WHEN 1 THEN 0 WHEN 5 THEN 2 WHEN 6 THEN 2 ELSE 1 END)::INTEGER AS attempt,
    (step IN (4, 5, 6, 7))::INTEGER AS retry_count,
    (step IN (4, 5, 6, 7))::INTEGER AS failures,
    3::INTEGER AS max_attempts,
    2::INTEGER AS priority,
    key, tags, idempotency_key,
    CASE WHEN step > 1 THEN worker END AS assignee_id,
    CASE WHEN kind = 98 THEN TIMESTAMPTZ '2030-01-01 00:00:00+00' END AS due_at,
    CASE WHEN step IN (4, 5, 6) THEN 'temporary' WHEN step = 7 THEN 'permanent' END AS error_category,
    NULL::VARCHAR AS error_code,
    CASE WHEN step IN (4, 5, 6, 7) THEN 'it did not work' ELSE '' END AS error_message,
    0::INTEGER AS progress,
    CASE WHEN step = 1 THEN CASE
        WHEN i % 50 = 9 THEN ['job-' || lpad((i - 1)::VARCHAR, 10, '0') || '-' || substr(md5((i - 1)::VARCHAR), 1, 16),
            'job-' || lpad((i - 2)::VARCHAR, 10, '0') || '-' || substr(md5((i - 2)::VARCHAR), 1, 16)]
        WHEN i % 50 = 8 THEN ['job-' || lpad((i - 3)::VARCHAR, 10, '0') || '-' || substr(md5((i - 3)::VARCHAR), 1, 16)]
        ELSE []::VARCHAR[] END END AS after,
    CASE WHEN step = 1 THEN []::VARCHAR[] END AS after_any,
    NULL::VARCHAR AS parent_id,
    CASE WHEN step IN (3, 4, 7) THEN t0::TIMESTAMPTZ WHEN step = 6 THEN (t0 + to_seconds(waits + runs))::TIMESTAMPTZ END
        AS ready_at,
    CASE WHEN step IN (3, 4, 7) THEN (t0 + to_seconds(waits))::TIMESTAMPTZ
        WHEN step = 6 THEN (t0 + to_seconds(waits + runs + 60))::TIMESTAMPTZ END AS started_at
FROM placed
"""


def write_journal(folder: Path, rows: int, pieces: int = 4) -> None:
    """Write a journal of about `rows` rows into a folder, in files of consecutive numbers."""
    import duckdb  # noqa: PLC0415  # only these workloads need it

    jobs = int(rows / ROWS_PER_JOB)
    gap = 2 * 86_400_000_000 // jobs
    folder.mkdir(parents=True, exist_ok=True)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; SET threads = 2")
        connection.execute(f"CREATE TABLE journal AS {_ROWS.format(start=START, gap=gap, jobs=jobs)}")
        size = -(-rows // pieces)
        for piece in range(pieces + 1):
            low, high = piece * size, (piece + 1) * size
            path = folder / f"{piece:03d}.parquet"
            connection.execute(
                f"COPY (SELECT * FROM journal WHERE seq > {low} AND seq <= {high} ORDER BY seq)"
                f" TO '{path}' (FORMAT parquet, COMPRESSION zstd)"
            )
