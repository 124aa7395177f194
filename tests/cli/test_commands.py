"""What each command does to a store, and says about it: on SQLite and on PostgreSQL."""

import importlib
import json
import threading
from datetime import UTC, datetime, timedelta

import pytest

import penstock as library
from penstock import FailureCategory, Job, JobStatus, RetryPolicy
from penstock.overview import Intake

HOSTILE = "\x1b[31mred\u202e[bold]\r\n12:00 all is well\x9b"


@pytest.fixture
def queue(shared_store):
    with shared_store.connect() as made:
        yield made


@pytest.fixture
def run(penstock, shared_store, queue):
    """Runs a command on the store of this test."""
    where = ["--url", shared_store.address]

    def run(command, *arguments, **more):
        return penstock(command, *arguments, *where, **more)

    return run


@pytest.fixture
def on_sqlite(penstock):
    """As `run`, for what does not depend on the store: (run, queue)."""
    with library.connect("sqlite:///jobs.db") as queue:
        yield (
            (
                lambda command, *arguments, **more: penstock(
                    command, *arguments, "--url", "sqlite:///jobs.db", **more
                )
            ),
            queue,
        )


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def ended(queue, name, how="complete", **fields):
    """Store a job and end it."""
    queue.enqueue_job(Job(id=name, type="t", **fields))
    queue.backend.dequeue_jobs("worker-1", job_ids=[name])
    if how == "complete":
        queue.complete_job(name, b'{"done": true}')
    else:
        queue.fail_job(name, how, category=FailureCategory.PERMANENT)


# -- submit ----------------------------------------------------------------------------------------------------------


def test_submit_stores_a_job_with_everything_that_was_asked_for(run, queue):
    first = run("submit", "first").out.strip()
    done = run(
        *("submit", "resize", '{"image": "café.png"}', "--priority", "high", "--tags", "a,b", "--tags", "c"),
        *("--delay", "90s", "--key", "k", "--after", first, "--idempotency-key", "once"),
        *("--correlation-id", "trace", "--callback-url", "https://example.com/x"),
        *("--max-attempts", "7", "--timeout", "2m"),
    )
    assert done.code == 0, done.err
    job = queue.get_job(done.out.strip())
    assert job.type == "resize"
    assert json.loads(job.payload) == {"image": "café.png"}
    assert (job.priority, job.tags, job.key, job.after) == (1, ("a", "b", "c"), ("k",), (first,))
    assert (job.idempotency_key, job.correlation_id) == ("once", "trace")
    assert job.callback_url == "https://example.com/x"
    assert job.retry.max_attempts == 7
    assert job.timeouts.execution == timedelta(minutes=2)
    assert timedelta(seconds=80) < job.run_at - job.created_at < timedelta(seconds=100)
    again = run("submit", "resize", "{}", "--idempotency-key", "once")
    assert again.out == done.out


def test_submit_reads_a_payload_from_stdin_or_a_file(run, queue, penstock):
    path = penstock.write("payload.json", '{"n": 1}\n')
    for arguments, stdin in ((["-"], '{"n": 1}'), (["--file", path], ""), (["--file", "-"], '{"n":1}')):
        done = run("submit", "t", *arguments, stdin=stdin)
        assert json.loads(queue.get_job(done.out.strip()).payload) == {"n": 1}
    empty = run("submit", "t", "-", stdin="")
    assert queue.get_job(empty.out.strip()).payload == b""


