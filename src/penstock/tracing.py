"""Spans of OpenTelemetry around submissions and handlers, in programs that use OpenTelemetry.

OpenTelemetry is not imported here: a program that traces has imported `opentelemetry.trace`, so that a program that does
not pays only one lookup in `sys.modules`. Names follow the semantic conventions for messaging.

The submitter's context travels in `Job.trace`, in W3C form. A handler's span is the child of the span that submitted its
job alone; that of a job submitted with others links to it, because thousands of children make no readable trace. Which of
the two it is stands in the stored `tracestate`, as the member `penstock=batch`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec

from penstock.job import Job
from penstock.outcome import Completed, Failed

__all__ = ["MODULE", "flush", "is_on", "process", "send", "stamp"]

T = TypeVar("T")
Outcome = TypeVar("Outcome", bound=Completed | Failed)

#: Whether it is in `sys.modules` is `is_on`, without a call: every submission asks.
MODULE: Final = "opentelemetry.trace"
_MEMBER: Final = "penstock"
_BATCH: Final = "batch"
_MAX_STATE: Final = 512
FLUSH_MILLISECONDS: Final = 5_000

_tracer: tuple[Any, Any] = (None, None)


def is_on() -> bool:
    """Whether this process may be tracing: `opentelemetry.trace` is imported."""
    return MODULE in sys.modules


def send(jobs: Iterable[Job], store: Callable[[Any], T], ids_of: Callable[[T], Sequence[str]]) -> T:
    """Store jobs inside a span of their submission, which they remember. Without tracing, just store them.

    Args:
        jobs: to be stored; the store refuses values that are no jobs.
        store: stores them.
        ids_of: returns the ids from the result of `store`.
    """
    if not is_on() or isinstance(jobs, str | bytes | Mapping) or not isinstance(jobs, Iterable):
        return store(jobs)
    given = list(jobs)
    if not given or not all(map(_is_traceable, given)):
        return store(given)
    with _sending([job.type for job in given]) as (span, trace):
        stored = store([msgspec.structs.replace(job, trace=trace) for job in given] if trace else given)
        if len(given) == 1:
            span.set_attribute("messaging.message.id", ids_of(stored)[0])
        return stored


def _is_traceable(job: object) -> bool:
    """Whether a span can name a job: not what the store refuses, nor one whose trace began in the process of a job."""
    return isinstance(job, Job) and job.trace is None and isinstance(job.type, str)


@contextmanager
def stamp(types: Sequence[str]) -> Iterator[str | None]:
    """Put a span around a submission that the caller stores; yields the trace context for its jobs."""
    if not is_on():
        yield None
        return
    with _sending(types) as (_, trace):
        yield trace


def process(job: Job, run: Callable[[], Outcome]) -> Outcome:
    """Run a handler inside a span that is a child of, or linked to, the span that submitted its job."""
    trace = sys.modules[MODULE]
    parent, links = _origin(trace, job.trace)
    attributes = _attributes("process", {job.type}) | {
        "messaging.message.id": job.id,
        "penstock.job.attempt": job.attempt,
    }
    if job.key is not None:
        attributes["messaging.destination.partition.id"] = "/".join(job.key)
    span = _get_tracer(trace).start_span(
        f"process {job.type}",
        context=parent,
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        links=links,
    )
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        outcome = run()
        if isinstance(outcome, Failed):
            _fail(trace, span, outcome.code or str(outcome.category), outcome.message.partition("\n")[0])
        return outcome


def flush() -> None:
    """Export the pending spans: the process of a job exits without a shutdown hook."""
    if is_on():
        provider = sys.modules[MODULE].get_tracer_provider()
        force = getattr(provider, "force_flush", None)  # the API alone has none
        if force is not None:
            force(FLUSH_MILLISECONDS)


@contextmanager
def _sending(types: Sequence[str]) -> Iterator[tuple[Any, str | None]]:
    trace = sys.modules[MODULE]
    kinds = set(types)
    attributes = _attributes("send", kinds)
    if len(types) > 1:
        attributes["messaging.batch.message_count"] = len(types)
    name = f"send {types[0]}" if len(kinds) == 1 else "send"
    span = _get_tracer(trace).start_span(name, kind=trace.SpanKind.PRODUCER, attributes=attributes)
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield span, _carried(span.get_span_context(), is_batch=len(types) > 1)
        except Exception as error:
            _fail(trace, span, type(error).__name__, str(error).partition("\n")[0])
            raise


def _attributes(operation: str, types: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "messaging.system": "penstock",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if len(types) == 1:
        found["messaging.destination.name"] = next(iter(types))
    return found


def _fail(trace: Any, span: Any, kind: str, text: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(trace.Status(trace.StatusCode.ERROR, text))


def _get_tracer(trace: Any) -> Any:
    """Return our tracer of the provider that is set now; making one takes longer than a span."""
    global _tracer  # noqa: PLW0603  # a memory of one
    provider = trace.get_tracer_provider()
    if _tracer[0] is not provider:
        _tracer = (provider, trace.get_tracer("penstock"))
    return _tracer[1]


def _carried(context: Any, *, is_batch: bool) -> str | None:
    """Return a span's context as it is stored; None if there is none, as without a tracer."""
    if not context.is_valid:
        return None
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    members = [f"{_MEMBER}={_BATCH}"] if is_batch else []
    room = _MAX_STATE - len(members) * (len(_MEMBER) + len(_BATCH) + 2)
    for name, value in context.trace_state.items():
        member = f"{name}={value}"
        room -= len(member) + 1
        if room >= 0 and name != _MEMBER:
            members.append(member)
    return f"{parent} {','.join(members)}" if members else parent


def _origin(trace: Any, carried: str | None) -> tuple[Any, list[Any]]:
    """Return the context that a handler's span is the child of, and what it links to."""
    from opentelemetry.context import Context  # noqa: PLC0415  # called only if it is imported

    context = _read(trace, carried)
    if context is None or not context.is_valid:
        return Context(), []  # a trace of its own, whatever this thread did before
    if context.trace_state.get(_MEMBER) == _BATCH:
        return Context(), [trace.Link(context)]
    return trace.set_span_in_context(trace.NonRecordingSpan(context), Context()), []


def _read(trace: Any, carried: str | None) -> Any:
    """Return the span context of a stored text; None if it is none: a job must run whatever stands there."""
    parent, _, state = (carried or "").partition(" ")
    try:
        version, trace_id, span_id, flags = parent.split("-")[:4]
        if (len(version), len(trace_id), len(span_id), len(flags)) != (2, 32, 16, 2):
            return None
        return trace.SpanContext(
            int(trace_id, 16),
            int(span_id, 16),
            is_remote=True,
            trace_flags=trace.TraceFlags(int(flags, 16)),
            trace_state=trace.TraceState.from_header([state]) if state else trace.TraceState(),
        )
    except ValueError:
        return None
