"""Every public call takes any value of any argument, or refuses it by an error of ours and changes nothing."""

import inspect
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.contents import Contents
from tests.fuzz.values import VALUES, arguments_of, misbehaviour

import penstock
from penstock import (
    App,
    Backend,
    EventKind,
    FailureCategory,
    Flow,
    InvalidArgumentError,
    Job,
    JobStatus,
    Key,
    Queue,
    RetryPolicy,
    Timeouts,
    Worker,
    chain,
    fan_in,
    fan_out,
)
from penstock.app.task import TASK_FIELDS
from penstock.backends import ROLES, ClaimRequest
from penstock.backends.contract.selection import JobSelection
from penstock.documents import DocumentQueue
from penstock.errors import shown
from penstock.processes import BackendRegistry, JobQueue, JsonlRegistry, SimpleJob
from penstock.testing import ManualClock

pytestmark = pytest.mark.slow

#: An argument that is right, by its name.
GOOD: dict[str, Any] = {
    "after": 0,
    "assignee_id": "w",
    "assignee_ids": ["w"],
    "blocked": False,
    "data": b"d",
    "error_message": "boom",
    "executing": {"running-1": True},
    "failures": {"running-1": "boom"},
    "flow": Flow(Job(id="flow", type="t")),
    "holder": "h",
    "interval": timedelta(1),
    "job": Job(id="new", type="t"),
    "job_id": "running-1",
    "job_ids": ["running-1"],
    "jobs": [Job(id="new", type="t")],
    "lease": 1.0,
    "messages": {"running-1": "m"},
    "name": "lake",
    "older_than": 1.0,
    "output": "o",
    "owner": "missing",
    "parent": "running-1",
    "parent_id": "running-1",
    "percent": 5,
    "prefix": "run",
    "requests": [ClaimRequest(assignee_id="w")],
    "results": {"running-1": b"r"},
    "selection": JobSelection(),
    "seq": 0,
    "status": JobStatus.COMPLETED,
    "tick": datetime(2030, 1, 1, tzinfo=UTC),
    "ttl": timedelta(1),
    "type": "t",
    "types": ["t"],
    "upto": 5,
    "was_executing": True,
}
#: The same for one verb.
GOOD_FOR: dict[str, dict[str, Any]] = {
    "runtime.released": {"jobs": {"running-1": 1}},
    "outbox.tick_schedule": {"after": None},
    "submit_many": {"requests": [{"type": "t"}]},
}
#: Calls that take functions of the caller's, those that end the object, and one that takes only what was just stored.
APART = {"close", "listen", "serve", "watch", "joined", "block"}


def verbs(face: type) -> list[str]:
    return [
        name
        for name in dir(face)
        if not name.startswith("_") and name not in APART and callable(getattr(face, name))
    ]


def good_for(call: Callable[..., Any], name: str) -> dict[str, Any]:
    needed = [
        each.name
        for each in inspect.signature(call).parameters.values()
        if each.default is each.empty and each.name in arguments_of(call)
    ]
    known = GOOD | GOOD_FOR.get(name, {})
    assert set(needed) <= known.keys(), f"add a right value of {set(needed) - known.keys()} to GOOD"
    return {each: known[each] for each in needed}


@pytest.fixture(params=["memory:", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.deep])])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgres_store")) if request.param == "postgres" else request.param


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    with penstock.open_backend(url, clock=ManualClock()) as backend:
        backend.enqueue_job(Job(id="running-1", type="t", tags=("x",)))
        backend.dequeue_jobs("w")
        yield backend


@pytest.fixture
def queue(backend: Backend) -> Iterator[Queue]:
    with Queue(backend) as queue:
        yield queue


STORE_VERBS = [*verbs(Backend), "owners.close"] + [
    f"{role}.{name}" for role, cls in ROLES.items() for name in verbs(cls)
]


@pytest.mark.parametrize("verb", STORE_VERBS)
def test_a_verb_of_a_store_refuses_by_errors_of_ours_alone(backend: Backend, verb: str) -> None:
    call, contents = attrgetter(verb)(backend), Contents(backend)
    assert misbehaviour(call, good_for(call, verb), **contents.hooks) == []
    assert backend.complete_job("running-1") == {"w": 1}  # it still works


@pytest.mark.parametrize("verb", verbs(Queue))
def test_a_verb_of_a_queue_refuses_by_errors_of_ours_alone(queue: Queue, verb: str) -> None:
    call, contents = getattr(queue, verb), Contents(queue.backend)
    assert misbehaviour(call, good_for(call, verb), **contents.hooks) == []
    queue.set_blocked(False)
    queue.submit("last", priority=0)  # it still works
    (job,) = queue.claim_jobs("w", types=["last"])
    queue.complete_job(job.id)


@pytest.mark.parametrize("verb", verbs(DocumentQueue))
def test_a_verb_of_a_document_queue_refuses_by_errors_of_ours_alone(queue: Queue, verb: str) -> None:
    documents = DocumentQueue(queue)
    good = {
        "document_id": "d", "scope": "s", "branch": "b", "payload": {}, "job_id": "running-1", "reason": "r",
        "flow": Flow(Job(id="f", type="document", key=Key("d", "s", "b"))),
    }  # fmt: skip
    call = getattr(documents, verb)
    given = {name: good[name] for name in arguments_of(call) if name in good}
    assert misbehaviour(call, given, **Contents(queue.backend).hooks) == []


