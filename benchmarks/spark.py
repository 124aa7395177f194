"""The Spark side: reading the journal beside the quickest path known, and writing frames beside the store's own bulk call."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from benchmarks.items import TYPE, make_items
from benchmarks.loading import CHUNK, insert
from benchmarks.results import Goal, Result
from benchmarks.settings import Settings
from benchmarks.stores import Target
from benchmarks.timing import alternate, timed
from penstock import Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 4
_JARS: Final = (
    Path("/usr/share/java/postgresql.jar"),  # Debian's libpostgresql-jdbc-java
    *sorted((Path.home() / ".m2/repository/org/postgresql/postgresql").glob("*/*.jar")),
)


def read(target: Target, settings: Settings) -> Iterator[Result]:
    """Aggregate all rows of ten columns of the journal: our source, the raw one, and JDBC where its driver is."""
    spark = _session(settings)
    if spark is None:
        return
    rows = 100_000 if settings.quick else 2_000_000
    location = _journal(target, settings, rows)
    with target.open(location) as backend:
        last = backend.journal.span()[1]
    ours, raw = _ours(spark, target, location), _raw(spark, target, location, last)
    assert _checksum(ours) == _checksum(raw), "both read the same rows"
    measures = [_rate(ours, last), _rate(raw, last)]
    jdbc = _jdbc(spark, target, location, last, settings)
    measures += [_rate(frame, last) for frame in jdbc]
    found = alternate(
        settings.rounds_of_bulk, measures, settings.progress("spark-read", settings.rounds_of_bulk)
    )
    note = f"{last:,} journal rows, 10 columns, {PARTITIONS} partitions"
    against = [("raw Arrow source", Goal(0.7), note)]
    if jdbc:
        against += [("JDBC, partitioned", Goal(0.7), ""), ("JDBC, one partition", Goal(1), "")]
    for position, (name, goal, text) in enumerate(against, start=1):
        rounds = [(each[0], each[position]) for each in found]
        yield Result("spark-read", target.name, rounds, against=name, goal=goal, note=text)


def sink(target: Target, settings: Settings) -> Iterator[Result]:
    """Write a frame of jobs; the reference is `enqueue_jobs` with jobs made on the way, 5,000 a call."""
    spark = _session(settings)
    if spark is None:
        return
    rows = 50_000 if settings.quick else 500_000
    rounds = []
    progress = settings.progress("spark-sink", settings.rounds_of_bulk)
    _written(spark, target, 1_000)()  # a session's first write loads classes and starts processes
    for _ in range(settings.rounds_of_bulk):
        rounds += alternate(1, [_written(spark, target, rows), _enqueued(target, rows)], lambda: None)
        progress()
    note = f"{rows:,} rows, {PARTITIONS} partitions; ours is one transaction, made by Spark"
    yield Result(
        "spark-sink", target.name, rounds, against="enqueue_jobs, 5,000 a call", goal=Goal(0.6), note=note
    )


def frames(target: Target, settings: Settings) -> Iterator[Result]:
    """Work off jobs with a transform of built-in functions.

    One reference claims and completes 1,000 at a time, the other is a fleet whose handler does what the transform does.
    """
    spark = _session(settings)
    if spark is None:
        return
    jobs = 20_000 if settings.quick else 200_000
    for warm in (_framed, _fleeted):
        warm(spark, target, 1_000)()
    measures = [_framed(spark, target, jobs), _looped(target, jobs), _fleeted(spark, target, jobs)]
    count = settings.rounds_of_bulk
    rounds = alternate(count, measures, settings.progress("spark-frames", count))
    against = [
        (
            "claim + complete, 1,000",
            Goal(0.5),
            f"{jobs:,} jobs; ours parses each payload and stores a result, the reference stores none",
        ),
        ("run_fleet, on threads", Goal(1), "the same results, by a handler in Python"),
    ]
    for position, (name, goal, note) in enumerate(against, start=1):
        pairs = [(each[0], each[position]) for each in rounds]
        yield Result("spark-frames", target.name, pairs, against=name, goal=goal, note=note)


# -- sessions and stores ------------------------------------------------------------------------------------------

_sessions: list[Any] = []


def _session(settings: Settings) -> SparkSession | None:
    """Return the session of this run; None, loudly, where Spark is missing."""
    if not _sessions:
        try:
            from penstock import spark as ps  # noqa: PLC0415  # an extra

            start = ps.session
        except ImportError as error:
            settings.say(f"the Spark workloads are left out: {error}")
            return None
        root = str(Path(__file__).resolve().parents[1])  # for the raw source, which workers import
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *sys.path])
        jar = next((str(path) for path in _JARS if path.is_file()), None)
        cores = os.cpu_count() or 1
        conf = {} if jar is None else {"spark.driver.extraClassPath": jar}
        _sessions.append(start(f"local[{cores}]", **conf))
        from benchmarks.spark_raw import RawJournal  # noqa: PLC0415  # needs Spark

        _sessions[0].dataSource.register(RawJournal)
    session: SparkSession = _sessions[0]
    return session


def _journal(target: Target, settings: Settings, rows: int) -> str:
    """Return a store whose journal has so many rows: three for each job, which was claimed and completed."""
    known = target.cache.get(f"journal-{rows}")
    if known is not None:
        return known
    jobs = rows // 3 + 1
    progress = settings.progress(f"loading {rows:,} journal rows", jobs * 2)
    location = target.cache[f"journal-{rows}"] = target.create("journal")
    with target.open(location) as backend:
        for done in insert(
            backend, (Job(id=name, type=TYPE, payload=data) for name, data in make_items(jobs))
        ):
            progress(done)
    raw = target.open_raw(location)
    progress(raw.drain(CHUNK))
    raw.close()
    with target.open(location) as backend:
        backend.journal.span()  # numbers them, where that is done by readers
    target.settle(location)
    return location


# -- reading ------------------------------------------------------------------------------------------------------


def _checksum(frame: DataFrame) -> Any:
    """Use every column of every row."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    return frame.agg(F.count("*"), F.bit_xor(F.xxhash64(*frame.columns))).collect()


