"""Spans of OpenTelemetry around submissions and handlers."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.app.working import working

import penstock
from penstock import Flow, InvalidArgumentError, Job, JobExistsError, PermanentError
from penstock.testing import drain, in_memory


@pytest.fixture
def spans(monkeypatch):
    """A function that returns the spans ended so far, by name; the provider is gone after the test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield lambda: {each.name: each for each in exporter.get_finished_spans()}
    provider.shutdown()


def spanning(name):
    """A span of the user's own."""
    return trace.get_tracer("tests").start_as_current_span(name)


def test_a_handlers_span_is_the_child_of_the_one_that_submitted_its_job(stored_app, spans):
    @stored_app.job(key="customer-{number}")
    def double(number: int) -> int:
        with spanning("inside"):
            return 2 * number

    with working(stored_app), spanning("request") as request:
        handle = double.submit(21)
        assert handle.result(timeout=30) == 42
    found = spans()
    sent, processed = found["send double"], found["process double"]
    assert sent.parent.span_id == request.get_span_context().span_id
    assert processed.parent.span_id == sent.context.span_id
    assert found["inside"].parent.span_id == processed.context.span_id
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert dict(sent.attributes) == {
        "messaging.system": "penstock",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "double",
        "messaging.message.id": handle.id,
    }
    assert dict(processed.attributes) == {
        "messaging.system": "penstock",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "double",
        "messaging.message.id": handle.id,
        "messaging.destination.partition.id": "customer-21",
        "penstock.job.attempt": 1,
    }
    assert processed.status.status_code is StatusCode.UNSET


def test_the_context_is_no_part_of_what_the_user_gave(app, spans):
    app.job(type="t")(lambda text: text)
    with in_memory(app) as queue, spanning("request") as request:
        job = queue.submit("t", {"text": "x"})
        assert (job.payload, job.tags, job.correlation_id) == (b'{"text":"x"}', (), None)
        assert f"{request.get_span_context().trace_id:032x}" in job.trace


def test_jobs_submitted_together_link_to_their_submission(app, spans):
    double = app.job(type="double")(lambda number: 2 * number)
    with in_memory(app):
        with spanning("request"):
            double.submit_many([{"number": 1}, {"number": 2}])
        drain(app)
    found = spans()
    sent, processed = found["send double"], found["process double"]
    assert sent.attributes["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in sent.attributes
    assert processed.parent is None
    assert [link.context.span_id for link in processed.links] == [sent.context.span_id]
    assert processed.context.trace_id != sent.context.trace_id


def test_every_way_to_submit_is_traced(app, spans):
    with in_memory(app) as queue:
        with spanning("request"):
            jobs = [
                queue.submit("a"),
                queue.submit_many([{"type": "b"}])[0],
                queue.get_job(queue.enqueue_job(Job.new("c"))),
                queue.get_job(queue.enqueue_flow(Flow(Job.new("d"), [Job.new("e")]))[0]),
            ]
            (parent,) = queue.claim_jobs("w", types=["a"])
            jobs.append(queue.spawn(parent, "f"))
        assert set(spans()) == {"send a", "send b", "send c", "send", "send f", "request"}
        assert all(job.trace for job in jobs)
        assert "messaging.destination.name" not in spans()["send"].attributes


def test_a_failed_handler_and_a_refused_submission_say_what_went_wrong(app, spans):
    @app.job(retry=None)
    def fails(how: str) -> None:
        raise PermanentError("no such customer\nsecond line", code="customer_gone") if how else OSError("x")

    with in_memory(app) as queue:
        fails.submit("gone")
        drain(app)
        queue.enqueue_job(Job(id="taken", type="t"))
        with pytest.raises(JobExistsError):
            queue.enqueue_job(Job(id="taken", type="t"))
        with pytest.raises(InvalidArgumentError):
            queue.enqueue_jobs("text")
        with pytest.raises(InvalidArgumentError):
            queue.enqueue_jobs([Job(id="", type="t"), None])
    failed = spans()["process fails"]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "no such customer"
    assert failed.attributes["error.type"] == "customer_gone"
    assert spans()["send t"].attributes["error.type"] == "JobExistsError"


def test_a_coroutine_is_inside_its_span(app, spans):
    @app.job
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        with spanning("inside"):
            return 2 * number

    async def main():
        with spanning("request"):
            return await double.submit_async(4)

    with in_memory(app):
        asyncio.run(main())
        drain(app)
    found = spans()
    assert found["send double"].parent.span_id == found["request"].context.span_id
    assert found["inside"].parent.span_id == found["process double"].context.span_id
    assert found["inside"].context.trace_id == found["request"].context.trace_id


def test_a_stored_context_that_is_none_is_a_trace_of_its_own(app, spans):
    app.job(type="t")(lambda: None)
    with in_memory(app) as queue:
        for trace_text in (
            "nonsense",
            "00-xyz-1-2",
            "00-" + "0" * 32 + "-" + "0" * 16 + "-01",
            "00-" + "g" * 32,
        ):
            queue.enqueue_job(Job.new("t", b"{}", trace=trace_text))
        assert drain(app).completed == 4
    assert spans()["process t"].parent is None
    assert spans()["process t"].links == ()


def test_the_state_of_the_trace_and_its_sampling_travel_too(app, spans):
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

    app.job(type="t")(lambda: None)
    remote = SpanContext(1, 2, True, TraceFlags(1), TraceState([("vendor", "a b"), ("penstock", "batch")]))
    with in_memory(app) as queue:
        with trace.use_span(NonRecordingSpan(remote)):
            job = queue.submit("t", b"{}")
        assert job.trace.endswith("-01 vendor=a b")
        drain(app)
    assert spans()["process t"].context.trace_state.get("vendor") == "a b"


def test_without_a_tracer_nothing_is_stored(app):
    with in_memory(app) as queue:
        assert penstock.tracing.is_on()
        assert queue.submit("t").trace is None


def test_opentelemetry_is_not_imported_by_penstock():
    program = """
        import sys, penstock, penstock.aio
        from penstock.testing import inline
        app = penstock.App()
        double = app.job(type="double")(lambda number: 2 * number)
        with inline(app):
            assert double.submit(2).result() == 4
        assert not [name for name in sys.modules if name.startswith("opentelemetry")]
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)


SHOP = """
import json, os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

import penstock


class ToFile(SpanExporter):
    def export(self, spans):
        with open(os.environ["SPANS"], "a") as file:
            for span in spans:
                facts = json.loads(span.to_json(indent=None))
                file.write(json.dumps({**facts, "pid": os.getpid()}) + "\\n")
        return SpanExportResult.SUCCESS


trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(ToFile()))
tracer = trace.get_tracer("shop")
app = penstock.App()


