"""How users name stores, and the error if they name none."""

import json
from datetime import datetime

import pytest

import penstock
from penstock import spark as ps
from penstock.errors import InvalidArgumentError
from penstock.spark._options import read_options, stream_options
from penstock.spark._streaming import StreamReader
from penstock.spark.schemas import JOURNAL, struct_of

URLS = ["sqlite:////a.db", "postgresql://one:5432,two:5432/db", "sqlite:////b,c.db"]


@pytest.mark.parametrize(
    "text",
    [json.dumps(URLS), str(URLS), ",".join(URLS), " , ".join(URLS)],
    ids=["JSON", "Python", "commas", "spaces"],
)
def test_several_stores_are_a_list(text):
    """`load([…])` writes JSON, `.option("url", […])` what Python shows, and people like commas."""
    assert [store.url for store in read_options({"url": text}).stores] == [*URLS[:2], "sqlite:////b%2Cc.db"]


def test_a_list_that_is_none_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"url must begin with sqlite:/// or postgresql://"):
        read_options({"url": "['sqlite:///a.db', 5]"})


def test_a_stream_does_not_begin_beyond_the_end(sqlite_url):
    with penstock.connect(sqlite_url) as queue:
        queue.submit("a")
    given = {"url": sqlite_url, "startingOffset": "2"}
    reader = StreamReader(read_options(given, is_stream=True), stream_options(given), struct_of(JOURNAL))
    with pytest.raises(InvalidArgumentError, match=r"startingOffset is 2, but the journal of .* ends at 1"):
        reader.initialOffset()
    reader.stop()


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (None, "must be the url of a store or the folder of a lake, got None"),
        (["sqlite:///a.db"], "must be the url of a store"),
        ("mysql://user:secret@host/db", "url must begin with sqlite:/// or postgresql://, got 'mysql'"),
        ("nowhere", "there is no lake in"),
    ],
)
def test_an_audit_says_what_it_needs(target, says):
    with pytest.raises(InvalidArgumentError, match=says):
        ps.audit(None, target)


def test_an_audit_needs_a_moment_with_a_zone():
    with pytest.raises(InvalidArgumentError, match="drained_at must be a time with its zone"):
        ps.audit(None, "nowhere", drained_at=datetime(2026, 1, 1))
