"""Whatever text an option gets: it is taken, or refused with an error of ours, and nothing else happens."""

import itertools
from contextlib import suppress

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema

import penstock
from penstock.errors import PenstockError
from penstock.spark._options import _READ, _STREAM
from penstock.spark._selection import SELECTION
from penstock.spark.schemas import JOURNAL, struct_of
from penstock.spark.sink import _BATCH_NAMES, sink_options
from penstock.spark.source import PenstockSource

TEXTS = [
    *(
        "",
        " ",
        "\0",
        "a\0b",
        "\ud800",
        "NaN",
        "-0",
        "-1",
        "1e9",
        "0x10",
        "1_000",
        "9" * 5000,
        "٣",
        "½",
        "true",
        "nUlL",
    ),
    *(
        "[",
        "[]",
        "[[]]",
        "[" * 5000,
        "{}",
        "{1: 2}",
        "()",
        "[1]",
        "[null]",
        '["a"',
        "[None]",
        "'; --",
        "\\",
        "\n",
    ),
    *(
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999-23:59",
        "2026-02-30T00:00Z",
        "2026-01-01T00:00",
        "P1D",
    ),
    *("x" * 100_000, "ü" * 300, "running," * 1000, "a,b", ",", "/", "/dev/null", "..", "file:///x"),
]
URLS = [
    *(
        "sqlite:///",
        "sqlite:///\0",
        "sqlite://host/x",
        "sqlite:///\ud800",
        "postgresql://[::1",
        "postgres://u:p@w@h/d",
    ),
    *(
        "postgresql://h:99999999999999999999/d",
        "postgresql://%zz/d",
        "Postgres://h/d?schema=\0",
        "memory:",
        "http://x",
    ),
]


@pytest.fixture
def known_url(sqlite_url):
    penstock.connect(sqlite_url).close()
    return sqlite_url


@pytest.mark.parametrize("option", [*_READ, *SELECTION, *_STREAM])
def test_reads_refuse_with_errors_of_ours(known_url, tmp_path, option):
    before = sorted(tmp_path.iterdir())
    for text, table in itertools.product(TEXTS, ("journal", "jobs")):
        given = {"url": known_url, "table": table} | {option: text}
        for ask in ("schema", "reader", "streamReader"):
            source = PenstockSource(CaseInsensitiveDict(given))
            with suppress(PenstockError):
                getattr(source, ask)(**({} if ask == "schema" else {"schema": struct_of(JOURNAL)}))
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("option", ["ids", "stagingDir", *_BATCH_NAMES, "unknown"])
def test_writes_refuse_with_errors_of_ours(known_url, tmp_path, option):
    before = sorted(tmp_path.iterdir())
    for text, is_stream in itertools.product(TEXTS, (True, False)):
        with suppress(PenstockError):
            sink_options({"url": known_url, option: text}, is_stream=is_stream)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("url", [*URLS, *TEXTS], ids=lambda url: repr(url)[:40])
def test_urls_are_refused_with_errors_of_ours(url):
    schema = from_arrow_schema(pa.schema([("id", pa.string()), ("type", pa.string())]))
    with pytest.raises(PenstockError):
        PenstockSource(CaseInsensitiveDict(url=url)).reader(schema=struct_of(JOURNAL)).partitions()
    if "sqlite" not in url:
        with pytest.raises(PenstockError):
            PenstockSource(CaseInsensitiveDict(url=url)).writer(schema, overwrite=False)