def test_submit_takes_a_moment_with_its_zone(run, queue):
    done = run("submit", "t", "--run-at", "2030-01-01T12:00:00+02:00")
    assert queue.get_job(done.out.strip()).run_at == datetime(2030, 1, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize("shape", ["payloads", "requests"])
def test_submit_stores_a_job_for_each_line(run, queue, shape):
    if shape == "payloads":
        done = run("submit", "t", "--jsonl", "--tags", "x", stdin='{"n": 1}\n\n{"n": 2}\n')
    else:
        request = '{"type": "t", "payload": {"n": %d}, "tags": ["x"], "delay": "5m", "priority": 0}\n'
        done = run("submit", "--jsonl", stdin=request % 1 + request % 2)
    assert done.code == 0, done.err
    jobs = [queue.get_job(each) for each in done.out.split()]
    assert [json.loads(job.payload)["n"] for job in jobs] == [1, 2]
    assert {job.tags for job in jobs} == {("x",)}
    assert {job.run_at is not None for job in jobs} == {shape == "requests"}


@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        ('{"type": "t"}\n{"type": ', "line 2: not JSON"),
        ('{"type": "t"}\n\n[1]', "line 3: must be an object with a type"),
        ('{"type": "t", "colour": 1}', "line 1: unknown field colour"),
        ('{"type": "t"}\n{"type": "t", "priority": 9}', "line 2: priority must be"),
        ('{"type": "t"}\n{"type": "t", "payload": "\\u0000"}', "line 2: payload must be text without NUL"),
        ('{"type": "t"}\n{"type": "t", "tags": "a"}', "line 2: tags must be"),
        ('{"type": "t"}\n{"type": "t", "after": ["nobody"]}', "nobody"),
    ],
)
def test_if_one_line_is_wrong_none_is_stored(on_sqlite, stdin, words):
    run, queue = on_sqlite
    done = run("submit", "--jsonl", stdin=stdin)
    assert done.code == 2
    assert words in done.err
    assert len(done.err.splitlines()) == 1
    assert queue.get_job_stats().total_jobs == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name the type"),
        (["t", "{"], "payload is not JSON"),
        (["t", "NaN"], "payload is not JSON"),
        (["t", "[" * 100_000], "payload is not JSON"),
        (["t", '"\\u0000"'], "payload must be text without NUL"),
        (["t", "{}", "--file", "x.json"], "not both"),
        (["t", "--file", "nowhere.json"], "nowhere.json cannot be read"),
        (["t", "--file", "."], "cannot be read"),
        (["t", "{}", "--jsonl"], "payloads come from stdin"),
        (["t", "--delay", "soon"], "delay must be a number with"),
        (["t", "--delay", "1" * 12 + "w"], "delay must be"),
        (["t", "--run-at", "2030-01-01"], "run_at must be an ISO 8601 time with its zone"),
        (["t", "--run-at", "2030-01-01T00:00:00Z", "--delay", "5"], "not both"),
        (["t", "--priority", "9"], "priority must be 0 to 4"),
        (["t", "--max-attempts", "0"], "max_attempts must be"),
        (["t", "--timeout", "0"], "execution must be"),
        (["t", "--wait", "--wait=soon"], "wait must be a number"),
        (["t", "--after", "nobody"], "nobody"),
        (["t" * 100_000], "type"),
    ],
)
def test_what_cannot_be_submitted_is_one_line_and_exit_code_2(on_sqlite, arguments, words):
    run, queue = on_sqlite
    done = run("submit", *arguments)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert len(done.err.splitlines()) == 1
    assert queue.get_job_stats().total_jobs == 0


def test_submit_waits_for_the_end_if_it_is_told_to(run, queue):
    with queue.stream_jobs("w", max_assigned_jobs=5) as stream:

        def work():
            for batch in stream:
                for job in batch:
                    if job.type == "good":
                        queue.complete_job(job.id, b'"hi\x1b"')
                    else:
                        queue.fail_job(job.id, "broken\n\ntrace", category=FailureCategory.PERMANENT)

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        assert run("submit", "good", "--wait") == (0, '"hi\\x1b"\n', "")
        assert run("submit", "good", "--wait", "60s")[:2] == (0, '"hi\\x1b"\n')
        bad = run("submit", "bad", "--wait", "60s")
        assert (bad.code, bad.out) == (1, "")
        assert "ended failed: broken" in bad.err
        many = run("submit", "--jsonl", "--wait", "60", stdin='{"type": "good"}\n{"type": "bad"}\n')
        assert many.code == 1
        assert [line.split("\t")[1] for line in many.out.splitlines()] == ["completed", "failed"]
        (told,) = lines(run("submit", "good", "--wait", "--json").out)
        assert (told["status"], told["result"]) == ("completed", '"hi\x1b"')
    worker.join(30)


def test_who_waits_in_vain_is_told_that_the_job_goes_on(run, queue):
    done = run("submit", "t", "--wait", "0.05s")
    assert (done.code, done.out) == (1, "")
    assert "has not ended within 0.05 s; it goes on" in done.err
    assert queue.get_job_stats().pending_jobs == 1