def _rate(frame: DataFrame, rows: int) -> Callable[[], float]:
    return lambda: rows / timed(lambda: _checksum(frame))


def _ours(spark: SparkSession, target: Target, location: str) -> DataFrame:
    from benchmarks.spark_raw import COLUMNS  # noqa: PLC0415

    read = spark.read.format("penstock").option("url", _address(target, location))
    return read.option("partitions", PARTITIONS).schema(COLUMNS).load()


def _raw(spark: SparkSession, target: Target, location: str, last: int) -> DataFrame:
    url, _, schema = target.url(location).partition("#")
    read = spark.read.format("raw_journal").option("last", last).option("partitions", PARTITIONS)
    return (
        read.option("url", url).option("schema", schema) if schema else read.option("file", location)
    ).load()


def _jdbc(
    spark: SparkSession, target: Target, location: str, last: int, settings: Settings
) -> list[DataFrame]:
    """Return Spark's own source on the same rows, in partitions and in one; none, loudly, if that is impossible."""
    if target.name != "postgres":
        return []
    if not any(path.is_file() for path in _JARS):
        settings.say("JDBC is left out: install libpostgresql-jdbc-java")
        return []
    from benchmarks.spark_raw import NAMES  # noqa: PLC0415

    url, _, schema = target.url(location).partition("#")
    parts = urlsplit(url)
    if not parts.hostname or "host" in parse_qs(parts.query):
        settings.say("JDBC is left out: it needs a server on TCP; name one with --postgres-url")
        return []
    query = f'(SELECT {", ".join(NAMES)} FROM "{schema}".journal) AS told'
    options = {
        "url": f"jdbc:postgresql://{parts.hostname}:{parts.port or 5432}{parts.path}",
        "driver": "org.postgresql.Driver",
        "user": parts.username or "postgres",
        "password": parts.password or "",
        "dbtable": query,
        "fetchsize": "1000",
    }
    split = {
        "partitionColumn": "seq",
        "lowerBound": "1",
        "upperBound": str(last),
        "numPartitions": str(PARTITIONS),
    }
    return [
        spark.read.format("jdbc").options(**options, **split).load(),
        spark.read.format("jdbc").options(**options).load(),
    ]


