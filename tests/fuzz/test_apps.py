"""Apps, tasks, handles, contexts, asyncio and Spark's options: any value is taken, or refused by an error of ours."""

import asyncio
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.contents import RUNNING, Contents
from tests.fuzz.test_arguments import good_for, verbs
from tests.fuzz.values import VALUES, arguments_of, misbehaviour

import penstock
from penstock import (
    App,
    Backend,
    InvalidArgumentError,
    Job,
    JobContext,
    PermanentError,
    Queue,
    TemporaryError,
)
from penstock.aio import AsyncQueue
from penstock.app.schedules import Cron, Every
from penstock.app.task import TASK_FIELDS
from penstock.processes import BackendRegistry, JobQueue, JsonlRegistry
from penstock.testing import ManualClock
from penstock.worker.run import Run


class Size(Enum):
    SMALL = "small"


@dataclass
class Box:
    width: int
    made_at: datetime


pytestmark = pytest.mark.slow

#: Annotations of parameters.
ANNOTATIONS: list[Any] = [
    str, int, float, bool, bytes, datetime, date, timedelta, UUID, Decimal, Size, Box, Path, None,
    list[int], list[Box], dict[str, int], dict[str, Path], tuple[int, str], set[int], frozenset[str],
    int | None, int | str, Path | str, Any, object,
]  # fmt: skip
#: What a submission may say beside its arguments.
FIELDS = [*sorted(TASK_FIELDS), "typo"]


@pytest.fixture(params=["memory:", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.deep])])
def app(request: pytest.FixtureRequest) -> Iterator[App]:
    url = str(request.getfixturevalue("postgres_store")) if request.param == "postgres" else request.param
    with App(url, clock=ManualClock()) as app:
        app.queue.enqueue_job(Job(id=RUNNING, type="t"))
        app.queue.claim_jobs("w")
        yield app


@pytest.fixture
def backend() -> Iterator[Backend]:
    with penstock.open_backend("memory:", clock=ManualClock()) as backend:
        yield backend


def task_of(app: App, annotation: Any) -> Any:
    def handler(x: Any) -> None: ...

    handler.__annotations__["x"] = annotation
    return app.job(type=f"task-{len(app.tasks)}")(handler)


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_arguments_of_a_task(app: App, annotation: Any) -> None:
    task, contents = task_of(app, annotation), Contents(app.queue.backend)
    assert misbehaviour(task.submit, {}, ["x", "y"], **contents.hooks) == []
    assert misbehaviour(task.submit_many, {}, ["arguments"], **contents.hooks) == []
    wrapped = [{"x": value} for value in VALUES]
    several = [[{"x": value}, {"x": value}] for value in contents.hooks["values"]]
    assert (
        misbehaviour(task.submit_many, {}, ["arguments"], **{**contents.hooks, "values": [wrapped, *several]})
        == []
    )
    assert misbehaviour(task.new_job, {}, ["x"], **contents.hooks) == []


def test_arguments_of_a_model() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Order(pydantic.BaseModel):
        number: int
        made_at: datetime
        prices: list[float]

    good = {"number": 1, "made_at": datetime(2030, 1, 1, tzinfo=UTC), "prices": [1.0]}
    with App("memory:", clock=ManualClock()) as app:
        contents = Contents(app.queue.backend)
        for annotation in (Order, list[Order], Order | None, Order | int, dict[str, Order]):
            task = task_of(app, annotation)
            assert misbehaviour(task.submit, {}, ["x"], **contents.hooks) == []
            orders = [{**good, name: value} for name in good for value in VALUES]
            assert misbehaviour(task.submit, {}, ["x"], **{**contents.hooks, "values": orders}) == []


def test_options_of_a_task_store_nothing_when_they_are_refused(app: App) -> None:
    task, contents = task_of(app, Any), Contents(app.queue.backend)

    def submit(**given: Any) -> None:
        task.options(**given).submit(x=1)

    assert misbehaviour(submit, {}, FIELDS, **contents.hooks) == []
    assert misbehaviour(submit, {"idempotency_key": "k"}, ["unique"], **contents.hooks) == []
    made = [
        lambda x, value=value: value for value in contents.hooks["values"]
    ]  # what a function of the arguments returns
    assert misbehaviour(submit, {}, ["key", "idempotency_key"], **{**contents.hooks, "values": made}) == []