# -- list, show, stats -----------------------------------------------------------------------------------------------


def test_list_shows_jobs_by_status_type_and_tags_page_by_page(run, queue):
    queue.enqueue_jobs([Job(id=f"a{n}", type="a", tags=("x", f"n{n}")) for n in range(5)])
    ended(queue, "b", "it broke\nbadly")
    done = run("list")
    shown = [line.split("\t") for line in done.out.splitlines()]
    assert [cells[0] for cells in shown] == ["ID", "b", "a4", "a3", "a2", "a1", "a0"]
    assert (shown[1][2:4], shown[1][-1]) == (["failed", "1"], "it broke")

    def listed(*options):
        return [job["id"] for job in lines(run("list", "--json", *options).out)]

    assert listed("--oldest", "--limit", "2") == ["a0", "a1"]
    assert listed("--type", "a", "--limit", "2") == ["a4", "a3"]
    assert listed("--after", "a2") == ["a1", "a0"]
    assert listed("--after", "a3", "--oldest") == ["a4", "b"]
    assert [job["id"] for job in lines(run("list", "--json", "--status", "failed").out)] == ["b"]
    assert [job["id"] for job in lines(run("list", "--json", "--tags", "x,n2").out)] == ["a2"]
    assert run("list", "--type", "nobody").out.splitlines() == [done.out.splitlines()[0]]


def test_list_goes_over_many_pages(run, queue):
    queue.enqueue_jobs([Job(id=f"{n:05}", type="a") for n in range(2_100)])
    assert len(run("list", "--limit", "5000").out.splitlines()) == 2_101
    found = lines(run("list", "--limit", "1500", "--json").out)
    assert [job["id"] for job in found] == [f"{n:05}" for n in range(2_099, 599, -1)]


def test_show_tells_the_life_of_a_job(run, queue):
    queue.enqueue_job(
        Job(id="j", type="resize", payload=b'{"n": 1}', tags=("a",), retry=RetryPolicy(initial_delay=0))
    )
    for n in (1, 2):
        queue.backend.dequeue_jobs("worker-1", job_ids=["j"])
        queue.save_output("j", f"printed {n}\n")
        if n == 1:
            queue.fail_job("j", "no luck")
    queue.complete_job("j", b'{"done": true}')
    shown = run("show", "j").out
    for words in ("resize", "completed", "2 of 3", '{"n": 1}', '{"done": true}', "printed 2", "no luck"):
        assert words in shown
    steps = [line.split("\t")[2:5] for line in shown.splitlines() if line.count("\t") == 6]
    assert steps == [
        ["STEP", "STATUS", "ATTEMPT"],
        ["enqueue", "initial_pending", "0"],
        ["claim", "running", "1"],
        ["fail", "failed_retry", "1"],
        ["claim", "running", "2"],
        ["complete", "completed", "2"],
    ]
    (told,) = lines(run("show", "j", "--json").out)
    assert told["payload"] == '{"n": 1}'
    assert told["output"] == "printed 2\n"
    assert [row["verb"] for row in told["history"]] == ["enqueue", "claim", "fail", "claim", "complete"]
    assert told["history"][0]["recorded_at"].endswith("Z")


def test_long_and_binary_contents_are_cut_unless_all_is_wanted(run, queue):
    queue.enqueue_job(Job(id="j", type="t", payload=b"x" * 5_000))
    queue.enqueue_job(Job(id="bytes", type="t", payload=b"\xff\x00" * 50))
    assert "3000 more characters" in run("show", "j").out
    assert "x" * 5_000 in run("show", "j", "--full").out
    assert "100 bytes that are no text" in run("show", "bytes").out
    (told,) = lines(run("show", "bytes", "--json").out)
    assert told["payload_encoding"] == "base64"


