"""What each command does to a store, and says about it: on SQLite and on PostgreSQL."""

import importlib
import json
import os
import socket
import threading
from datetime import UTC, datetime, timedelta

import pytest

import penstock as library
from penstock import FailureCategory, Job, JobStatus, RetryPolicy
from penstock.backends.contract.overview import Intake
from penstock.job import GIVEN, TEXT_LIMITS
from penstock.testing import ManualClock

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
        ('{"type": "t", "colour": 1}', "line 1: unknown field 'colour'"),
        ('{"type": "t"}\n{"type": "t", "priority": 9}', "line 2: priority must be"),
        ('{"type": "t"}\n{"type": "t", "payload": "\\u0000"}', "line 2: payload must be text without NUL"),
        ('{"type": "t"}\n{"type": "t", "tags": "a"}', "line 2: tags must be"),
        ('{"type": "t"}\n{"type": "t", "after": ["missing"]}', "missing"),
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
        (["t", "--delay", "soon"], "delay must be a duration"),
        (["t", "--delay", "1" * 12 + "w"], "delay must be"),
        (["t", "--run-at", "2030-01-01"], "run_at must be an ISO 8601 time with its zone"),
        (["t", "--run-at", "2030-01-01T00:00:00Z", "--delay", "5"], "not both"),
        (["t", "--priority", "9"], "priority must be 0 to 4"),
        (["t", "--max-attempts", "0"], "max_attempts must be"),
        (["t", "--timeout", "0"], "execution must be"),
        (["t", "--wait", "--wait=soon"], "wait must be a duration"),
        (["t", "--after", "missing"], "missing"),
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


def test_submit_waits_for_the_end_with_wait(run, queue):
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
        (printed,) = lines(run("submit", "good", "--wait", "--json").out)
        assert (printed["status"], printed["result"]) == ("completed", '"hi\x1b"')
    worker.join(30)


def test_a_wait_that_times_out_reports_that_the_job_goes_on(run, queue):
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
    assert run("list", "--type", "missing").out.splitlines() == [done.out.splitlines()[0]]


def test_machine_readable_lists_are_never_cut_in_silence(run, queue):
    dead = [f"{n:03}" for n in range(58)]
    queue.enqueue_jobs([Job(id=each, type="t", retry=RetryPolicy(max_attempts=1)) for each in dead])
    queue.backend.dequeue_jobs("w", limit=100)
    queue.fail_jobs(dict.fromkeys(dead, "boom"))
    listed = run("list", "--status", "dead", "--json")
    assert (len(lines(listed.out)), listed.err) == (58, "")
    assert len(run("list", "--status", "dead").out.splitlines()) == 59
    redriven = run("redrive", "-", stdin="".join(f"{job['id']}\n" for job in lines(listed.out)))
    assert len(redriven.out.split()) == 58
    cut = run("list", "--status", "dead", "--json", "--limit", "50")
    assert len(lines(cut.out)) == 50
    assert "only 50 jobs are shown" in cut.err
    assert run("list", "--status", "dead", "--json", "--limit", "58").err == ""
    rest = run("list", "--status", "dead", "--json", "--after", lines(cut.out)[-1]["id"])
    assert {job["id"] for job in lines(cut.out) + lines(rest.out)} == set(dead)


def test_list_shows_jobs_by_time_error_key_and_groups_of_statuses(run, queue):
    queue.enqueue_jobs([Job(id="a", type="t", key="k"), Job(id="b", type="u")])
    ended(queue, "c", "OSError: Disk full")

    def listed(*options):
        done = run("list", "--json", "--oldest", *options)
        assert done.code == 0, done.err
        return [job["id"] for job in lines(done.out)]

    assert listed("--status", "pending") == ["a", "b"]
    assert listed("--status", "pending,failed", "--type", "u", "--types", "t") == ["a", "b", "c"]
    assert listed("--types", "u") == ["b"]
    assert listed("--type=u") == ["b"]
    assert listed("--error", "disk FULL") == ["c"]
    assert listed("--key", "k") == ["a"]
    assert listed("--since", "1h", "--until", "2999-01-01T00:00:00+02:00") == ["a", "b", "c"]
    assert listed("--since", "2999-01-01") == []
    assert listed("--until", "1h") == []
    assert listed("--all") == ["a", "b", "c"]
    for options, words in (
        (["--status", "nonsense"], "status must be one of pending, running"),
        (["--since", "yesterday"], "since must be an ISO 8601 time"),
        (["--all", "--limit", "5"], "exclude each other"),
        (["--error", ""], "error must be"),
    ):
        refused = run("list", *options)
        assert (refused.code, refused.out) == (2, ""), options
        assert words in refused.err
        assert len(refused.err.splitlines()) == 1


