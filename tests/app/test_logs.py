"""Log records that say which job they belong to."""

import asyncio
import contextvars
import io
import json
import logging
import os
import subprocess
import sys
import threading

import pytest

import penstock
from penstock import InvalidArgumentError, JobContext, logs
from penstock.testing import drain, in_memory

NASTY = "two\nlines \x1b[2J \x7f \u2028 \x9b ü"


@pytest.fixture
def logged():
    """A function that has a logger write to memory, and one that returns the lines; both undone after the test."""
    made = []

    def configure(format, level="debug", logger="tests.shop"):
        stream = io.StringIO()
        made.append((logging.getLogger(logger), logs.configure(format, level, stream=stream, logger=logger)))
        return lambda: stream.getvalue().splitlines()

    yield configure
    for logger, handler in made:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


def test_what_a_handler_logs_anywhere_carries_its_job(app, logged):
    lines = logged("json")
    shop = logging.getLogger("tests.shop")

    @app.job
    def plain() -> None:
        shop.info("from %s", "here", extra={"order": 7, "odd": {1, 2}, "no": float("nan")})
        thread = threading.Thread(target=contextvars.copy_context().run, args=(shop.info, "from a thread"))
        thread.start()
        thread.join()

    @app.job
    async def coroutine() -> None:
        await asyncio.sleep(0)
        shop.warning("from a loop")

    with in_memory(app):
        first, second = plain.submit(), coroutine.submit()
        shop.info("outside")
        drain(app)
        shop.info("outside")
    found = [json.loads(line) for line in lines()]
    assert [(each["message"], each["job_id"], each["type"], each["attempt"]) for each in found] == [
        ("outside", None, None, None),
        ("from here", first.id, "plain", 1),
        ("from a thread", first.id, "plain", 1),
        ("from a loop", second.id, "coroutine", 1),
        ("outside", None, None, None),
    ]
    assert [each["event"] for each in found] == ["log", "job.log", "job.log", "job.log", "log"]
    assert (found[1]["order"], found[1]["odd"], found[1]["no"]) == (7, "{1, 2}", "nan")
    assert (found[1]["worker"], found[1]["level"], found[1]["logger"]) == (
        "penstock.testing",
        "info",
        "tests.shop",
    )
    assert logs.current_job() is None


def test_the_log_of_a_context_is_part_of_it(app, logged):
    lines = logged("json", logger="penstock.job")

    @app.job
    def talk(context: JobContext) -> None:
        context.log("said %d", 1)
        context.log.warning("loud", extra={"order": 7})
        try:
            raise OSError(NASTY)
        except OSError:
            context.log.exception("wrong")

    with in_memory(app):
        handle = talk.submit()
        drain(app)
    found = [json.loads(line) for line in lines()]
    assert [each["message"] for each in found] == ["said 1", "loud", "wrong"]
    assert {each["job_id"] for each in found} == {handle.id}
    assert {each["event"] for each in found} == {"job.log"}
    assert found[1]["order"] == 7
    assert found[2]["exception"].endswith(f"OSError: {NASTY}")


@pytest.mark.parametrize("format", ["text", "json"])
def test_nothing_in_a_record_can_forge_a_line_or_move_the_cursor(logged, format):
    lines = logged(format)
    shop = logging.getLogger("tests.shop")
    shop.info(NASTY, extra={"odd": NASTY, "half": "\ud800"})
    try:
        raise OSError(NASTY)
    except OSError:
        shop.exception("\ud800")
    written = "\n".join(lines())
    assert all(each.isprintable() or each == "\n" for each in written)
    if format == "json":
        assert [json.loads(line)["message"] for line in lines()] == [NASTY, "\ud800"]
    else:
        assert sum(not line.startswith("    ") for line in lines()) == 2


def test_a_line_of_text_names_the_job_once(app, logged):
    lines = logged("text")

    @app.job
    def talk() -> None:
        logging.getLogger("tests.shop").info("hello")

    with in_memory(app):
        handle = talk.submit()
        drain(app)
    (line,) = lines()
    assert line.endswith(f"INFO    talk {handle.id}: hello")


def test_a_wrong_format_or_level_is_refused():
    for format, level in (("xml", "info"), ("json", "loud"), ("json", 10)):
        with pytest.raises(InvalidArgumentError):
            logs.configure(format, level)


