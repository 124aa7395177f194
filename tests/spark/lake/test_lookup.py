"""Rows of a few jobs in files of many: taken out without Spark, exactly, whatever the size of the pieces."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.spark.lake import _lookup
from penstock.spark.lake._lookup import distinct, files_with, jobs_of, rows_with, take_out

ROWS = 20


def ids(*pairs):
    return pa.table({"source": [each[0] for each in pairs], "job_id": [each[1] for each in pairs]})


def jobs(source, first):
    return pa.table(
        {
            "source": [source] * ROWS,
            "job_id": [f"job-{first + number}" for number in range(ROWS)],
            "tags": [[str(number)] for number in range(ROWS)],
        }
    )


@pytest.fixture(params=[3, 100_000])
def files(request, monkeypatch, tmp_path):
    """Three files; the first and the last have the same ids, of two sources."""
    monkeypatch.setattr(_lookup, "_ROWS_AT_ONCE", request.param)
    paths = []
    for name, table in {"a": jobs("one", 0), "b": jobs("one", ROWS), "c": jobs("two", 0)}.items():
        paths.append(tmp_path / f"{name}.parquet")
        pq.write_table(table, paths[-1])
    return paths


def names(table):
    return list(zip(table["source"].to_pylist(), table["job_id"].to_pylist(), strict=True))


def test_the_files_of_an_id_are_found_whatever_its_source(files):
    assert files_with(files, ids(("one", "job-3"))) == [files[0], files[2]]
    assert files_with(files, ids(("one", "job-25"), ("one", "missing"))) == [files[1]]
    assert files_with(files, distinct([])) == []


def test_the_rows_of_a_job_are_those_of_its_source(files):
    found = rows_with(files, ["source", "job_id"], ids(("one", "job-3"), ("one", "job-19"), ("two", "job-0")))
    assert [(path, names(rows)) for path, rows in found] == [
        (files[0], [("one", "job-3"), ("one", "job-19")]),
        (files[2], [("two", "job-0")]),
    ]


def test_what_is_taken_out_and_what_is_left_are_the_file(files, tmp_path):
    rest = tmp_path / "rest"
    taken, left = take_out(files[0], ids(("one", "job-3"), ("two", "job-4"), ("one", "job-19")), rest)
    assert names(taken) == [("one", "job-3"), ("one", "job-19")]
    assert left == ROWS - 2
    whole, remaining = pq.read_table(files[0]), pq.read_table(rest)
    assert remaining.schema.equals(whole.schema)
    assert pa.concat_tables([taken, remaining]).sort_by("job_id").equals(whole.sort_by("job_id"))


def test_all_rows_may_be_taken_out(files, tmp_path):
    taken, left = take_out(files[1], pq.read_table(files[1]).select(["source", "job_id"]), tmp_path / "rest")
    assert (taken.num_rows, left) == (ROWS, 0)


def test_trees_are_found_by_any_of_their_jobs(files, tmp_path):
    trees = pa.table(
        {
            "source": ["one", "one", "two"],
            "flow_id": ["x", "y", "z"],
            "job_ids": [["a", "b", "x"], ["c", "y"], ["a", "z"]],
        }
    )
    pq.write_table(trees, tmp_path / "trees")
    ((_, found),) = rows_with(
        [tmp_path / "trees"], trees.column_names, ids(("one", "a"), ("one", "b")), listed="job_ids"
    )
    assert found["flow_id"].to_pylist() == ["x"]
    assert names(jobs_of(found)) == [("one", "a"), ("one", "b"), ("one", "x")]
    assert rows_with([tmp_path / "trees"], trees.column_names, ids(("two", "b")), listed="job_ids") == []


def test_jobs_are_named_once():
    both = distinct([ids(("one", "a"), ("one", "b")), ids(("one", "a"), ("two", "a"))])
    assert sorted(names(both)) == [("one", "a"), ("one", "b"), ("two", "a")]
    assert distinct([]).num_rows == 0