def test_list_goes_over_many_pages(run, queue):
    queue.enqueue_jobs([Job(id=f"{n:05}", type="a") for n in range(2_100)])
    assert len(run("list", "--limit", "5000").out.splitlines()) == 2_101
    found = lines(run("list", "--limit", "1500", "--json").out)
    assert [job["id"] for job in found] == [f"{n:05}" for n in range(2_099, 599, -1)]


def test_show_prints_the_history_of_a_job(run, queue):
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
    (printed,) = lines(run("show", "j", "--json").out)
    assert printed["payload"] == '{"n": 1}'
    assert printed["output"] == "printed 2\n"
    assert [row["verb"] for row in printed["history"]] == ["enqueue", "claim", "fail", "claim", "complete"]
    assert printed["history"][0]["recorded_at"].endswith("Z")


def test_show_prints_every_text_that_a_submitter_gives(run, queue):
    texts = {name: f"http://its/{name}" for name in TEXT_LIMITS if name in GIVEN and name != "trace"}
    queue.enqueue_job(Job(id="j", type="t", unique="while_unfinished", held=True, trace="context", **texts))
    facts = dict(line.split("  ", 1) for line in run("show", "j").out.splitlines() if "  " in line)
    shown = {name: value.strip() for name, value in facts.items()}
    assert set(texts.values()) <= set(shown.values())
    assert (shown["once"], shown["unique"], shown["held"]) == (
        texts["idempotency_key"],
        "while_unfinished",
        "yes",
    )
    assert "context" not in shown.values()


def test_long_and_binary_contents_are_cut_unless_all_is_wanted(run, queue):
    queue.enqueue_job(Job(id="j", type="t", payload=b"x" * 5_000))
    queue.enqueue_job(Job(id="bytes", type="t", payload=b"\xff\x00" * 50))
    assert "3000 more characters" in run("show", "j").out
    assert "x" * 5_000 in run("show", "j", "--full").out
    assert "100 bytes that are not text" in run("show", "bytes").out
    (printed,) = lines(run("show", "bytes", "--json").out)
    assert printed["payload_encoding"] == "base64"


def test_a_long_history_is_cut_only_where_that_is_said(on_sqlite):
    run, queue = on_sqlite
    queue.enqueue_job(Job(id="j", type="t"))
    for _ in range(510):
        queue.backend.dequeue_jobs("w", job_ids=["j"])
        queue.release_jobs({"j": "the worker was stopped"})
    assert "(21 earlier steps are archived or not shown)" in run("show", "j").out
    assert "earlier steps" not in run("show", "j", "--full").out
    (printed,) = lines(run("show", "j", "--json").out)
    assert [row["n"] for row in printed["history"]] == list(range(1, 1_022))


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
    kinds = ["PENDING", "RUNNING", "RETRYING", "HANDED BACK", "COMPLETED", "FAILED", "DEAD", "CANCELLED"]
    assert table[0] == ["TAGS", "TOTAL", *kinds]
    assert [row[:3] for row in table[1:]] == [["(all)", "4", "3"], ["x", "3", "3"], ["x, y", "2", "2"]]
    assert run("stats", "--tags", "x,y").out.splitlines()[2].startswith("x, y\t2\t2\t")
    whole, tagged = lines(run("stats", "y", "--json").out)
    assert (whole["total_jobs"], whole["completed_jobs"], whole["blocked"]) == (4, 1, False)
    assert whole["unhandled_types"] == ["a"]
    (printed,) = whole["types"]
    assert (
        printed["type"],
        printed["pending"],
        printed["ready"],
        printed["running"],
        printed["handled"],
    ) == (
        "a",
        3,
        3,
        0,
        False,
    )
    assert (tagged["tags"], tagged["total_jobs"]) == (["y"], 2)


