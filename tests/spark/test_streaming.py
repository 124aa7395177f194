"""The journal as a stream: offsets and limits without a session, then queries that are stopped, killed and restarted."""

import json
import shutil
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

import penstock
from penstock import Job
from penstock.errors import BackendError, InvalidArgumentError
from penstock.spark._streaming import _shared
from penstock.spark.source import PenstockSource

SEQS = StructType([StructField("seq", LongType())])


def add(url, count):
    with penstock.open_backend(url) as backend:
        backend.enqueue_jobs([Job.new("t") for _ in range(count)])
        return backend.journal.store_id()


@pytest.fixture
def stream_of():
    opened = []

    def open_stream(*urls, **options):
        text = urls[0] if len(urls) == 1 else json.dumps(urls)
        opened.append(PenstockSource(CaseInsensitiveDict(url=text, **options)).streamReader(schema=SEQS))
        return opened[-1]

    yield open_stream
    for stream in opened:
        stream.stop()


def test_offsets_are_the_numbers_of_each_store(url, stream_of):
    source = add(url, 5)
    stream = stream_of(url)
    assert stream.initialOffset() == {source: 0}
    assert stream.latestOffset({source: 0}, ReadAllAvailable()) == {source: 5}
    assert stream.latestOffset({source: 5}, ReadAllAvailable()) == {source: 5}
    add(url, 2)
    assert stream.latestOffset({source: 5}, ReadAllAvailable()) == {source: 7}
    ranges = stream.partitions({source: 5}, {source: 7})
    stream.stop()
    read = [row["seq"] for each in ranges for batch in stream.read(each) for row in batch.to_pylist()]
    assert read == [6, 7]


def test_a_stream_may_begin_elsewhere(sqlite_url, stream_of):
    source = add(sqlite_url, 5)
    assert stream_of(sqlite_url, startingOffset="latest").initialOffset() == {source: 5}
    assert stream_of(sqlite_url, startingoffset="3").initialOffset() == {source: 3}
    with pytest.raises(InvalidArgumentError, match="earliest, latest"):
        stream_of(sqlite_url, startingOffset="-1").initialOffset()


def test_a_batch_has_a_limit(sqlite_url, stream_of):
    source = add(sqlite_url, 10)
    stream = stream_of(sqlite_url, maxRowsPerTrigger="4")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(4)
    seen, offset = [], stream.initialOffset()
    while (end := stream.latestOffset(offset, limit)) != offset:
        seen.append(end[source] - offset[source])
        offset = end
    assert seen == [4, 4, 2]


def test_available_now_has_an_end_that_does_not_move(sqlite_url, stream_of):
    source = add(sqlite_url, 3)
    stream = stream_of(sqlite_url)
    stream.prepareForTriggerAvailableNow()
    add(sqlite_url, 3)
    assert stream.latestOffset({source: 0}, ReadAllAvailable()) == {source: 3}
    assert stream.reportLatestOffset() == {source: 6}


def test_a_limit_is_shared_among_stores():
    assert _shared({"a": 10, "b": 2, "c": 10}, 12) == {"b": 2, "a": 5, "c": 5}
    assert _shared({"a": 1, "b": 5}, 100) == {"a": 1, "b": 5}
    assert _shared({"a": 3, "b": 5, "c": 4}, 1) == {"a": 0, "c": 0, "b": 1}
    assert _shared({}, 5) == {}


def test_a_store_may_join_but_not_leave(sqlite_url, tmp_path, stream_of):
    other = f"sqlite:///{tmp_path}/other.db"
    first, second = add(sqlite_url, 2), add(other, 3)
    both = stream_of(sqlite_url, other)
    assert both.latestOffset({first: 2}, ReadAllAvailable()) == {first: 2, second: 3}
    assert len(both.partitions({first: 2}, {first: 2, second: 3})) == 1
    with pytest.raises(InvalidArgumentError, match=f"has read the stores {second}"):
        stream_of(sqlite_url).latestOffset({first: 2, second: 3}, ReadAllAvailable())


def test_an_older_copy_of_a_store_is_noticed(sqlite_url, stream_of):
    source = add(sqlite_url, 2)
    with pytest.raises(BackendError, match=r"ends at 2.*new checkpoint"):
        stream_of(sqlite_url).latestOffset({source: 9}, ReadAllAvailable())


def test_archived_rows_make_no_empty_batches(sqlite_url, stream_of):
    with penstock.open_backend(sqlite_url) as backend:
        source = backend.journal.store_id()
        backend.enqueue_jobs([Job.new("t") for _ in range(20)])
        backend.cancel_jobs(job_ids=[job.id for job in backend.list_jobs()])
        backend.enqueue_job(Job.new("t"))
        backend.journal.archive(0)
        assert backend.journal.span() == (41, 41)
    limited = stream_of(sqlite_url).latestOffset({source: 0}, ReadMaxRows(1))
    assert limited == {source: 41}


def test_only_the_journal_is_a_stream(sqlite_url, stream_of):
    with pytest.raises(InvalidArgumentError, match="only the journal can be streamed"):
        stream_of(sqlite_url, table="jobs").initialOffset()


