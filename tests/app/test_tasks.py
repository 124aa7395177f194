"""Handlers and how they are submitted."""

import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import pytest

import penstock
from penstock import (
    App,
    FailureCategory,
    InvalidArgumentError,
    JobContext,
    JobState,
    JobStatus,
    Key,
    PayloadTooLargeError,
    Priority,
    RetryPolicy,
    Timeouts,
    chain,
)
from penstock.backends import drivers
from penstock.backends.postgres import backend as postgres_backend
from penstock.backends.sqlite import backend as sqlite_backend
from penstock.testing import drain, in_memory


class Colour(StrEnum):
    RED = "red"


@dataclass
class Box:
    width: int
    packed_at: datetime


def test_an_app_opens_nothing_until_it_is_used(tmp_path):
    file = tmp_path / "jobs.db"
    app = App(f"sqlite:///{file}")

    @app.job
    def hello() -> None: ...

    assert not file.exists()
    hello.submit()
    assert file.exists()
    app.close()


def test_an_app_that_was_closed_opens_again(tmp_path):
    with App(f"sqlite:///{tmp_path}/jobs.db") as app:
        hello = app.job(type="hello")(lambda: None)
        handle = hello.submit()
        app.close()
        assert handle.status is JobStatus.INITIAL_PENDING


def test_a_task_is_still_the_function_it_was(app):
    @app.job
    def double(number: int) -> int:
        """Twice."""
        return 2 * number

    assert double(4) == 8
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice."
    assert app.queue.get_job_stats().total_jobs == 0


def test_a_direct_call_may_leave_the_context_out(app):
    @app.job
    def count(context: JobContext, upto: int) -> tuple[int, int]:
        context.progress(50)
        context.save_checkpoint(b"1")
        assert not context.is_cancelled
        assert context.deadline is None
        return context.attempt, upto

    assert count(3) == (1, 3)
    assert count(upto=3) == (1, 3)


@pytest.mark.requirement("G32")
def test_a_callback_url_that_nobody_could_call_is_refused_where_it_is_given(app):
    @app.job
    def resize() -> None: ...

    with pytest.raises(InvalidArgumentError, match="callback_url must be an http or https url"):
        app.job(callback_url="somewhere")
    for url in ("somewhere", "ftp://example.com/", 5):
        with pytest.raises(InvalidArgumentError) as caught:
            resize.options(callback_url=url).submit()
        assert (caught.value.field, caught.value.value) == ("callback_url", url)
    handle = resize.submit()
    with pytest.raises(InvalidArgumentError, match="no user name or password"):
        app.queue.update_job(handle.id, callback_url="https://user:secret@example.com/")
    assert handle.job().callback_url is None


@pytest.mark.requirement("G32")
def test_settings_of_the_decorator_and_options_reach_the_job(app):
    @app.job(
        type="images.resize",
        retry=RetryPolicy(max_attempts=5),
        timeout=60,
        priority=Priority.HIGH,
        tags={"team": "a"},
        key="customer-{customer}",
        callback_url="https://example.com/done",
    )
    def resize(customer: str, width: int = 100) -> None: ...

    job = resize.submit("ada").job()
    assert (job.type, job.payload) == ("images.resize", b'{"customer":"ada"}')
    assert job.retry.max_attempts == 5
    assert job.timeouts == Timeouts(execution=60, visibility=300, lifetime=timedelta(days=7))
    assert (job.priority, job.tags, job.key) == (Priority.HIGH, ("team=a",), Key("customer-ada"))
    assert job.callback_url == "https://example.com/done"

    other = resize.options(priority=Priority.BULK, delay=60, tags=["x"], correlation_id="c", key=None)
    job = other.submit(customer="bob", width=3).job()
    assert (job.priority, job.tags, job.key, job.correlation_id) == (Priority.BULK, ("x",), None, "c")
    assert job.state is JobState.DELAYED
    assert job.timeouts.execution == timedelta(seconds=60)
    assert resize.submit("eve").job().priority is Priority.HIGH


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (lambda customer, branch: (customer, branch), Key("ada", "main")),
        (("{customer}", "{branch}"), Key("ada", "main")),
        ("all", Key("all")),
        (lambda **_: None, None),
    ],
)
def test_a_key_is_made_from_the_arguments_and_their_defaults(app, rule, expected):
    @app.job(key=rule)
    def charge(customer: str, branch: str = "main") -> None: ...

    assert charge.submit("ada").job().key == expected