def test_what_jobs_hold_cannot_take_over_a_terminal(run, queue):
    queue.enqueue_job(
        Job(
            id="j\u202e",
            type="\u202etype",
            tags=("[red]", "tab\u2066"),
            payload=HOSTILE.encode(),
            description=None,
        )
    )
    queue.backend.dequeue_jobs("worker\u200b", job_ids=["j\u202e"])
    queue.save_progress("j\u202e", 5, HOSTILE)
    queue.save_output("j\u202e", HOSTILE)
    queue.fail_job("j\u202e", HOSTILE, category=FailureCategory.PERMANENT)
    for arguments in (
        ["list"],
        ["show", "j\u202e"],
        ["journal"],
        ["stats", "[red]"],
        ["redrive", "j\u202e", "--json"],
    ):
        for more in ([], ["--json"]):
            done = run(*arguments, *more)
            assert done.code == 0, done.err
            for line in done.out.split("\n"):
                assert line.replace("\t", "").isprintable(), (arguments, line)
    gone = run("show", HOSTILE.replace("\n", ""))
    assert all(line.isprintable() for line in gone.err.splitlines())


def test_stats_count_all_jobs_and_those_with_tags(run, queue, penstock):
    queue.enqueue_jobs([Job(id=f"a{n}", type="a", tags=("x", "y") if n else ("x",)) for n in range(3)])
    ended(queue, "b")
    table = [line.split("\t") for line in run("stats", "x", "x,y").out.splitlines()[:4]]
    assert table[0] == ["TAGS", "TOTAL", "PENDING", "RUNNING", "FAILED", "COMPLETED", "STOPPED", "RETRIES"]
    assert [row[:3] for row in table[1:]] == [["(all)", "4", "3"], ["x", "3", "3"], ["x, y", "2", "2"]]
    assert run("stats", "--tags", "x,y").out.splitlines()[2].startswith("x, y\t2\t2\t")
    whole, tagged = lines(run("stats", "y", "--json").out)
    assert (whole["total_jobs"], whole["completed_jobs"], whole["blocked"]) == (4, 1, False)
    assert whole["unhandled_types"] == ["a"]
    (told,) = whole["types"]
    assert (told["type"], told["pending"], told["ready"], told["running"], told["handled"]) == (
        "a",
        3,
        3,
        0,
        False,
    )
    assert (tagged["tags"], tagged["total_jobs"]) == (["y"], 2)


def test_stats_name_the_types_that_no_living_worker_takes(run, queue):
    queue.enqueue_jobs([Job(id="1", type="a", key="k"), Job(id="2", type="orphan")])
    queue.backend.dequeue_jobs("w", job_ids=["1"])
    queue.enqueue_job(Job(id="3", type="a"))
    owner = queue.backend.open_owner()
    queue.backend.beat_owner(owner, intakes=[Intake(types=("a",), slots=1)])
    done = run("stats")
    assert done.out.splitlines()[-1] == "no living worker takes: orphan"
    (told,) = lines(run("stats", "--json").out)
    assert told["unhandled_types"] == ["orphan"]
    assert told["workers"] == 1
    queue.backend.close_owner(owner)


# -- cancel, redrive, delete, block ----------------------------------------------------------------------------------


def test_cancel_by_ids_and_by_tags(run, queue):
    queue.enqueue_jobs([Job(id=str(n), type="t", tags=("even",) if n % 2 == 0 else ()) for n in range(5)])
    ended(queue, "old")
    assert run("cancel", "1") == (0, "1 cancelled\n", "")
    (told,) = lines(run("cancel", "--tags", "even", "--json").out)
    assert sorted(told["cancelled"]) == ["0", "2", "4"]
    missed = run("cancel", "3", "old", "nobody", "--json")
    assert missed.code == 1
    assert lines(missed.out) == [{"cancelled": ["3"], "unknown": ["old", "nobody"]}]
    assert "penstock: not there, or ended already: old, nobody" in missed.err
    assert queue.get_job("old").status is JobStatus.COMPLETED


def test_ids_may_come_from_stdin(run, queue):
    queue.enqueue_jobs([Job(id=str(n), type="t") for n in range(3)])
    assert run("cancel", "-", stdin="0\n\n 2 \n").out == "2 cancelled\n"


@pytest.mark.parametrize("verb", ["cancel", "redrive", "delete"])
def test_nothing_named_is_a_mistake(run, verb):
    done = run(verb)
    assert done.code == 2
    assert "name jobs by their ids, or by --tags" in done.err


