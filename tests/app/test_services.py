"""What a worker does beside running jobs: callbacks, and jobs that come by the clock."""

import logging
from datetime import UTC, datetime, timedelta

import pytest
from tests.app.working import working
from tests.callbacks.conftest import Endpoint
from tests.waiting import until

from penstock import InvalidArgumentError, JobStatus, RetryPolicy, Worker
from penstock.app.schedules import Ticker
from penstock.job import Priority
from penstock.testing import ManualClock


@pytest.fixture
def endpoint():
    server = Endpoint()
    yield server
    server.close()


def a_task(app):
    @app.job
    def resize(width: int) -> int:
        if width < 0:
            raise ValueError("too small")
        return width

    return resize


@pytest.mark.requirement("G32")
def test_a_worker_tells_how_jobs_ended(make_app, url, endpoint):
    app = make_app(url, callbacks="any")
    resize = a_task(app).options(callback_url=endpoint.url(), retry=RetryPolicy(max_attempts=1))
    handles = [resize.submit(width=7), resize.submit(width=-7)]
    Worker(app, isolation="thread").run(until_idle=True)
    told = {request.event["subject"]: request.event for request in (endpoint.next(), endpoint.next())}
    assert told[handles[0].id]["data"]["result"] == 7
    assert told[handles[1].id]["type"] == "io.penstock.job.dead_letter.v1"
    assert "too small" in told[handles[1].id]["data"]["error"]["message"]
    assert app.queue.backend.outbox.count_deliveries() == (0, 0)
    assert endpoint.requests.empty()


def test_callbacks_go_to_public_addresses_unless_the_app_says_otherwise(make_app, url, endpoint):
    app = make_app(url)
    a_task(app).options(callback_url=endpoint.url()).submit(width=7)
    Worker(app, isolation="thread").run(until_idle=True)
    assert app.queue.backend.outbox.count_deliveries() == (0, 1)
    assert "not a public address" in app.queue.backend.outbox.list_deliveries()[0].error
    assert endpoint.requests.empty()


def test_a_worker_with_callbacks_off_calls_nobody(make_app, url, endpoint):
    app = make_app(url, callbacks="off")
    a_task(app).options(callback_url=endpoint.url()).submit(width=7)
    Worker(app, isolation="thread").run(until_idle=True)
    assert app.queue.backend.journal.list_consumers() == []
    assert endpoint.requests.empty()


def test_a_worker_stops_while_an_endpoint_hangs(make_app, url, endpoint):
    """It waits for the attempts on their way, each of which has its time, and lets others go on."""
    app = make_app(url, callbacks="any")
    endpoint.answer(endpoint.hang)
    resize = a_task(app)
    with working(app):
        resize.options(callback_url=endpoint.url()).submit(width=7)
        endpoint.next()
        endpoint.released.set()
    assert app.queue.backend.journal.list_consumers()[0].holder is None
    assert app.queue.backend.outbox.count_deliveries() == (1, 0)


def test_a_bad_secret_is_known_before_anything_runs(make_app, monkeypatch):
    monkeypatch.setenv("PENSTOCK_WEBHOOK_SECRET", "short")
    app = make_app()
    handle = a_task(app).submit(width=7)
    with pytest.raises(InvalidArgumentError, match="secret"):
        Worker(app, isolation="thread").run(until_idle=True)
    assert handle.job().attempt == 0
    monkeypatch.delenv("PENSTOCK_WEBHOOK_SECRET")
    Worker(app, isolation="thread").run(until_idle=True)
    assert handle.result(0) == 7


def test_workers_make_jobs_of_ticks(make_app, url):
    app = make_app(url)

    @app.every(1)
    def beat() -> None: ...

    with working(app), working(app):
        until(lambda: app.queue.get_job_stats().completed_jobs >= 2)
    jobs = app.queue.list_jobs(type="beat")
    ticks = [job.run_at for job in jobs]
    assert len(set(ticks)) == len(ticks)
    assert all(tick.microsecond == 0 for tick in ticks)
    assert [each.name for each in app.queue.backend.outbox.list_schedules()] == ["beat"]


def test_a_schedule_submits_the_task_with_its_settings(make_app):
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    app = make_app("memory:", clock=clock)

    @app.cron("0 3 * * *", tz="Europe/Berlin", arguments={"kind": "full"})
    @app.job(priority=Priority.HIGH, tags=["nightly"], retry=RetryPolicy(max_attempts=7), key="report-{kind}")
    def report(kind: str, days: int = 1) -> None: ...

    ticker = Ticker(app.queue, app.schedules)
    ticker.tick()
    clock.set(datetime(2030, 1, 1, 2, 0, tzinfo=UTC))
    ticker.tick()
    (job,) = app.queue.list_jobs()
    assert (job.type, job.priority, job.tags, job.retry.max_attempts) == ("report", 1, ("nightly",), 7)
    assert (job.payload, job.key, job.run_at) == (b'{"kind":"full"}', ("report-full",), clock.now())
    assert job.status is JobStatus.INITIAL_PENDING
    assert report(kind="x") is None  # still a function


def test_one_task_may_have_several_schedules_with_names_of_their_own(app):
    @app.cron("0 3 * * *", name="nightly")
    @app.every(timedelta(hours=1), name="hourly", arguments={"full": False}, missed="skip")
    def report(full: bool = True) -> None: ...

    assert [(each.name, each.missed) for each in app.schedules] == [("hourly", "skip"), ("nightly", "latest")]


def test_a_second_schedule_without_a_name_does_not_replace_the_first(app):
    with pytest.raises(InvalidArgumentError, match="name="):

        @app.cron("0 3 * * *")
        @app.cron("0 15 * * *")
        def report() -> None: ...

    def define(expression: str) -> None:
        @app.cron(expression)
        def again() -> None: ...

    define("0 3 * * *")
    define("0 4 * * *")  # as a cell of a notebook does that is run again
    assert str(app.schedules[-1].when) == "Cron('0 4 * * *', tz='UTC')"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"expression": "every day"}, "expression"),
        ({"expression": "* * * * *", "tz": "Mars/Olympus"}, "tz"),
        ({"expression": "* * * * *", "missed": "some", "arguments": {"width": 5}}, "missed"),
        ({"expression": "* * * * *", "arguments": {"widht": 5}}, None),
        ({"expression": "* * * * *"}, None),
    ],
    ids=["expression", "zone", "missed", "unknown argument", "missing argument"],
)
def test_what_is_wrong_is_known_when_it_is_written(app, settings, field):
    with pytest.raises(InvalidArgumentError) as caught:

        @app.cron(**settings)
        def resize(width: int) -> None: ...

    assert field is None or caught.value.field == field
    assert app.schedules == ()


def test_a_name_that_is_taken_is_refused(app):
    @app.every(5)
    def report() -> None: ...

    with pytest.raises(InvalidArgumentError, match="name="):

        @app.every(5, name="report")
        def other() -> None: ...

    assert [each.name for each in app.schedules] == ["report"]


def test_a_schedule_goes_on_while_the_queue_is_blocked_and_after(make_app, url, caplog):
    app = make_app(url)

    @app.every(1)
    def beat() -> None: ...

    app.queue.block()
    with caplog.at_level(logging.WARNING, logger="penstock"), working(app):
        until(lambda: "'beat' waits" in caplog.text)
        assert app.queue.list_jobs() == []
        app.queue.unblock()
        until(lambda: app.queue.get_job_stats().completed_jobs)
