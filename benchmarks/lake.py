"""The lake and the audit: how long, how much memory, and beside DuckDB doing the same on the same Parquet.

Our time is Spark's in a session that has run before; starting one takes some ten seconds more, once.
"""

from __future__ import annotations

import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.journals import write_journal
from benchmarks.results import Goal, Result
from benchmarks.settings import Settings
from benchmarks.stores import SqliteTarget, Target

LAKE_ROWS: Final = 5_000_000
AUDIT_ROWS: Final = 10_000_000
QUICK_ROWS: Final = 100_000


def lake(target: Target, settings: Settings) -> Iterator[Result]:
    """Build a lake from 99 % of a journal, then add the rest."""
    if not isinstance(target, SqliteTarget):
        return  # the journal comes from Parquet: the store does not matter
    rows = QUICK_ROWS if settings.quick else LAKE_ROWS
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    write_journal(folder / "journal", rows)
    with _Spark() as spark:
        _warm(spark, folder)
        total = spark.session.read.parquet(str(folder / "journal")).count()
        cut = total * 99 // 100
        step = settings.progress("lake", 3)
        full = _build(spark.session, folder, f"seq <= {cut}", cut)
        step()
        added = _build(spark.session, folder, f"seq > {cut}", total)
        step()
        peak = spark.peak()
    duck = _duckdb(folder / "journal", folder / "duckdb", cut)
    step()
    yield Result(
        f"lake: {total:,} events, full build",
        "parquet",
        [(full, duck)],
        unit="s",
        against="DuckDB",
        note=f"peak memory {peak:.0f} MB of Spark's JVM",
        extra={"peak_mb": peak, "rows": total},
    )
    yield Result(
        "lake: 1 % more",
        "parquet",
        [(added, full)],
        unit="s",
        against="full build",
        goal=Goal(0.1, at_most=True),
    )
    shutil.rmtree(folder)


def audit(target: Target, settings: Settings) -> Iterator[Result]:
    """Audit a lake whose journal is in order."""
    if not isinstance(target, SqliteTarget):
        return
    rows = QUICK_ROWS if settings.quick else AUDIT_ROWS
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    write_journal(folder / "journal", rows)
    step = settings.progress("audit", 2)
    with _Spark() as spark:
        from penstock.spark.auditing import run_audit  # noqa: PLC0415  # needs Spark

        total = spark.session.read.parquet(str(folder / "journal")).count()
        _build(spark.session, folder, "TRUE", total)
        step()
        start = time.perf_counter()
        found = run_audit(spark.session, folder / "lake")
        number = found.violations.count()
        taken = time.perf_counter() - start
        step()
        peak = spark.peak()
    yield Result(
        f"audit: {found.events:,} events",
        "lake",
        [(taken,)],
        unit="s",
        goal=Goal(180, at_most=True, of_ratio=False),
        note=f"{number} violations; peak memory {peak:.0f} MB of Spark's JVM, which built the lake before",
        extra={"peak_mb": peak, "rows": found.events},
    )
    shutil.rmtree(folder)


class _Spark:
    """A session for a workload, and the most memory that its JVM had."""

    def __enter__(self) -> Self:
        from penstock import spark as ps  # noqa: PLC0415  # an extra

        self.session = ps.session("local[2]")
        return self

    def __exit__(self, *_: object) -> None:
        self.session.stop()

    def peak(self) -> float:
        """Return the most memory that the JVM held, in MB, as the system counts it."""
        jvm: Any = self.session.sparkContext._jvm  # noqa: SLF001  # there is no other way to ask it
        pid = jvm.java.lang.ProcessHandle.current().pid()
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024


def _warm(spark: _Spark, folder: Path) -> None:
    """Let the JVM compile what it will run: a lake of a few rows, built as the large one is."""
    small = folder / "warm"
    write_journal(small / "journal", 20_000)
    _build(spark.session, small, "seq <= 15000", 15_000)
    _build(spark.session, small, "seq > 15000", 20_000)
    shutil.rmtree(small)


def _build(session: Any, folder: Path, condition: str, upto: int) -> float:
    from penstock.spark.lake._tables import derive, stage_events  # noqa: PLC0415
    from penstock.spark.lake._work import Work  # noqa: PLC0415
    from penstock.spark.lake.manifest import LakeFolder  # noqa: PLC0415  # needs Spark
    from penstock.spark.tables import EVENTS  # noqa: PLC0415

    lake_folder = LakeFolder(folder / "lake")
    lake_folder.create()
    start = time.perf_counter()
    work = Work(session, lake_folder, lake_folder.current())
    stage_events(work, session.read.parquet(str(folder / "journal")).where(condition))
    derive(work, work.staged_paths(EVENTS), None, lambda _: None)
    work.commit({"bench": upto}, {})
    return time.perf_counter() - start


_DUCKDB: Final = {
    "events": "SELECT * FROM journal",
    "attempts": """
        SELECT source, job_id, 1 AS history, attempt, type, key, tags, assignee_id, ready_at, started_at,
            recorded_at AS ended_at, epoch(started_at - ready_at) AS wait_seconds,
            epoch(recorded_at - started_at) AS run_seconds, status AS outcome, error_category, error_code, error_message
        FROM journal WHERE started_at IS NOT NULL""",
    "jobs": """
        SELECT * EXCLUDE (place) FROM (
            SELECT *, row_number() OVER last AS place,
                first_value(recorded_at) OVER first AS enqueued_at, first_value(seq) OVER first AS first_seq
            FROM journal
            WINDOW last AS (PARTITION BY source, job_id ORDER BY seq DESC),
                first AS (PARTITION BY source, job_id ORDER BY seq))
        WHERE place = 1""",
    "hourly": """
        SELECT source, date_trunc('hour', recorded_at) AS hour, type, tag, assignee_id AS worker, count(*) AS attempts,
            count(*) FILTER (status = 'completed') AS completed,
            approx_quantile(epoch(started_at - ready_at), [0.5, 0.95, 0.99]) AS wait,
            approx_quantile(epoch(recorded_at - started_at), [0.5, 0.95, 0.99]) AS run
        FROM (SELECT *, unnest(list_prepend(NULL, tags)) AS tag FROM journal WHERE started_at IS NOT NULL)
        GROUP BY ALL""",
    "flows": """
        SELECT source, job_id, unnest(after) AS on_id FROM journal WHERE len(after) > 0""",
}


def _duckdb(journal: Path, out: Path, cut: int) -> float:
    """Make the same tables (of the flows only the edges) with DuckDB on two threads."""
    import duckdb  # noqa: PLC0415  # of the tests

    out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with duckdb.connect() as connection:
        connection.execute("SET threads = 2")
        connection.execute(
            f"CREATE VIEW journal AS SELECT * FROM read_parquet('{journal}/*.parquet') WHERE seq <= {cut}"
        )
        for name, query in _DUCKDB.items():
            connection.execute(f"COPY ({query}) TO '{out / name}.parquet' (FORMAT parquet, COMPRESSION zstd)")
    return time.perf_counter() - start