def test_arguments_of_an_app(app: App) -> None:
    contents = Contents(app.queue.backend)

    def nothing() -> None: ...

    schedules: list[Callable[..., Any]] = [
        lambda **given: app.every(**{"interval": 60, **given})(nothing),
        lambda **given: app.cron(**{"expression": "* * * * *", **given})(nothing),
    ]
    for call, names in zip(schedules, (["interval"], ["expression", "tz"]), strict=True):
        assert misbehaviour(call, {}, [*names, "missed", "name", "arguments"], **contents.hooks) == []
    assert misbehaviour(lambda wrap: [app.middleware(wrap)], {}, ["wrap"]) == []
    assert misbehaviour(lambda middleware: App("memory:", middleware=middleware), {}) == []
    assert misbehaviour(lambda function: [app.job(function)], {}) == []
    assert misbehaviour(Every, {"interval": 1}) == []
    assert misbehaviour(Cron, {"expression": "* * * * *"}) == []


def test_handles(app: App) -> None:
    contents = Contents(app.queue.backend)
    asked = [
        lambda job_id: app.handle(job_id).job(),
        lambda job_id: app.handle(job_id).output(),
        lambda job_id: app.handle(job_id).cancel(),
        lambda job_id: app.handle(job_id).wait(0),
        lambda job_id: penstock.gather([app.handle(job_id)], timeout=0),
    ]
    for call in asked:
        assert misbehaviour(_without_timeouts(call), {}, ["job_id"], **contents.hooks) == []
    handle = app.handle(RUNNING)
    soon = [value for value in VALUES if not (isinstance(value, int | float) and value > 1)]
    for wait in (handle.wait, handle.result, lambda timeout: penstock.gather([handle], timeout=timeout)):
        bounded = [value for value in soon if value is not None and value is not True]
        assert misbehaviour(_without_timeouts(wait), {}, ["timeout"], values=bounded) == []
    assert misbehaviour(penstock.gather, {}, ["handles"]) == []
    assert misbehaviour(lambda handles: list(penstock.as_completed(handles)), {}) == []


