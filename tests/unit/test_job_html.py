"""Jobs and handles in notebooks."""

import html.parser

import penstock
from penstock import Job, Key
from penstock.testing import ManualClock, drain, in_memory

HOSTILE = '<script src="https://evil.example/x.js">alert(1)</script>&"\'\ud800'


class Reader(html.parser.HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data):
        self.words.append(data)


def test_a_job_is_a_small_table():
    clock = ManualClock()
    job = Job(
        id="job-1",
        type="resize",
        payload=b'{"width": 200}',
        tags=("a", "b"),
        key=Key("k"),
        created_at=clock.now(),
        progress=50,
    )
    read = Reader(job._repr_html_())
    for word in ("Job job-1", "resize", "initial_pending", "NORMAL", "a, b", "k", '{"width": 200}', "50 % "):
        assert word in read.words
    assert set(read.tags) == {"table", "caption", "b", "tbody", "tr", "th", "td"}
    assert set(read.attributes) <= {"style", "colspan"}


def test_what_a_job_holds_is_escaped_and_cut():
    job = Job(
        id=HOSTILE,
        type=HOSTILE,
        payload=HOSTILE.encode(errors="replace") * 1000,
        error_message=HOSTILE,
        result=b"\xff\xfe",
    )
    text = job._repr_html_()
    read = Reader(text)
    assert "script" not in read.tags
    assert "src" not in read.attributes
    assert "2 bytes" in read.words
    assert len(text) < 10_000
    text.encode()


def test_a_handle_shows_its_job_or_why_it_cannot(tmp_path):
    app = penstock.App("memory:")

    @app.job
    def double(number: int) -> int:
        return 2 * number

    with in_memory(app) as queue:
        handle = double.submit(21)
        drain(app)
        assert "42" in Reader(handle._repr_html_()).words
        queue.delete_jobs(job_ids=[handle.id])
        assert any("not" in word or "no job" in word for word in Reader(handle._repr_html_()).words)
