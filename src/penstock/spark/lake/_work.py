"""The files of one batch: those it reads from the lake, those it stages, and those it replaces."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.spark.lake._lookup import take_out
from penstock.spark.lake.manifest import LakeFile, LakeFolder, Manifest, Staged
from penstock.spark.tables import LAKE_TABLES, LakeTable

__all__ = ["FILE", "STAGING", "Work"]

#: The column with the file that a row was read from (`Work.read(with_file=True)`).
FILE: Final = "_file"
#: The column by which a table's rows are divided into files: the day, or a part of the table.
_PART: Final = "_part"
#: Spark settings for staging a batch.
STAGING: Final = {
    # Days and hours are those of UTC, whatever the time zone of the session is.
    "spark.sql.session.timeZone": "UTC",
    # Timestamps that every reader supports; Spark's default is the deprecated INT96.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Files are on a local disk: listing some hundred of them needs no Spark job.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
}
_ROWS_PER_FILE: Final = 500_000
# Ended jobs change now and then, and the file of a changed job is rewritten. So these files are small, and sorted by age,
# because most changed jobs are recent.
_JOBS_PER_FILE: Final = 50_000
_ROWS_PER_TASK: Final = 250_000
#: A file is small if it has less than this fraction of the maximum number of rows.
_SMALL: Final = 1 / 5
_MAX_SMALL: Final = 8
_ORDER: Final = {"events": "seq", "attempts": "ended_at", "jobs": "first_seq"}


class Work:
    """A batch that is being added to the lake."""

    def __init__(self, spark: SparkSession, folder: LakeFolder, before: Manifest) -> None:
        self.spark = spark
        self.folder = folder
        self.before = before
        self.number = before.number + 1
        self._added: dict[str, list[Staged]] = defaultdict(list)
        self._removed: dict[str, set[str]] = defaultdict(set)
        self._kept: list[DataFrame] = []

    # -- reading ------------------------------------------------------------------------------------------------

    def files(self, table: LakeTable, parts: Iterable[str] | None = None) -> list[LakeFile]:
        """Return the files of a table in the lake, without those that this batch replaces."""
        wanted = None if parts is None else set(parts)
        return [
            file
            for file in self.before.files(table.name)
            if file.path not in self._removed[table.name]
            and file.rows
            and (wanted is None or file.part in wanted)
        ]

    def read(self, table: LakeTable, files: Iterable[LakeFile], *, with_file: bool = False) -> DataFrame:
        """Return the rows of some files, in the columns of their table."""
        return self.frame(table, self.paths(files), with_file=with_file)

    def paths(self, files: Iterable[LakeFile]) -> list[Path]:
        """Return the current paths of files of the lake."""
        return [self.folder.location(self.before, file) for file in files]

    def staged(self, table: LakeTable) -> DataFrame:
        """Return the rows that this batch has staged for a table so far."""
        return self.frame(table, self.staged_paths(table))

    def staged_paths(self, table: LakeTable) -> list[Path]:
        """Return the files that this batch has staged for a table so far."""
        return [each.staged for each in self._added[table.name]]

    def now(self, table: LakeTable, parts: Iterable[str] | None = None) -> DataFrame:
        """Return a table as this batch will leave it."""
        return self.frame(table, self.paths_now(table, parts))

    def paths_now(self, table: LakeTable, parts: Iterable[str] | None = None) -> list[Path]:
        """Return the files of a table as this batch will leave it."""
        wanted = None if parts is None else set(parts)
        return self.paths(self.files(table, wanted)) + [
            each.staged for each in self._added[table.name] if wanted is None or each.file.part in wanted
        ]

    def rows_now(self, table: LakeTable) -> int:
        """Return how many rows a table will have."""
        kept = sum(file.rows for file in self.files(table))
        return kept + sum(each.file.rows for each in self._added[table.name])

    def frame(self, table: LakeTable, paths: Sequence[Path], *, with_file: bool = False) -> DataFrame:
        """Return the rows of files by their paths."""
        if not paths:
            empty = self.spark.createDataFrame([], table.struct())
            return empty.withColumn(FILE, F.lit("")) if with_file else empty
        frame = self.spark.read.schema(table.ddl).parquet(*map(str, paths))
        return frame.selectExpr("*", f"_metadata.file_path AS {FILE}") if with_file else frame

    def local(self, table: LakeTable, pieces: Sequence[pa.Table]) -> DataFrame:
        """Return rows of a table, read without Spark, as a DataFrame."""
        names = set(pieces[0].column_names)
        # Files may differ in the nullability of columns, which depends on the plan that wrote them.
        whole = to_arrow_schema(table.struct(), timezone="UTC")
        schema = pa.schema([field for field in whole if field.name in names])
        return self.spark.createDataFrame(
            pa.concat_tables([piece.select(schema.names).cast(schema) for piece in pieces])
        )

    def keep(self, rows: DataFrame) -> DataFrame:
        """Persist rows until `unpersist` is called."""
        kept = rows.persist(StorageLevel.MEMORY_AND_DISK)
        self._kept.append(kept)
        return kept

    def unpersist(self) -> None:
        """Free the rows of `keep`."""
        while self._kept:
            self._kept.pop().unpersist()

    # -- changing -----------------------------------------------------------------------------------------------

    def stage(self, table: LakeTable, rows: DataFrame, part: str | None = None, *, about: int = 0) -> None:
        """Write rows of a table into staging, in a session with the settings `STAGING`.

        Args:
            part: an expression for the part of the table that a row belongs to; each file has rows of one part.
            about: the estimated number of rows, from which the number of tasks and files is chosen.
        """
        folder = self.folder.new_staging(self.number, table.name)
        frame = rows.selectExpr(*table.names, f"{part or repr('')} AS {_PART}")
        if about:
            frame = frame.coalesce(math.ceil(about / min(_ROWS_PER_TASK, _rows_per_file(table))))
        if table.name in _ORDER:
            frame = frame.sortWithinPartitions(_PART, _ORDER[table.name])
        (
            frame.write.mode("error")
            .partitionBy(_PART)
            .option("compression", "zstd")
            .option("maxRecordsPerFile", _rows_per_file(table))
            .parquet(str(folder))
        )
        self._add_files(table, folder)

    def _add_files(self, table: LakeTable, folder: Path) -> None:
        for path in sorted(folder.rglob("*.parquet")):
            part = unquote(path.parent.name.partition("=")[2])
            part = "" if part == "__HIVE_DEFAULT_PARTITION__" else part
            rows = pq.read_metadata(path).num_rows
            if rows:
                file = LakeFile(self._new_path(table, part), rows, part, path.stat().st_size)
                self._added[table.name].append(Staged(path, file))

    def take_out(self, table: LakeTable, file: LakeFile, keys: pa.Table) -> pa.Table:
        """Remove the rows that have one of the keys from a file, and return them."""
        path = self.folder.new_staging(self.number, table.name).with_suffix(".parquet")
        taken, left = take_out(self.folder.location(self.before, file), keys, path)
        if taken.num_rows:
            self.replace(table, [file])
            if left:
                self._added[table.name].append(
                    Staged(path, LakeFile(self._new_path(table, file.part), left, file.part))
                )
        return taken

    def _new_path(self, table: LakeTable, part: str) -> str:
        name = f"{self.number:09d}-{len(self._added[table.name]):04d}.parquet"
        if table.by_day:
            return f"{table.name}/day={part}/{name}"
        return f"{table.name}/{part}-{name}" if part else f"{table.name}/{name}"

    def replace(self, table: LakeTable, files: Iterable[LakeFile]) -> None:
        """Remove files of a table with this batch."""
        self._removed[table.name].update(file.path for file in files)

    def files_of(self, table: LakeTable, uris: Iterable[str]) -> list[LakeFile]:
        """Return the files of a table by the URIs that Spark uses."""
        return self.files_at(table, [Path(unquote(urlsplit(uri).path)) for uri in uris])

    def files_at(self, table: LakeTable, paths: Iterable[Path]) -> list[LakeFile]:
        """Return the files of a table by their current paths."""
        known = {self.folder.location(self.before, file): file for file in self.files(table)}
        return [known[path] for path in paths]

    def compact(self, table: LakeTable, part: str | None) -> None:
        """Merge the small files of each part of a table if there are many."""
        by_part: dict[str, list[LakeFile]] = defaultdict(list)
        for file in self.files(table):
            if file.rows < _rows_per_file(table) * _SMALL:
                by_part[file.part].append(file)
        many = [file for small in by_part.values() if len(small) >= _MAX_SMALL for file in small]
        if many:
            self.stage(table, self.read(table, many), part, about=sum(file.rows for file in many))
            self.replace(table, many)

    def staged_max(self, table: LakeTable, column: str) -> int | None:
        """Return the maximum of a column in the staged files; None if a file has no statistics."""
        found = 0
        for each in self._added[table.name]:
            metadata = pq.read_metadata(each.staged)
            position = metadata.schema.names.index(column)
            for group in range(metadata.num_row_groups):
                statistics = metadata.row_group(group).column(position).statistics
                if statistics is None or not statistics.has_min_max:
                    return None
                found = max(found, statistics.max)
        return found

    def staged_parts(self, table: LakeTable) -> set[str]:
        """Return the parts of a table that have staged rows."""
        return {each.file.part for each in self._added[table.name]}

    # -- ending -------------------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[str, int], hidden: Mapping[str, int]) -> Manifest:
        """Make the batch part of the lake, and return the lake's new manifest."""
        after = {table.name: self._after(table) for table in LAKE_TABLES.values()}
        manifest = Manifest(
            number=self.number,
            offsets={**self.before.offsets, **offsets},
            hidden={**self.before.hidden, **hidden},
            tables=after,
        )
        self.folder.commit(manifest, [each for added in self._added.values() for each in added])
        return manifest

    def _after(self, table: LakeTable) -> list[LakeFile]:
        files = self.files(table) + [each.file for each in self._added[table.name]]
        if files:
            return sorted(files)
        return [self._placeholder(table)]

    def _placeholder(self, table: LakeTable) -> LakeFile:
        """Return an empty file, so that a table without rows is readable, too."""
        removed = self._removed[table.name]
        kept = [file for file in self.before.files(table.name) if not file.rows and file.path not in removed]
        if kept:
            return kept[0]
        part = "1970-01-01" if table.by_day else ""
        path = self.folder.new_staging(self.number, table.name).with_suffix(".parquet")
        schema = to_arrow_schema(table.struct(), timezone="UTC")
        pq.write_table(schema.empty_table(), path, compression="zstd")
        file = LakeFile(self._new_path(table, part), 0, part, path.stat().st_size)
        self._added[table.name].append(Staged(path, file))
        return file


def _rows_per_file(table: LakeTable) -> int:
    return _JOBS_PER_FILE if table.name == "jobs" else _ROWS_PER_FILE