@pytest.mark.parametrize("rule", ["{nobody}", "{0}", lambda other: other, lambda **_: 3])
def test_a_key_that_cannot_be_made_is_refused(app, rule):
    @app.job(key=rule)
    def charge(customer: str) -> None: ...

    with pytest.raises(InvalidArgumentError) as caught:
        charge.submit("ada")
    assert caught.value.field == "key"
    assert app.queue.get_job_stats().total_jobs == 0


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "missing a required argument: 'image'"),
        (("a", 1, 2, 3), {}, "too many positional arguments"),
        (("a",), {"height": 3}, "unexpected keyword argument 'height'"),
        (("a",), {"image": "b"}, "multiple values for argument 'image'"),
        (("a", "3"), {}, "width of .*resize must be int, got '3'"),
        (("a", True), {}, "width of .*resize must be int, got True"),
        ((b"a",), {}, "image of .*resize must be str, got b'a'"),
        (("a",), {"extra": object()}, "arguments.extra must be JSON"),
        (("a",), {"extra": {1, 2}}, "arguments.extra must be JSON"),
        (("a",), {"extra": float("nan")}, "arguments.extra must be a finite number"),
        (("a",), {"extra": [2**70]}, r"arguments.extra\[0\] must be an integer of at most 64 bits"),
        (("a\0",), {}, "arguments.image must be text without NUL"),
        (("\ud800",), {}, "lone surrogate"),
        (("a",), {"extra": datetime(2030, 1, 1)}, "arguments.extra must be JSON"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_at_submission(app, args, kwargs, words):
    @app.job
    def resize(image: str, width: int = 3, *, extra: object = None) -> None: ...

    with pytest.raises(InvalidArgumentError, match=words):
        resize.submit(*args, **kwargs)
    assert app.queue.get_job_stats().total_jobs == 0


def test_a_cycle_in_the_arguments_is_refused(app):
    @app.job
    def take(items: list) -> None: ...

    cycle: list = []
    cycle.append(cycle)
    with pytest.raises(InvalidArgumentError, match="deeper than"):
        take.submit(cycle)


@pytest.mark.requirement("G30")
def test_arguments_over_the_limit_are_refused(make_app):
    app = make_app(max_payload=100)

    @app.job
    def take(text: str) -> None: ...

    take.submit("x" * 80)
    with pytest.raises(PayloadTooLargeError):
        take.submit("x" * 200)


def test_annotated_values_come_as_they_were_given(app):
    seen = {}

    @app.job
    def pack(box: Box, colour: Colour, sizes: set[int], note: bytes, when: datetime | None = None) -> Box:
        seen.update(box=box, colour=colour, sizes=sizes, note=note, when=when)
        return box

    given = {
        "box": Box(3, datetime(2030, 1, 1, tzinfo=UTC)),
        "colour": Colour.RED,
        "sizes": {1, 2},
        "note": b"\0\xff",
        "when": datetime(2031, 1, 1, tzinfo=UTC),
    }
    with in_memory(app):
        handle = pack.submit(**given)
        drain(app)
        assert seen == given
        assert handle.result(0) == given["box"]
        assert app.handle(handle.id).result(0) == {"width": 3, "packed_at": "2030-01-01T00:00:00Z"}


def test_a_part_that_no_annotation_describes_is_stored_as_it_is_or_refused(app):
    @app.job
    def take(things: dict[str, object]) -> None: ...

    with pytest.raises(InvalidArgumentError, match=r"arguments\.things\.at must be JSON"):
        take.submit({"at": datetime(2030, 1, 1, tzinfo=UTC)})


def test_many_are_submitted_all_or_none(app):
    @app.job
    def add(a: int, b: int = 0) -> int:
        return a + b

    with in_memory(app):
        handles = add.submit_many([{"a": 1}, {"a": 2, "b": 3}])
        drain(app)
        assert [handle.result(0) for handle in handles] == [1, 5]
        assert add.submit_many([]) == []
        with pytest.raises(InvalidArgumentError) as caught:
            add.submit_many([{"a": 1}, {"a": "x"}])
        assert caught.value.failed[0][0] == 1
        for wrong in ({"a": 1}, "a", 3, [("a", 1)]):
            with pytest.raises(InvalidArgumentError):
                add.submit_many(wrong)
        assert app.queue.get_job_stats().total_jobs == 2


@pytest.mark.requirement("G2")
def test_an_idempotency_key_gives_back_the_first_job(app):
    @app.job
    def charge(cents: int) -> None: ...

    once = charge.options(idempotency_key="order-7")
    assert once.submit(5) == once.submit(5)


def test_dependencies_are_given_as_handles_or_ids(app):
    order = []

    @app.job
    def note(what: str) -> None:
        order.append(what)

    with in_memory(app):
        first = note.options(delay=10).submit("first")
        note.options(after=[first]).submit("second")
        note.options(after=[first.id], priority=4).submit("third")
        drain(app)
    assert order == ["first", "second", "third"]
    with pytest.raises(InvalidArgumentError):
        note.options(after="text").submit("x")


def test_jobs_of_tasks_make_flows(app):
    order = []

    @app.job
    def note(what: str) -> None:
        order.append(what)

    with in_memory(app) as queue:
        queue.enqueue_jobs(reversed(chain(note.new_job("a"), note.new_job("b"), note.new_job("c"))))
        drain(app)
    assert order == ["a", "b", "c"]


@pytest.mark.requirement("G17", "C31")
def test_a_timeout_is_clamped_in_the_decorator_and_refused_at_submission(make_app):
    app = make_app(max_execution=60)

    @app.job(timeout=3600)
    def slow() -> None: ...

    @app.job(timeout=5)
    def quick() -> None: ...

    @app.job
    def plain() -> None: ...

    assert slow.submit().job().timeouts.execution == timedelta(seconds=60)
    assert quick.submit().job().timeouts.execution == timedelta(seconds=5)
    assert plain.submit().job().timeouts.execution == timedelta(seconds=60)
    assert quick.options(timeout=2).submit().job().timeouts.execution == timedelta(seconds=2)
    with pytest.raises(InvalidArgumentError, match="max_execution"):
        quick.options(timeout=61)
    with pytest.raises(InvalidArgumentError, match="max_execution"):
        quick.options(timeouts=Timeouts(execution=61))


@pytest.mark.requirement("G17", "G13")
def test_no_attempt_is_given_more_time_than_the_store_knows_of(make_app):
    """Or the store would fail it, while its handler thinks that there is time left."""
    app = make_app(max_execution=7200)

    @app.job
    def plain() -> None: ...

    @app.job(timeout=3600)
    def slow() -> None: ...

    @app.job(timeout=5)
    def quick() -> None: ...

    for task, seconds in ((plain, 1800), (slow, 3600), (quick, 5)):
        handle = task.submit()
        assert handle.job().timeouts.execution == timedelta(seconds=seconds)
        assert task.seconds_for(handle.job()) == seconds
    by_queue = app.queue.submit
    assert plain.seconds_for(by_queue("plain", {})) == 1800
    assert slow.seconds_for(by_queue("slow", {})) == 1800, "it was submitted with the default"
    assert quick.seconds_for(by_queue("quick", {})) == 5
    assert quick.seconds_for(by_queue("quick", {}, timeouts=Timeouts(execution=60))) == 60
    assert quick.seconds_for(by_queue("quick", {}, timeouts=Timeouts(execution=10_000))) == 7200
    assert quick.seconds_for(by_queue("quick", {}, timeouts=Timeouts())) == 5


@pytest.mark.requirement("G13")
def test_times_are_the_models_unless_given(app):
    @app.job
    def plain() -> None: ...

    job = plain.submit().job()
    assert job.timeouts == Timeouts(
        execution=timedelta(minutes=30), visibility=timedelta(minutes=5), lifetime=timedelta(days=7)
    )
    assert job.retry == RetryPolicy()


@pytest.mark.parametrize(
    "settings",
    [
        {"type": ""},
        {"type": "x" * 257},
        {"type": 3},
        {"retry": 3},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": float("inf")},
        {"timeout": "10 minutes"},
        {"timeouts": 3},
        {"timeout": 3, "timeouts": Timeouts(execution=3)},
        {"priority": 9},
        {"priority": True},
        {"tags": "text"},
        {"tags": {"a": 1}},
        {"key": 3},
        {"key": ()},
        {"isolation": "rope"},
    ],
)
def test_wrong_settings_are_refused_when_the_function_is_decorated(app, settings):
    with pytest.raises(InvalidArgumentError) as caught:

        @app.job(**settings)
        def handler() -> None: ...

    assert caught.value.field in settings
    assert not app.tasks


def test_unknown_options_are_named(app):
    @app.job
    def hello() -> None: ...

    with pytest.raises(InvalidArgumentError, match="unknown: colour"):
        hello.options(colour="red")


@pytest.mark.parametrize(
    "settings",
    [
        {"url": 3},
        {"url": "mysql://x"},
        {"url": ""},
        {"callbacks": "all"},
        {"max_execution": 0},
        {"middleware": [3]},
        {"middleware": 3},
        {"clock": 5},
        {"retenton": None},
        {"retention": "soon"},
        {"max_payload": 0},
    ],
)
def test_wrong_settings_of_an_app_are_refused(settings):
    with pytest.raises(InvalidArgumentError):
        App(**settings)


def test_every_option_of_a_store_may_be_given_to_an_app():
    own = {*sqlite_backend._OWN_OPTIONS, *postgres_backend._OWN_OPTIONS}
    assert {name for driver in drivers._DRIVERS for name in driver.option_names} == own
    App(**dict.fromkeys(own))  # opens nothing, and judges nothing that only a store can


def test_what_cannot_be_a_handler_is_refused(app):
    def generates():
        yield 1

    def positional(a, /):
        return a

    def any_number(*numbers):
        return numbers

    for wrong in (generates, positional, any_number, Box, 3, app.job(type="x")(lambda: None)):
        with pytest.raises(InvalidArgumentError):
            app.job(wrong)


def test_a_type_belongs_to_one_function(app):
    @app.job(type="same")
    def one() -> None: ...

    with pytest.raises(InvalidArgumentError, match="the type 'same' is taken by"):

        @app.job(type="same")
        def other() -> None: ...

    def define():
        @app.job
        def again() -> None: ...

        return again

    define()
    latest = define()  # as when a cell of a notebook is run twice
    assert app.tasks["again"] is latest


def test_middleware_is_around_the_handler_from_the_outermost_to_the_innermost(make_app):
    calls = []

    def outer(context, call):
        calls.append(f"outer {context.job.type}")
        return call() + 1

    app = make_app(middleware=[outer])

    @app.middleware
    def inner(context, call):
        calls.append("inner")
        return call() * 10

    @app.job
    async def three() -> int:
        calls.append("handler")
        return 3

    with in_memory(app):
        handle = three.submit()
        drain(app)
        assert handle.result(0) == 31
    assert calls == ["outer three", "inner", "handler"]


def test_what_middleware_raises_is_the_jobs_failure(app):
    @app.middleware
    def refuse(context, call):
        raise penstock.PermanentError("not today", code="refused")

    @app.job
    def hello() -> None: ...

    with in_memory(app):
        handle = hello.submit()
        drain(app)
        job = handle.job()
    assert (job.status, job.error_category) == (JobStatus.FAILED, FailureCategory.PERMANENT)
    assert job.error_code == "refused"


def test_one_app_serves_many_threads(tmp_path):
    with App(f"sqlite:///{tmp_path}/jobs.db") as app:
        hello = app.job(type="hello")(lambda number: None)
        threads = [threading.Thread(target=hello.submit, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert app.queue.get_job_stats().total_jobs == 16


def test_the_decorator_takes_every_field_of_a_submission(app):
    @app.job(correlation_id="night", held=True, delay="1m", tags=["a"])
    def task() -> None: ...

    job = task.new_job()
    assert (job.correlation_id, job.held, job.tags) == ("night", True, ("a",))
    assert job.run_at is not None
    with pytest.raises(InvalidArgumentError, match="unknown: colour"):
        app.job(colour="red")
    with pytest.raises(InvalidArgumentError, match="run_at or delay"):
        task.options(run_at=datetime(2030, 1, 1, tzinfo=UTC)).submit()


def test_unknown_fields_of_a_submission_are_refused(app):
    with pytest.raises(TypeError, match="unexpected keyword argument 'status'"):
        app.queue.submit("t", status="running")
    with pytest.raises(InvalidArgumentError, match="status"):
        app.queue.submit_many([{"type": "t", "status": "running"}])
    assert app.queue.list_jobs() == []