def test_stats_name_the_types_that_no_living_worker_claims(run, queue):
    queue.enqueue_jobs([Job(id="1", type="a", key="k"), Job(id="2", type="orphan")])
    queue.backend.dequeue_jobs("w", job_ids=["1"])
    queue.enqueue_job(Job(id="3", type="a"))
    owner = queue.backend.owners.open()
    queue.backend.owners.beat(owner, intakes=[Intake(types=("a",), slots=1)])
    done = run("stats")
    assert done.out.splitlines()[-1] == "no living worker claims: orphan"
    (printed,) = lines(run("stats", "--json").out)
    assert printed["unhandled_types"] == ["orphan"]
    assert printed["workers"] == 1
    queue.backend.owners.close(owner)


def test_stats_count_every_kind_of_end(run, queue):
    """1 failed, 5 dead, 2 cancelled, 1 retried, 2 handed back: the same in stats, top, list and the API."""
    once = RetryPolicy(max_attempts=1)
    names = {
        "failed": ["f"],
        "dead": [f"d{n}" for n in range(5)],
        "cancelled": ["c0", "c1"],
        "retrying": ["r"],
        "handed_back": ["h0", "h1"],
        "completed": ["ok"],
    }
    every = [each for ids in names.values() for each in ids]
    queue.enqueue_jobs(
        [Job(id=each, type="t", tags=("x",), retry=once if each[0] == "d" else None) for each in every]
    )
    queue.backend.dequeue_jobs("w", job_ids=[each for each in every if each[0] != "c"], limit=100)
    queue.fail_job("f", "broken", category=FailureCategory.PERMANENT)
    queue.fail_jobs(dict.fromkeys([*names["dead"], "r"], "boom"))
    queue.cancel_jobs(job_ids=names["cancelled"])
    queue.release_jobs(dict.fromkeys(names["handed_back"], "the worker was stopped"))
    queue.complete_job("ok")
    wanted = {name: len(ids) for name, ids in names.items()}
    whole, tagged = lines(run("stats", "x", "--json").out)
    (seen,) = lines(run("top", "--once", "--json").out)
    heading, row = (line.split("\t") for line in run("stats").out.splitlines()[:2])
    shown = dict(zip(heading, row, strict=True))
    for name, number in wanted.items():
        assert whole[name] == tagged[name] == seen[name] == seen["types"][0][name] == number, name
        assert shown[name.replace("_", " ").upper()] == str(number)
        assert len(lines(run("list", "--status", name, "--json").out)) == number
    assert (whole["failed_jobs"], whole["stopped_jobs"]) == (3, 8)  # as get_job_stats counts
    assert "RETRIES" not in heading  # hand-backs and last failures are none
    assert "retries" not in whole
    assert whole["total_retries"] == queue.get_job_stats().total_retries == 9
    assert "handed back" not in str([each["error_message"] for each in seen["failures"]])
    assert {each["job_id"] for each in seen["failures"]} == {"f", "r", *names["dead"]}


def test_counts_that_reached_their_bound_are_marked(run, queue):
    queue.enqueue_jobs([Job(id=str(n), type="many") for n in range(10_001)])
    assert "10,000+" in run("stats").out
    assert "10,000+ ready" in run("top", "--once").out
    (printed,) = lines(run("stats", "--json").out)
    (view,) = printed["types"]
    assert (view["ready"], view["ready_at_least"], view["ready_text"]) == (10_000, True, "10,000+")
    assert view["pending"] == 10_001
    (seen,) = lines(run("top", "--once", "--json").out)
    assert (seen["ready"], seen["ready_at_least"]) == (10_000, True)