@app.job
def inner(number: int) -> int:
    return number


@app.job
def outer(context: penstock.JobContext) -> int:
    with tracer.start_as_current_span("inside"):
        inner.submit(number=1)
        context.spawn(inner, number=2)
    return os.getpid()
"""

MAIN = """
import os, shop
from penstock import Worker

with shop.tracer.start_as_current_span("request"):
    handle = shop.outer.submit()
Worker(shop.app, concurrency=1).run(until_idle=True)
assert handle.result(0) != os.getpid()
"""


@pytest.mark.process
@pytest.mark.slow
def test_the_process_of_a_job_goes_on_with_the_trace(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    spans = tmp_path / "spans.jsonl"
    environment = {
        **os.environ,
        "SPANS": str(spans),
        "PENSTOCK_URL": f"sqlite:///{tmp_path}/jobs.db",
        "PYTHONPATH": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", MAIN], env=environment, timeout=60, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "fork must not copy" not in done.stderr
    found = [json.loads(line) for line in spans.read_text().splitlines()]
    by_name: dict[str, list] = {}
    for span in found:
        by_name.setdefault(span["name"], []).append(span)
    (request,), (outer,), (inside,) = by_name["request"], by_name["process outer"], by_name["inside"]
    assert len({span["context"]["trace_id"] for span in found}) == 1
    assert outer["parent_id"] == by_name["send outer"][0]["context"]["span_id"]
    assert inside["parent_id"] == outer["context"]["span_id"]
    assert outer["pid"] == inside["pid"] != request["pid"]
    sent = {span["context"]["span_id"]: span for span in by_name["send inner"]}
    assert {span["parent_id"] for span in sent.values()} == {inside["context"]["span_id"]}
    assert {span["pid"] for span in sent.values()} == {outer["pid"]}
    assert {span["parent_id"] for span in by_name["process inner"]} == set(sent)


@pytest.mark.parametrize("wrong", [None, {}, 10**5000], ids=["None", "dict", "huge"])
def test_a_type_that_cannot_name_a_span_is_refused_as_without_tracing(spans, wrong):
    with penstock.connect("memory:") as queue, pytest.raises(InvalidArgumentError) as caught:
        queue.submit(wrong)
    assert caught.value.field == "type"