def _without_timeouts(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call for which running out of time is a proper answer."""

    def bounded(**given: Any) -> Any:
        try:
            return call(*given.values())
        except TimeoutError as error:
            raise InvalidArgumentError("it has not ended") from error

    return bounded


def test_the_context_of_a_job(app: App) -> None:
    contents = Contents(app.queue.backend)
    task = task_of(app, Any)

    def context() -> JobContext:
        job = app.queue.get_job(RUNNING)
        return JobContext(job, Run(job, task, 1.0, app.queue))

    calls = {
        "percent": lambda percent: context().progress(percent),
        "description": lambda description: context().progress(5, description),
        "data": lambda data: context().save_checkpoint(data),
        "task": lambda task: context().spawn(task),
        "x": lambda x: context().spawn(task, x=x),
    }
    for name, call in calls.items():
        assert misbehaviour(call, {}, [name], **contents.hooks) == []


def test_errors_that_handlers_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert misbehaviour(TemporaryError, {"message": "m"}, ["retry_after"]) == []
    assert misbehaviour(PermanentError, {"message": "m"}, ["message", "code", "cause"]) == []
    monkeypatch.setattr("penstock.policy._backoffs", {})
    assert misbehaviour(penstock.register_backoff, {"name": "fuzzed", "function": len}) == []


@pytest.mark.parametrize("verb", [verb for verb in verbs(AsyncQueue) if verb != "stream_jobs"])
def test_a_verb_of_a_queue_for_asyncio(backend: Backend, verb: str) -> None:
    async def main() -> list[str]:
        async with AsyncQueue(Queue(backend)) as queue:
            contents = Contents(backend)
            call = getattr(queue, verb)
            if not inspect.iscoroutinefunction(call):
                return []
            good = good_for(call, verb)
            wrong = []
            for name in arguments_of(call):
                for value in VALUES:
                    try:
                        await call(**{**good, name: value})
                        contents.refresh()
                    except penstock.PenstockError as error:
                        contents.compare(error)
                    except Exception as error:
                        wrong.append(f"{name}: {type(error).__name__}: {error}"[:300])
            return wrong

    assert asyncio.run(main()) == []


@pytest.mark.parametrize("kind", ["file", "store"])
def test_a_process_queue_that_refuses_writes_nothing(tmp_path: Path, kind: str) -> None:
    good = {"job_id": str(UUID(int=2**64, version=4)), "timeout": 0.1}
    file = tmp_path / "jobs.jsonl"
    with penstock.open_backend("memory:") as backend:

        def written() -> Any:
            if kind == "store":
                return backend.read_journal(limit=1000)
            return file.read_bytes() if file.exists() else b""

        before = written()

        def compare(error: BaseException) -> None:
            assert written() == before, error

        def refresh() -> None:
            nonlocal before
            before = written()

        registry = JsonlRegistry(file) if kind == "file" else BackendRegistry(backend)
        with JobQueue(registry) as queue:
            for face in (queue, registry):
                for verb in verbs(type(face)):
                    call = getattr(face, verb)
                    given = {name: good[name] for name in arguments_of(call) if name in good}
                    hooks = {"after_refusal": compare, "after_success": refresh}
                    assert misbehaviour(call, given, **hooks) == [], verb


# -- Spark's options, which need no session --------------------------------------------------------------------------

TEXTS = [
    "", " ", "\0", "\ud800", "x" * 10_000, "-1", "0", "1e9", "9" * 5000, "nan", "inf", "True", "[", "[]", "[5]",
    '["a", 5]', "{}", "null", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00", "2030-01-01", "yesterday",
    "running", "running,", ",", "sqlite://", "sqlite:///", "postgresql://", "postgres://u:p@", "memory:",
    "file:///x", "\u0665", "(" * 500, "['a'" * 500, "99999999999999999999999999",
]  # fmt: skip


@pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="needs Spark")
def test_options_of_the_source_and_the_sink(tmp_path: Path) -> None:
    from penstock.spark import _options as options
    from penstock.spark.sink import sink_options

    good = {"url": f"sqlite:///{tmp_path}/jobs.db"}
    names = [
        "url", "path", "paths", "table", "partitions", "batchRows", "pushdown", "startingOffset",
        "maxRowsPerTrigger", *options.SELECTION, "ids", "stagingDir", "atomic", "typo", "",
    ]  # fmt: skip
    readers: list[Callable[..., Any]] = [
        options.read_options,
        lambda given: options.read_options(given, is_stream=True),
        options.stream_options,
        options.table_of,
        lambda given: sink_options(given, is_stream=False),
        lambda given: sink_options(given, is_stream=True),
    ]
    for reader in readers:
        taken = [{**good, name: text} for name in names for text in TEXTS]
        assert misbehaviour(reader, {}, ["given"], values=taken) == []


# -- any values in all arguments at once -----------------------------------------------------------------------------


class Hostile(NamedTuple):
    """One of the values, by its place: Hypothesis cannot show all of them."""

    place: int


def resolved(drawn: Any) -> Any:
    """Return what was drawn with the hostile values in their places."""
    if isinstance(drawn, Hostile):
        return VALUES[drawn.place]
    if isinstance(drawn, list):
        return [resolved(each) for each in drawn]
    if isinstance(drawn, dict):
        return {name: resolved(each) for name, each in drawn.items()}
    return drawn


anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.binary(),
        st.datetimes(),
        st.datetimes(timezones=st.timezones()),
        st.timedeltas(),
        st.builds(Hostile, st.integers(0, len(VALUES) - 1)),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=5,
)


@pytest.mark.parametrize("face", [Backend, Queue], ids=lambda face: face.__name__)
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_values_of_all_arguments(face: type, data: st.DataObject) -> None:
    verb = data.draw(st.sampled_from([name for name in verbs(face) if name != "stream_jobs"]))
    with penstock.open_backend("memory:", clock=ManualClock()) as backend:
        contents = Contents(backend)
        call = getattr(Queue(backend) if face is Queue else backend, verb)
        given = {
            name: resolved(data.draw(anything, label=name))
            for name in arguments_of(call)
            if name in good_for(call, verb) or data.draw(st.booleans(), label=f"give {name}")
        }
        assert (
            misbehaviour(lambda none: call(**given), {}, ["none"], **{**contents.hooks, "values": [None]})
            == []
        )


def test_a_call_that_is_refused_but_has_changed_something_is_noticed(backend: Backend) -> None:
    contents = Contents(backend)

    def half_done(**given: Any) -> None:
        backend.save_progress(RUNNING, 7)
        raise InvalidArgumentError("no", field="x")

    with pytest.raises(AssertionError):
        misbehaviour(half_done, {}, ["x"], **contents.hooks)