def test_redrive_submits_dead_jobs_again(run, queue):
    ended(queue, "a", "broken", tags=("x",))
    ended(queue, "b", "broken", tags=("x",))
    ended(queue, "fine")
    (copy,) = run("redrive", "a").out.split()
    assert queue.get_job(copy).redrive_of == "a"
    (told,) = lines(run("redrive", "--tags", "x", "--json").out)
    assert {queue.get_job(each).redrive_of for each in told["ids"]} == {"a", "b"}
    assert run("redrive", "nobody").code == 1
    refused = run("redrive", "b", "fine")
    assert (refused.code, refused.out) == (1, "")
    assert "only failed and dead_letter jobs" in refused.err


def test_delete_removes_what_has_ended_or_nothing(run, queue):
    for name in "abc":
        ended(queue, name, tags=("x",) if name != "c" else ())
    queue.enqueue_job(Job(id="waits", type="t"))
    refused = run("delete", "a", "waits")
    assert (refused.code, refused.out) == (1, "")
    assert queue.get_job("a")
    missed = run("delete", "c", "nobody")
    assert (missed.code, missed.out) == (1, "1 deleted\n")
    assert lines(run("delete", "--tags", "x", "--json").out) == [{"deleted": 2, "unknown": []}]
    assert run("show", "a").code == 1


def test_block_refuses_new_jobs_until_unblock(run, queue):
    assert lines(run("block", "--status", "--json").out) == [{"blocked": False, "unfinished_jobs": 0}]
    assert run("block").out.startswith("blocked: new jobs are refused")
    assert queue.backend.is_blocked()
    refused = run("submit", "t")
    assert (refused.code, refused.out) == (1, "")
    assert "blocked" in run("stats", "--json").out
    assert run("unblock").out.startswith("open")
    assert run("submit", "t").code == 0
    assert lines(run("block", "--status", "--json").out) == [{"blocked": False, "unfinished_jobs": 1}]


# -- journal ---------------------------------------------------------------------------------------------------------


def test_journal_shows_the_latest_rows_or_those_after_one(run, queue):
    queue.enqueue_jobs([Job(id=str(n), type="t") for n in range(5)])
    ended(queue, "j", "it broke")
    assert [row["seq"] for row in lines(run("journal", "--json", "--limit", "3").out)] == [6, 7, 8]
    assert [row["seq"] for row in lines(run("journal", "--json", "--after", "0", "--limit", "2").out)] == [
        1,
        2,
    ]
    assert [row["seq"] for row in lines(run("journal", "--json", "--after", "6").out)] == [7, 8]
    assert [row["verb"] for row in lines(run("journal", "--json", "--job", "j").out)] == [
        "enqueue",
        "claim",
        "fail",
    ]
    last = run("journal").out.splitlines()[-1].split("\t")
    assert [last[0], *last[2:]] == ["8", "j", "t", "fail", "failed", "1", "it broke"]
    assert run("journal", "--after", "99")[:2] == (2, "")
    assert run("journal", "--job", "nobody").code == 1


def test_an_empty_journal_is_fine(run):
    assert run("journal", "--json") == (0, "", "")


def test_journal_goes_over_many_pages(run, queue):
    queue.enqueue_jobs([Job(id=f"{n:05}", type="a") for n in range(2_100)])
    assert len(run("journal", "--after", "0", "--limit", "5000", "--json").out.splitlines()) == 2_100
    assert len(run("journal", "--limit", "1500").out.splitlines()) == 1_501


# -- bench -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_bench_measures_beside_the_store_and_leaves_nothing(penstock, shared_store, queue, monkeypatch):
    monkeypatch.setattr(importlib.import_module("penstock.cli.bench"), "STOCK", 500)
    before = sorted(penstock.folder.iterdir())
    done = penstock("bench", "--url", shared_store.url, "--seconds", "0.1", "--threads", "2", "--json")
    assert done.code == 0, done.err
    (told,) = lines(done.out)
    assert len(told["results"]) == 6
    assert all(each["jobs"] > 0 and each["jobs_per_second"] > 0 for each in told["results"])
    assert queue.get_job_stats().total_jobs == 0
    assert sorted(penstock.folder.iterdir()) == before
    if shared_store.options:
        import psycopg

        with psycopg.connect(shared_store.url) as connection:
            left = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'penstock_bench%'")
            assert left.fetchall() == []