def test_what_is_wrong_with_options_is_said_at_once_and_by_whatever_is_asked(stream_of):
    """By `load()`; with a schema of the user's own Spark asks for a reader, and stumbles if it gets none."""
    given = {"partitions": "0", "startingOffset": "soon", "maxRowsPerTrigger": "no"}
    with pytest.raises(InvalidArgumentError, match=r"partitions .*; startingOffset .*; maxRowsPerTrigger "):
        PenstockSource(CaseInsensitiveDict(url="sqlite:///x.db", **given)).schema()
    refused = stream_of("sqlite:///x.db", **given)
    for ask in (
        refused.initialOffset,
        lambda: refused.latestOffset({}, ReadAllAvailable()),
        lambda: refused.partitions({}, {}),
    ):
        with pytest.raises(
            InvalidArgumentError, match=r"partitions .*; startingOffset .*; maxRowsPerTrigger "
        ):
            ask()


def test_a_batch_that_was_planned_before_a_restart_is_read_whole_or_not_at_all(
    sqlite_url, tmp_path, stream_of
):
    """Its rows would count as read otherwise: Spark asks for new offsets only after it."""
    other = f"sqlite:///{tmp_path}/other.db"
    first, second = add(sqlite_url, 2), add(other, 3)
    with pytest.raises(InvalidArgumentError, match=f"has read the stores {second}"):
        stream_of(sqlite_url).partitions({first: 0}, {first: 2, second: 3})
    with pytest.raises(BackendError, match=r"read up to 3 .*ends at 2.*new checkpoint"):
        stream_of(sqlite_url).partitions({first: 0}, {first: 3})


def test_a_file_that_takes_the_place_of_a_store_is_noticed(sqlite_url, stream_of):
    """A running query has the old one open, and would wait for ever for news from it."""
    file = Path(sqlite_url.removeprefix("sqlite:///"))
    source = add(sqlite_url, 2)
    shutil.copy(file, f"{file}.copy")
    add(sqlite_url, 1)
    stream = stream_of(sqlite_url)
    assert stream.latestOffset({source: 0}, ReadAllAvailable()) == {source: 3}
    file.rename(f"{file}.moved")
    with pytest.raises(BackendError, match="there is no file"):
        stream.latestOffset({source: 3}, ReadAllAvailable())
    Path(f"{file}.copy").rename(file)
    with pytest.raises(BackendError, match="an older copy has taken its place"):
        stream.latestOffset({source: 3}, ReadAllAvailable())
    add(sqlite_url, 2)
    assert stream.latestOffset({source: 3}, ReadAllAvailable()) == {source: 4}


def test_offsets_do_not_depend_on_the_order_of_urls(sqlite_url, tmp_path, stream_of):
    """Spark compares their texts, and what looks new makes an empty batch."""
    other = f"sqlite:///{tmp_path}/other.db"
    add(sqlite_url, 2), add(other, 3)
    texts = {
        json.dumps(stream_of(*urls).reportLatestOffset())
        for urls in ((sqlite_url, other), (other, sqlite_url))
    }
    assert len(texts) == 1


# -- queries ------------------------------------------------------------------------------------------------------


def test_a_query_is_limited_stopped_and_goes_on(spark, url, tmp_path):
    add(url, 10)
    seen = []

    def run():
        stream = spark.readStream.format("penstock").option("url", url).option("maxRowsPerTrigger", 4).load()
        query = (
            stream.select("seq")
            .writeStream.trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(lambda frame, _: seen.append([row.seq for row in frame.collect()]))
            .start()
        )
        assert query.awaitTermination(60)

    run()
    assert [len(batch) for batch in seen] == [4, 4, 2]
    run()
    add(url, 3)
    run()
    assert [seq for batch in seen for seq in sorted(batch)] == list(range(1, 14))


@pytest.mark.deep
def test_a_failed_batch_is_not_taken_for_read_if_a_store_is_left_out_of_the_next_run(spark, tmp_path):
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in "ab"]
    for url in urls:
        add(url, 2)
    seen = []

    def run(*urls, fails=False):
        def each(frame, _):
            assert not fails
            seen.extend(frame.collect())

        stream = spark.readStream.format("penstock").option("url", list(urls)).load()
        query = stream.select("source", "seq").writeStream.trigger(availableNow=True).foreachBatch(each)
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(60)

    with pytest.raises(StreamingQueryException):
        run(*urls, fails=True)
    with pytest.raises(StreamingQueryException, match="name all of them"):
        run(urls[0])
    assert seen == []
    run(*urls)
    assert len({*seen}) == len(seen) == 4


def test_wrong_options_are_an_error_of_load(spark, sqlite_url):
    reader = spark.readStream.format("penstock").option("startingOffset", "soon")
    with pytest.raises(AnalysisException, match="startingOffset must be earliest, latest"):
        reader.load(sqlite_url)
    with pytest.raises(StreamingQueryException, match="startingOffset must be earliest, latest") as caught:
        reader.schema("seq bigint").load(sqlite_url).writeStream.format("noop").start().awaitTermination(60)
    assert "UnboundLocalError" not in str(caught.value)
