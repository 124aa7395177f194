"""Run a handler for a job: decode the arguments, call it through the middleware, classify its outcome.

The same for a thread, a process of its own and a user's test: `execute` returns an `Outcome` and never raises.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock._lazy import asyncio
from penstock.app.context import JobContext
from penstock.errors import InvalidArgumentError
from penstock.job import Job
from penstock.logs import inside
from penstock.outcome import Completed, Failed, failure_of, invalid
from penstock.tracing import is_on, process

if TYPE_CHECKING:
    from penstock.app.task import Task

__all__ = ["LoopRunner", "Middleware", "Runner", "execute"]

LEFT_OVER_SECONDS: Final = 1.0

#: Called with the context and a function that runs the rest; returns what the handler returned, or something else.
Middleware = Callable[[JobContext, Callable[[], Any]], Any]

#: Runs a coroutine to its end.
Runner = Callable[[Coroutine[Any, Any, Any]], Any]


def execute(
    task: Task[Any, Any],
    job: Job,
    make_context: Callable[[], JobContext],
    middleware: Sequence[Middleware] = (),
    run: Runner = lambda coroutine: asyncio.run(coroutine),  # noqa: PLW0108 - so that asyncio is imported if it is needed
) -> Completed | Failed:
    """Run a task's handler and return its outcome; in a span, if this process is tracing.

    Args:
        task: the task whose handler is run.
        job: what it runs for; its payload are the arguments as stored.
        make_context: called if the handler or a middleware wants to know about its job.
        middleware: from the outermost to the innermost.
        run: runs the coroutine of an `async def` handler to its end.
    """
    if is_on():
        return inside(job, process, job, lambda: _execute(task, job.payload, make_context, middleware, run))
    return inside(job, _execute, task, job.payload, make_context, middleware, run)


def _execute(
    task: Task[Any, Any],
    payload: bytes,
    make_context: Callable[[], JobContext],
    middleware: Sequence[Middleware],
    run: Runner,
) -> Completed | Failed:
    signature = task.signature
    try:
        arguments = signature.decode(payload)
    except InvalidArgumentError as error:
        return invalid(str(error), "invalid_arguments")
    except RecursionError:
        return invalid("the payload is nested too deeply", "invalid_arguments")
    try:
        if signature.context_name is None and not middleware:
            value = task.function(**arguments)
            if task.is_async:
                value = run(value)
        else:
            value = _call(task, arguments, make_context(), middleware, run)
    except BaseException as error:  # a handler may raise anything; SystemExit ends its job, not the worker
        return failure_of(error)
    try:
        return Completed(signature.encode_result(value))
    except InvalidArgumentError as error:
        return invalid(f"the result cannot be stored: {error}", "invalid_result")
    except BaseException as error:  # an object of the handler's that cannot even be looked at
        return invalid(f"the result cannot be stored: {type(error).__name__}", "invalid_result")


def _call(
    task: Task[Any, Any],
    arguments: dict[str, Any],
    context: JobContext,
    middleware: Sequence[Middleware],
    run: Runner,
) -> Any:
    if task.signature.context_name is not None:
        arguments[task.signature.context_name] = context

    def handler() -> Any:
        value = task.function(**arguments)
        return run(value) if task.is_async else value

    call = handler
    for wrap in reversed(middleware):
        call = _wrapped(wrap, context, call)
    return call()


def _wrapped(wrap: Middleware, context: JobContext, call: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: wrap(context, call)


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel the coroutines that a handler left running: the next job uses the same loop."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=LEFT_OVER_SECONDS)


class LoopRunner:
    """Runs coroutines one after another in one event loop, and can cancel the one that runs from another thread."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._current: asyncio.Task[Any] | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run one to its end."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            return self._runner.run(self._watched(coroutine), context=contextvars.copy_context())
        finally:
            left = asyncio.all_tasks(self._runner.get_loop())
            if left:
                self._runner.run(_end(left))

    async def _watched(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        self._current = asyncio.current_task()
        try:
            return await coroutine
        finally:
            self._current = None

    def cancel(self) -> None:
        """Cancel the coroutine that runs, if one does, from any thread."""
        current = self._current
        if current is not None:
            current.get_loop().call_soon_threadsafe(current.cancel)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None