# -- writing ------------------------------------------------------------------------------------------------------


def _written(spark: SparkSession, target: Target, rows: int) -> Callable[[], float]:
    from pyspark.sql import functions as F  # noqa: PLC0415

    def measure() -> float:
        location = target.create("sink")
        frame = spark.range(0, rows, 1, PARTITIONS).select(
            # As long and as scattered as the ids of the reference: an index takes sorted ones much faster.
            F.substring(F.sha2(F.col("id").cast("string"), 256), 1, 36).alias("id"),
            F.lit(TYPE).alias("type"),
            F.format_string('{"i": %d, "s": "%s"}', "id", F.lit("x" * 80)).alias("payload"),
        )
        write = frame.write.format("penstock").option("url", _address(target, location))
        try:
            return rows / timed(write.mode("append").save)
        finally:
            target.drop(location)

    return measure


def _enqueued(target: Target, rows: int) -> Callable[[], float]:
    def measure() -> float:
        location = target.create("bulk")
        items = make_items(rows)
        try:
            with target.open(location) as backend:
                jobs = (Job(id=name, type=TYPE, payload=data) for name, data in items)
                return rows / timed(lambda: list(insert(backend, jobs)))
        finally:
            target.drop(location)

    return measure


# -- frames -------------------------------------------------------------------------------------------------------


def _filled(target: Target, jobs: int) -> str:
    location = target.create("frames")
    with target.open(location) as backend:
        for _ in insert(backend, (Job(id=name, type=TYPE, payload=data) for name, data in make_items(jobs))):
            pass
    target.settle(location)
    return location


def _framed(spark: SparkSession, target: Target, jobs: int) -> Callable[[], float]:
    from pyspark.sql import functions as F  # noqa: PLC0415

    from penstock.spark import run_frames  # noqa: PLC0415

    def transform(frame: DataFrame) -> DataFrame:
        return frame.select("id", "attempt", (F.col("i") * 2).alias("twice"), F.length("s").alias("length"))

    def measure() -> float:
        location = _filled(target, jobs)
        try:
            report = run_frames(
                spark, _address(target, location), transform, type=TYPE, schema="i int, s string"
            )
            assert report.completed == jobs
            return jobs / report.seconds
        finally:
            target.drop(location)

    return measure


def _address(target: Target, location: str) -> str:
    """Return the url of a store, with its schema."""
    url, _, schema = target.url(location).partition("#")
    return f"{url}{'&' if '?' in url else '?'}schema={schema}" if schema else url


def _fleeted(spark: SparkSession, target: Target, jobs: int) -> Callable[[], float]:
    from penstock import App  # noqa: PLC0415
    from penstock.spark import run_fleet  # noqa: PLC0415

    def measure() -> float:
        location = _filled(target, jobs)
        app = App(_address(target, location))

        @app.job(type=TYPE)
        def twice(i: int, s: str) -> dict[str, int]:
            return {"twice": i * 2, "length": len(s)}

        try:
            report = run_fleet(
                spark, app, tasks=os.cpu_count() or 1, capacity=32, max_seconds=None, isolation="thread"
            )
            assert report.completed == jobs
            return jobs / report.seconds
        finally:
            target.drop(location)

    return measure


def _looped(target: Target, jobs: int) -> Callable[[], float]:
    def measure() -> float:
        location = _filled(target, jobs)
        try:
            with target.open(location) as backend:

                def work() -> None:
                    while claimed := backend.dequeue_jobs("w", limit=1_000, types=[TYPE]):
                        backend.complete_jobs(
                            {job.id: None for job in claimed},
                            attempts={job.id: job.attempt for job in claimed},
                        )

                return jobs / timed(work)
        finally:
            target.drop(location)

    return measure