SHOP = """
import logging
import penstock

app = penstock.App()
OWN

@app.job(retry=penstock.RetryPolicy(max_attempts=1))
def talk(context: penstock.JobContext, word: str) -> None:
    logging.getLogger("shop").info("info %s", word, extra={"order": 7, "event": "order.paid"})
    logging.getLogger("shop").debug("debug")
    context.log("context %s", word)
    try:
        raise OSError(word)
    except OSError:
        logging.getLogger("shop").exception("wrong \\ud800")


@app.job(retry=penstock.RetryPolicy(max_attempts=1))
def fails() -> None:
    raise penstock.PermanentError("no\\nway", code="no_way")
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Runs `penstock worker` on an app of its own; returns the app, what it wrote, and the handles."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    url = f"sqlite:///{tmp_path}/jobs.db"

    def run(own, *options, **variables):
        (tmp_path / "shop_app.py").write_text(SHOP.replace("OWN", own))
        with penstock.connect(url) as queue:
            talk = queue.submit("talk", {"word": NASTY})
            queue.submit("fails", {})
            done = subprocess.run(
                [sys.executable, "-m", "penstock", "worker", "shop_app:app", "--until-idle", *options],
                env={**os.environ, "PENSTOCK_URL": url, **variables},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return talk, done.stderr.splitlines(), queue.get_output(talk.id)

    return run


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_a_workers_log_is_an_object_a_line(shop, isolation):
    talk, lines, output = shop(
        "", "--isolation", isolation, "--log-level", "info", PENSTOCK_LOG_FORMAT="json"
    )
    found = [json.loads(line) for line in lines]
    assert {each["worker"] for each in found} == {found[0]["worker"]}
    assert found[0]["worker"]
    events = [each["event"] for each in found]
    assert set(events) - {"order.paid"} <= set(logs.EVENTS)
    assert events[0] == "worker.started"
    assert found[0]["store"].startswith("sqlite:////")
    assert found[0]["store"] in found[0]["message"]
    assert events[-2:] == ["worker.stopping", "worker.stopped"]
    own = [each for each in found if each["event"] in ("order.paid", "job.log", "job.completed")]
    assert {(each["job_id"], each["type"], each["attempt"]) for each in own} == {(talk.id, "talk", 1)}
    said = {each["message"]: each for each in own}
    assert set(said) >= {f"info {NASTY}", f"context {NASTY}"}
    assert not any("debug" in message for message in said)
    assert said[f"info {NASTY}"]["order"] == 7
    assert said[f"info {NASTY}"]["logger"] == "shop"
    (wrong,) = [each for each in own if each["message"].startswith("wrong")]
    assert wrong["exception"].endswith(f"OSError: {NASTY}")
    (failed,) = [each for each in found if each["event"] == "job.failed"]
    assert (failed["type"], failed["category"], failed["code"]) == ("fails", "permanent", "no_way")
    assert failed["seconds"] >= 0
    assert (failed["level"], failed["status"]) == ("error", "failed")
    assert "PermanentError" in failed["exception"]
    assert output == ""


@pytest.mark.process
@pytest.mark.slow
def test_an_app_with_a_logging_of_its_own_keeps_it(shop):
    own = """
from penstock.logs import JobFilter
handler = logging.StreamHandler()
handler.addFilter(JobFilter())
handler.setFormatter(logging.Formatter("%(levelname)s %(job_id)s %(job_type)s %(attempt)s"))
logging.basicConfig(level="INFO", handlers=[handler])
"""
    talk, lines, output = shop(own)
    assert output.startswith(f"INFO {talk.id} talk 1")
    assert not any("info two" in line for line in lines)
    assert any(f"talk {talk.id}: context two\\nlines" in line for line in lines)
    assert all(line.isprintable() for line in lines)


FAILING = """
import penstock

app = penstock.App()


@app.job(retry=penstock.RetryPolicy(max_attempts=2, initial_delay=0.05))
def breaks() -> None:
    raise OSError("disk\\x1b[2J full")
"""


@pytest.mark.process
@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_a_retry_is_a_warning_and_the_end_an_error_with_its_traceback(tmp_path, monkeypatch, isolation):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "failing_app.py").write_text(FAILING)
    found = {}
    for format in ("text", "json"):
        url = f"sqlite:///{tmp_path}/{format}.db"
        with penstock.connect(url) as queue:
            job = queue.submit("breaks", {}, retry=penstock.RetryPolicy(max_attempts=2, initial_delay=0.05))
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "penstock",
                "worker",
                "failing_app:app",
                "--until-idle",
                "--isolation",
                isolation,
                "--log-format",
                format,
            ],
            env={**os.environ, "PENSTOCK_URL": url},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        found[format] = job, done.stderr.splitlines()
    job, lines = found["text"]
    assert f"sqlite:///{tmp_path}/text.db" in lines[0]
    retried = next(line for line in lines if " WARNING " in line)
    assert f"breaks {job.id}, attempt 1 of 2, failed" in retried
    assert "it runs again at 20" in retried
    assert "disk\\x1b[2J full" in retried
    ended = next(number for number, line in enumerate(lines) if " ERROR " in line)
    assert f"breaks {job.id}, attempt 2 of 2, failed" in lines[ended]
    assert "it ended dead_letter" in lines[ended]
    assert "Traceback" in lines[ended + 1]
    assert any('raise OSError("disk' in line for line in lines[ended:])
    job, lines = found["json"]
    records = [json.loads(line) for line in lines]
    (retry,) = [each for each in records if each["event"] == "job.retry"]
    (end,) = [each for each in records if each["event"] == "job.failed"]
    assert (retry["level"], retry["attempt"], retry["max_attempts"]) == ("warning", 1, 2)
    assert (retry["job_id"], retry["type"], retry["status"]) == (job.id, "breaks", "failed_retry")
    assert retry["due_at"] > retry["time"][:19]
    assert "exception" not in retry
    assert (end["level"], end["attempt"], end["status"]) == ("error", 2, "dead_letter")
    assert end["exception"].endswith("OSError: disk\x1b[2J full")
