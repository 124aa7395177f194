import duckdb
import pyarrow.parquet as pq
import pytest
from tests.spark.lake.support import TABLES, assert_lake_is

from penstock.spark import read_table


def test_the_tables_are_what_the_whole_journal_says(spark, story):
    assert_lake_is(spark, story["lake"], story["stores"])


def test_reports_count_what_was_moved(story):
    first, second, third = story["reports"]
    assert first.batches == 1
    assert second.batches > 1
    assert first.events + second.events == sum(len(store.entries()) for store in story["stores"])
    assert (third.events, third.batches) == (0, 0)


def test_a_rerun_changes_no_file(story):
    changed = story["before"].items() ^ story["after"].items()
    assert {path for path, _ in changed} <= {"_penstock/lock"}


@pytest.mark.parametrize("table", TABLES)
def test_every_folder_is_readable_as_it_is(spark, story, table):
    rows = read_table(spark, story["lake"], table).count()
    folder = story["lake"] / table
    assert rows > 0
    assert duckdb.sql(f"SELECT count(*) FROM read_parquet('{folder}/**/*.parquet')").fetchall() == [(rows,)]
    assert pq.read_table(folder).num_rows == rows
    assert spark.read.parquet(str(folder)).count() == rows