def test_a_running_job_is_shown_with_its_worker_and_time(run, queue):
    queue.enqueue_jobs([Job(id="j", type="t"), Job(id="by-hand", type="other")])
    with queue.stream_jobs("worker-7", types=["t"]) as stream:
        assert [job.id for job in next(stream)] == ["j"]
        shown = run("show", "j").out
        (printed,) = lines(run("show", "j", "--json").out)
    facts = dict(line.split("  ", 1) for line in shown.splitlines() if "  " in line)
    assert facts["pid"].strip() == str(os.getpid())
    assert facts["host"].strip() == socket.gethostname()
    assert facts["worker"].strip() == "worker-7"
    assert "running for" in shown
    assert (printed["worker_pid"], printed["worker_alive"]) == (os.getpid(), True)
    assert printed["running_seconds"] >= 0
    queue.backend.dequeue_jobs("me", job_ids=["by-hand"])
    (printed,) = lines(run("show", "by-hand", "--json").out)
    assert printed["worker_pid"] is None
    assert printed["running_seconds"] is not None


# -- cancel, redrive, delete, block ----------------------------------------------------------------------------------


def test_cancel_by_ids_and_by_tags(run, queue):
    queue.enqueue_jobs([Job(id=str(n), type="t", tags=("even",) if n % 2 == 0 else ()) for n in range(5)])
    ended(queue, "old")
    assert run("cancel", "1") == (0, "1 cancelled\n", "")
    (printed,) = lines(run("cancel", "--tags", "even", "--yes", "--json").out)
    assert sorted(printed["cancelled"]) == ["0", "2", "4"]
    missed = run("cancel", "3", "old", "missing", "--json")
    assert missed.code == 1
    assert lines(missed.out) == [{"cancelled": ["3"], "unknown": ["old", "missing"]}]
    assert "penstock: not found: missing" in missed.err
    assert "penstock: has ended already: old" in missed.err
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
    (printed,) = lines(run("redrive", "--tags", "x", "--yes", "--json").out)
    assert {queue.get_job(each).redrive_of for each in printed["ids"]} == {"a", "b"}
    assert run("redrive", "missing").code == 1
    refused = run("redrive", "b", "fine")
    assert (refused.code, refused.out) == (1, "")
    assert "only failed and dead_letter jobs" in refused.err


def test_delete_removes_what_has_ended_or_nothing(run, queue):
    for name in "abc":
        ended(queue, name, tags=("x",) if name != "c" else ())
    queue.enqueue_job(Job(id="waits", type="t"))
    refused = run("delete", "a", "waits")
    assert (refused.code, refused.out) == (1, "")
    assert "'waits'" in refused.err
    assert queue.get_job("a")
    missed = run("delete", "c", "missing")
    assert (missed.code, missed.out, missed.err) == (1, "1 deleted\n", "penstock: not found: missing\n")
    assert lines(run("delete", "--tags", "x", "--yes", "--json").out) == [
        {"deleted": 2, "unknown": [], "matched": 2, "skipped": 0}
    ]
    assert run("show", "a").code == 1


def test_all_that_match_are_counted_and_then_worked_on(run, queue):
    queue.enqueue_jobs([Job(id=f"a{n}", type="a", tags=("x",)) for n in range(3)])
    for n in range(4):
        ended(queue, f"f{n}", "disk full" if n % 2 else "timeout")
    assert run("redrive", "--error", "disk full", "--dry-run").out == "2 jobs would be redriven\n"
    assert lines(run("redrive", "--all", "--dry-run", "--json").out) == [{"matched": 4, "dry_run": True}]
    refused = run("redrive", "--error", "disk full")
    assert (refused.code, refused.out) == (2, "")
    assert "2 jobs would be redriven, and there is no terminal to ask at" in refused.err
    assert "--yes" in refused.err
    assert queue.get_job_stats().total_jobs == 7
    made = run("redrive", "--error", "DISK", "--yes")
    assert len(made.out.split()) == 2
    assert "2 redriven" in made.err
    assert {queue.get_job(each).redrive_of for each in made.out.split()} == {"f1", "f3"}
    assert run("delete", "--status", "failed", "--yes").out == "4 deleted\n"
    (printed,) = lines(
        run("cancel", "--type", "a", "--status", "pending", "--since", "1h", "--yes", "--json").out
    )
    assert (sorted(printed["cancelled"]), printed["matched"], printed["skipped"]) == (
        ["a0", "a1", "a2"],
        3,
        0,
    )
    assert run("cancel", "--all", "--yes").out == "2 cancelled\n"
    assert run("cancel", "--all").out == "0 cancelled\n"
    assert run("delete", "--all", "--yes").out == "5 deleted\n"
    assert queue.get_job_stats().total_jobs == 0