def test_a_refused_submission_stores_nothing(backend: Backend) -> None:
    spans: list[tuple[int, int]] = []

    def enqueue(**fields: Any) -> None:
        before = backend.reading.jobs_span()
        try:
            backend.enqueue_job(Job(**{"id": f"job-{len(spans)}", "type": "t", **fields}))
        finally:
            spans.append(backend.reading.jobs_span())
        assert spans[-1] != before

    def unchanged(error: BaseException) -> None:
        del error
        assert spans[-1] == (spans[-2] if len(spans) > 1 else spans[-1])

    assert misbehaviour(enqueue, {}, Job.__struct_fields__, after_refusal=unchanged) == []


def test_what_jobs_are_made_of_refuses_by_errors_of_ours_alone() -> None:
    assert misbehaviour(RetryPolicy, {}, RetryPolicy.__struct_fields__) == []
    assert misbehaviour(Timeouts, {}, Timeouts.__struct_fields__) == []
    assert misbehaviour(JobSelection, {}, JobSelection.__struct_fields__) == []
    assert misbehaviour(lambda part: Key("a", part), {}, ["part"]) == []
    job = Job(id="a", type="t")
    assert misbehaviour(lambda first: chain(first, job), {}, ["first"]) == []
    assert misbehaviour(fan_out, {"first": job, "others": [job]}) == []
    assert misbehaviour(fan_in, {"firsts": [job], "last": job}) == []


def test_options_of_a_store_are_refused_by_errors_of_ours_alone() -> None:
    options = ["liveness", "max_payload", "max_pending", "retention", "max_depth", "idempotency_window"]

    def open_it(url: str = "memory:", **given: Any) -> Backend:
        return penstock.open_backend(url, **given)

    assert misbehaviour(open_it, {}, ["url", *options, "durability", "timeout", "create", "typo"]) == []


def test_apps_tasks_and_workers_refuse_by_errors_of_ours_alone() -> None:
    assert misbehaviour(App, {"url": "memory:"}, ["url", "max_execution", "callbacks"]) == []
    with App("memory:") as app:

        @app.job
        def task(x: object = None) -> None:
            del x

        fields = [*sorted(TASK_FIELDS), "typo"]
        assert misbehaviour(lambda **given: task.options(**given).submit(), {}, fields) == []
        assert misbehaviour(task.submit, {}, ["x", "y"]) == []
        settings = [name for name in arguments_of(Worker) if name != "app"]
        assert misbehaviour(lambda **given: Worker(app, **given), {}, settings) == []
        decorated = [name for name in arguments_of(app.job) if name != "function"]
        assert misbehaviour(lambda **given: app.job(**given)(lambda: None), {}, decorated) == []


@pytest.mark.parametrize("kind", ["file", "store"])
def test_a_process_queue_and_its_registries_refuse_by_errors_of_ours_alone(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # any text that can be a file's name is one
    good = {"job_id": str(uuid.uuid4()), "job": SimpleJob, "timeout": 0.1}
    with penstock.open_backend("memory:") as backend:
        registry = JsonlRegistry(tmp_path / "jobs") if kind == "file" else BackendRegistry(backend)
        with JobQueue(registry) as queue:
            for face in (queue, registry):
                for verb in verbs(type(face)):
                    call = getattr(face, verb)
                    given = {name: good[name] for name in arguments_of(call) if name in good}
                    assert misbehaviour(call, given) == [], verb
    assert misbehaviour(JsonlRegistry, {}) == []


def test_scopes_and_subscriptions_refuse_by_errors_of_ours_alone(queue: Queue) -> None:
    assert misbehaviour(penstock.cancel_scope, {}) == []
    assert misbehaviour(queue.events.subscribe, {"kind": EventKind.JOB_STARTED, "subscriber": len}) == []


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, timedelta.max, 10**5000], ids=range(4))
def test_a_scope_may_be_longer_than_any_wait(queue: Queue, timeout: Any) -> None:
    stream = queue.stream_jobs("w")
    threading.Timer(0.05, lambda: queue.submit("t")).start()
    with penstock.cancel_scope(timeout):
        assert len(next(stream)) == 1


# -- the findings by name ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda queue: queue.submit("t", delay=10**5000),
        lambda queue: queue.submit("t", delay=-(10**5000)),
        lambda queue: queue.heartbeat("w", jobs={"running-1": 10**5000}),
        lambda queue: queue.backend.journal.register_consumer("lake", seq=10**5000),
        lambda queue: queue.claim_jobs("w", types=5),
        lambda queue: queue.claim_jobs("w", limit=10**5000),
        lambda queue: queue.complete_job("running-1", attempt=10**5000),
        lambda queue: queue.submit("t", priority=10**5000),
        lambda queue: queue.stream_jobs("w", max_assigned_jobs=10**5000),
        lambda queue: queue.fail_job("running-1", "boom", category=[10**5000]),
    ],
    ids=range(10),
)
def test_an_integer_of_thousands_of_digits_is_refused_in_a_short_sentence(
    queue: Queue, call: Callable[[Queue], object]
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        call(queue)
    assert caught.value.field
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        ("red", "'red'"),
        (10**5000, "an integer of about 5001 digits"),
        (-(10**5000), "a negative integer of about 5001 digits"),
        ([10**5000], "<list>"),
        ("x" * 10**6, "… (1000000 characters)"),
        (b"\0" * 10**6, "… (1000000 characters)"),
        (FailureCategory.TIMEOUT, "<FailureCategory.TIMEOUT: 'timeout'>"),
    ],
    ids=range(8),
)
def test_any_value_is_shown_shortly(value: object, text: str) -> None:
    assert shown(value).endswith(text)


def test_every_value_can_be_shown() -> None:
    assert all(0 < len(shown(value)) < 200 for value in VALUES)