def test_scripts_name_jobs_by_tags_alone_without_yes(run, queue):
    queue.enqueue_jobs([Job(id=f"a{n}", type="a", tags=("x",)) for n in range(3)])
    assert run("cancel", "--tags", "x", "--type", "a").code == 2
    assert run("cancel", "--tags", "x").out == "3 cancelled\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cancel", "--status", "completed"], "cancel is not possible for completed jobs"),
        (["redrive", "--status", "pending"], "redrive is not possible for pending jobs"),
        (["delete", "--status", "running"], "delete is not possible for running jobs"),
        (["cancel", "a", "--type", "t"], "not both"),
        (["cancel", "-"], "no ids on stdin"),
        (["delete", "--status", "gone"], "status must be one of"),
    ],
)
def test_what_cannot_be_worked_on_is_refused_in_one_line(on_sqlite, arguments, words):
    run, _ = on_sqlite
    done = run(*arguments, "--yes")
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert len(done.err.splitlines()) == 1


def test_the_beginning_of_an_id_is_enough_if_no_other_begins_so(run, queue):
    queue.enqueue_jobs([Job(id=each, type="t") for each in ("abc-1", "abc-2", "abd", "ab", "z")])
    assert "abc-1" in run("show", "abc-1").out
    assert run("show", "abd").code == 0
    assert "id        ab\n" in run("show", "ab").out.replace("id       ", "id       ")
    ambiguous = run("show", "abc")
    assert (ambiguous.code, ambiguous.out) == (2, "")
    assert "'abc' is the beginning of several ids: 'abc-1', 'abc-2'" in ambiguous.err
    missing = run("show", "missing")
    assert missing.code == 1
    assert "job 'missing' was not found" in missing.err
    assert run("cancel", "abc-1", "z").out == "2 cancelled\n"
    assert run("cancel", "abc").code == 2
    ended(queue, "ended-1", "boom")
    assert len(run("redrive", "ende").out.split()) == 1
    assert run("delete", "ende").out == "1 deleted\n"
    assert lines(run("journal", "--job", "abd", "--json").out)[0]["job_id"] == "abd"
    assert "abd" in run("list", "--after", "z", "--json").out
    child = run("submit", "t", "--after", "abd").out.strip()
    assert queue.get_job(child).after == ("abd",)
    # Whole ids only, where a program names them.
    assert run("cancel", "-", stdin="abc-\n").code == 1


def test_schedules_are_listed_with_their_last_and_next_tick(run, queue, penstock, monkeypatch):
    monkeypatch.syspath_prepend(penstock.folder)
    penstock.write(
        "ticking.py",
        "import penstock\n"
        "app = penstock.App()\n"
        "@app.every(3600)\n"
        "def hourly() -> None: ...\n"
        "@app.cron('0 3 * * *', tz='Europe/Berlin', name='nightly')\n"
        "def report() -> None: ...\n",
    )
    assert run("schedules").out == "no schedules\n"
    tick = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    queue.backend.outbox.tick_schedule("hourly", tick, [], after=None)
    queue.backend.outbox.tick_schedule("gone", tick, [], after=None)
    stored = {row["name"]: row for row in lines(run("schedules", "--json").out)}
    assert set(stored) == {"hourly", "gone"}
    assert stored["hourly"]["next_tick"] is None
    found = {row["name"]: row for row in lines(run("schedules", "ticking:app", "--json").out)}
    assert {name: row["state"] for name, row in found.items()} == {
        "hourly": "active",
        "nightly": "new",
        "gone": "stored",
    }
    assert found["hourly"]["last_tick"] == tick.isoformat(timespec="microseconds").replace("+00:00", "Z")
    assert found["hourly"]["next_tick"].startswith((tick + timedelta(hours=1)).isoformat()[:16])
    assert found["nightly"]["rule"] == "0 3 * * * (Europe/Berlin)"
    assert found["nightly"]["seconds_until_next"] > 0
    shown = run("schedules", "ticking:app").out
    assert "every 1 h" in shown
    assert "hourly" in shown


def test_where_a_schedule_was_begun_is_no_tick(run, queue, penstock, monkeypatch):
    monkeypatch.syspath_prepend(penstock.folder)
    penstock.write(
        "begun.py", "import penstock\napp = penstock.App()\n@app.every(3600)\ndef hourly() -> None: ...\n"
    )
    begun = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    queue.backend.outbox.tick_schedule("hourly", begun, [], after=None)
    (found,) = lines(run("schedules", "begun:app", "--json").out)
    assert (found["state"], found["last_tick"], found["up_to"][:19]) == (
        "active",
        None,
        "2026-01-02T03:04:05",
    )
    assert found["next_tick"].startswith("2026-01-02T04:00")
    heading, row = (line.split("\t") for line in run("schedules", "begun:app").out.splitlines())
    assert dict(zip(heading, row, strict=True))["LAST"] in ("", "-")
    heading, row = (line.split("\t") for line in run("schedules").out.splitlines())
    assert dict(zip(heading, row, strict=True))["LAST"] == "up to 2026-01-02 03:04:05Z"
    queue.backend.outbox.tick_schedule("hourly", datetime(2026, 1, 2, 4, tzinfo=UTC), [], after=begun)
    (found,) = lines(run("schedules", "begun:app", "--json").out)
    assert found["last_tick"] == found["up_to"]


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
    assert run("journal", "--job", "missing").code == 1


def test_an_empty_journal_is_fine(run):
    assert run("journal", "--json") == (0, "", "")


def test_journal_rows_may_be_chosen_by_what_they_hold(run, queue):
    queue.enqueue_jobs([Job(id=str(n), type="t", tags=("x",), key="k" if n else None) for n in range(3)])
    ended(queue, "j", "Disk FULL")

    def seqs(*options):
        done = run("journal", "--json", *options)
        assert done.code == 0, done.err
        return [row["seq"] for row in lines(done.out)]

    assert seqs("--status", "failed") == [6]
    assert seqs("--status", "pending", "--type", "t") == [1, 2, 3, 4]
    assert seqs("--error", "disk full") == [6]
    assert seqs("--tags", "x") == [1, 2, 3]
    assert seqs("--key", "k") == [2, 3]
    assert seqs("--since", "1h") == [1, 2, 3, 4, 5, 6]
    assert seqs("--until", "1h") == []
    assert seqs("--since", "2999-01-01") == []
    assert seqs("--job", "j", "--status", "running") == [5]
    assert seqs("--all") == [1, 2, 3, 4, 5, 6]
    cut = run("journal", "--json", "--status", "pending", "--limit", "2")
    assert [row["seq"] for row in lines(cut.out)] == [3, 4]
    assert "only the latest 2 rows are shown" in cut.err
    first = run("journal", "--json", "--after", "0", "--limit", "2")
    assert "only the first 2 rows are shown" in first.err


def test_a_long_journal_is_searched_by_time(on_sqlite):
    """Every row is one second later than the one before; only rows near the time asked for are read."""
    run, _ = on_sqlite
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    with library.connect("sqlite:///jobs.db", clock=clock) as queue:
        for n in range(40):
            queue.enqueue_jobs([Job(id=f"{n}-{m}", type="t") for m in range(400)])
            clock.advance(3_600)
    found = lines(
        run("journal", "--json", "--since", "2026-01-02T10:00:00Z", "--until", "2026-01-02T12:00:00Z").out
    )
    assert {row["recorded_at"][:13] for row in found} == {"2026-01-02T10", "2026-01-02T11"}
    assert len(found) == 800


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
    (printed,) = lines(done.out)
    assert len(printed["results"]) == 6
    assert all(each["jobs"] > 0 and each["jobs_per_second"] > 0 for each in printed["results"])
    assert queue.get_job_stats().total_jobs == 0
    assert sorted(penstock.folder.iterdir()) == before
    if shared_store.options:
        import psycopg

        with psycopg.connect(shared_store.url) as connection:
            left = connection.execute(
                "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'penstock_scratch%'"
            )
            assert left.fetchall() == []
