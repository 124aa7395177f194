"""An app: handlers by type, and the queue that their jobs go through.

    app = penstock.App()

    @app.job(retry=RetryPolicy(max_attempts=5), timeout=60)
    def resize(image: str, width: int) -> dict: ...

    resize.submit(image="cat.png", width=200).result(timeout=30)

`penstock worker module:app` runs the jobs. Which handler belongs to a job is looked up by its type among those that were
decorated; nothing is ever imported because of a text in the store.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from penstock.app.client import Client, JobProcess, QueueClient
from penstock.app.context import JobContext
from penstock.app.execution import Middleware
from penstock.app.handle import JobHandle, checked_id
from penstock.app.schedules import Cron, Every, Missed, Periodic, Ticks
from penstock.app.task import ISOLATIONS, Isolation, Task, TaskOptions, checked_options
from penstock.backends.drivers import check_connection, open_backend
from penstock.clock import Clock
from penstock.durations import Duration, duration
from penstock.errors import InvalidArgumentError, shown
from penstock.job import Job
from penstock.queue import Queue

if TYPE_CHECKING:
    from penstock.aio import AsyncQueue, Threads

__all__ = ["App"]

P = ParamSpec("P")
R = TypeVar("R")

CALLBACKS: Final = ("public", "any", "off")
MAX_TYPE: Final = 256


class App:
    """Handlers, and the store of their jobs, which is opened by the first use.

    Args:
        url: as for `penstock.connect`; None is `$PENSTOCK_URL`, else `url` in penstock.toml, else
            sqlite:///penstock.db.
        clock: replaces the store's clock.
        max_execution: no attempt of a job may take longer, whatever its handler says; 30 minutes.
        callbacks: the addresses to which workers may post the end of a job with a `callback_url`: "public" ones, "any",
            or "off" for none.
        middleware: functions around every handler, the first outermost; see `App.middleware`.
        **options: those of `penstock.connect`, such as `retention`.

    Raises:
        InvalidArgumentError: an argument is wrong, whatever store it names; what only that store judges is refused when
            it is opened.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        clock: Clock | None = None,
        max_execution: Duration = timedelta(minutes=30),
        callbacks: Literal["public", "any", "off"] = "public",
        middleware: Sequence[Middleware] = (),
        **options: Any,
    ) -> None:
        if url is not None and not isinstance(url, str):
            raise InvalidArgumentError(
                f"url must be a string or None, got {shown(url)}", field="url", value=url
            )
        if not isinstance(callbacks, str) or callbacks not in CALLBACKS:
            raise InvalidArgumentError(
                f"callbacks must be one of {', '.join(CALLBACKS)}, got {shown(callbacks)}",
                field="callbacks",
                value=callbacks,
            )
        check_connection(url, clock, options)
        self.url = url
        self.max_execution = duration(max_execution, "max_execution", positive=True)
        self.callbacks = callbacks
        self._clock = clock
        self._options = options
        self._moved: dict[str, Any] = {}
        self._tasks: dict[str, Task[..., Any]] = {}
        self._schedules: dict[str, tuple[Periodic, Callable[..., Any]]] = {}
        #: The functions around every handler, from the outermost to the innermost.
        self.middlewares: tuple[Middleware, ...] = tuple(
            map(_checked_middleware, middleware if isinstance(middleware, tuple | list) else [middleware])
        )
        self._lock = threading.Lock()
        self._client: QueueClient | None = None
        self._stand_in: Client | None = None
        self._threads: Threads | None = None

    def __repr__(self) -> str:
        return f"<App with {len(self._tasks)} tasks>"

    # -- handlers -----------------------------------------------------------------------------------------------

    @overload
    def job(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...

    @overload
    def job(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def job(
        self,
        function: None = None,
        /,
        *,
        type: str | None = None,
        isolation: Isolation | None = None,
        memory: int | None = None,
        processes: int | None = None,
        files: int | None = None,
        output: int | None = None,
        **options: Unpack[TaskOptions],
    ) -> _Decorate: ...

    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        type: str | None = None,
        isolation: Isolation | None = None,
        memory: int | None = None,
        processes: int | None = None,
        files: int | None = None,
        output: int | None = None,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Make a function the handler of a type of jobs. Bare (`@app.job`) or with settings.

        Args:
            function: sync or `async def`. A parameter annotated `JobContext` is given one.
            type: the type of its jobs; the function's name unless given.
            retry: three attempts with exponential backoff unless given; None is for ever, at once.
            timeout: how long one attempt may take, in seconds or a timedelta; never more than `App(max_execution=…)`.
            timeouts: execution, visibility and lifetime, instead of `timeout`.
            priority: 0 CRITICAL to 4 BULK.
            tags: labels; a mapping becomes "key=value" labels.
            key: jobs of one key run one at a time, in order. A text with the names of arguments in it
                (`"customer-{customer}"`), several such texts, or a function of the arguments.
            idempotency_key: a submission whose key another job has (per type, for a day) stores nothing and returns
                the handle of that job. A text with the names of arguments in it, as for `key` (a brace that is meant
                itself is doubled), or a function of the arguments.
            unique: "while_unfinished": the key is reserved until its job has ended.
            callback_url: called when a job has ended.
            **options: any other field of `Queue.submit`, for all jobs of the type.
            isolation: "process" or "thread", whatever the worker does with other handlers.
            memory: bytes one job may allocate (processes only).
            processes: how many processes one job may have, its own included (processes only).
            files: how many files one job may have open (processes only).
            output: how many bytes of what a job prints are kept; 64 KiB.

        Raises:
            InvalidArgumentError: a setting is wrong, the function cannot be a handler, or its type is taken.
        """
        checked = checked_options(options)
        if isolation is not None and (not isinstance(isolation, str) or isolation not in ISOLATIONS):
            raise InvalidArgumentError(
                f"isolation must be one of {', '.join(ISOLATIONS)}, got {shown(isolation)}",
                field="isolation",
                value=isolation,
            )
        given = {"memory": memory, "processes": processes, "files": files, "output": output}
        limits = {name: value for name, value in given.items() if value is not None}
        if limits:
            from penstock.isolation.limits import Limits  # noqa: PLC0415  # few tasks have any

            Limits(**limits)  # this is the check

        def decorate(function: Callable[..., Any]) -> Task[..., Any]:
            _check_handler(function)
            name = _type_name(function.__name__ if type is None else type)
            task: Task[..., Any] = Task(self, function, name, checked, isolation=isolation, limits=limits)
            self._add(task)
            return task

        return decorate if function is None else decorate(function)

    def _add(self, task: Task[..., Any]) -> None:
        with self._lock:
            taken = self._tasks.get(task.type)
            # A cell of a notebook that is run again defines the same function anew.
            if taken is not None and _place(taken.function) != _place(task.function):
                raise InvalidArgumentError(
                    f"the type {shown(task.type)} is taken by {'.'.join(_place(taken.function))}; "
                    "give one of them another by @app.job(type=…)",
                    field="type",
                    value=task.type,
                )
            self._tasks[task.type] = task

    # -- periodic jobs ------------------------------------------------------------------------------------------

    def cron(
        self,
        expression: str,
        *,
        tz: str | tzinfo = UTC,
        missed: Missed = "latest",
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Callable[[Callable[P, R] | Task[P, R]], Task[P, R]]:
        """Submit a job whenever a cron schedule ticks: once per tick, by any of the running workers.

            @app.cron("0 3 * * mon-fri", tz="Europe/Berlin")
            def report() -> None: ...

        Decorates a function, or a task that `@app.job(…)` made with settings. The tick is the job's `run_at`.

        Args:
            expression: minute, hour, day of month, month, day of week; see `penstock.app.schedules.Cron`.
            tz: the time zone it is meant in; UTC.
            missed: the ticks without a running worker that get a job later: the "latest" one, none ("skip", for
                ticks more than a minute old), or "all".
            name: identifies the schedule in the store; the task's type unless given.
            arguments: those of every job; none.

        Raises:
            InvalidArgumentError: something is wrong with the above, or the name is taken.
        """
        return self._scheduled(Cron(expression, tz), missed, name, arguments)

    def every(
        self,
        interval: Duration,
        *,
        missed: Missed = "latest",
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Callable[[Callable[P, R] | Task[P, R]], Task[P, R]]:
        """Submit a job at a fixed interval; see `cron` for the rest.

            @app.every(timedelta(minutes=5))
            def refresh() -> None: ...

        Args:
            interval: seconds or a timedelta, at least one second. Ticks lie at its multiples since 1970, so they are
                the same for every worker.
        """
        return self._scheduled(Every(interval), missed, name, arguments)

    def _scheduled(
        self, when: Ticks, missed: Missed, name: str | None, arguments: Mapping[str, Any] | None
    ) -> Callable[[Callable[P, R] | Task[P, R]], Task[P, R]]:
        if arguments is not None and not isinstance(arguments, Mapping):
            raise InvalidArgumentError(
                f"arguments must be a mapping of arguments by name, got {shown(arguments)}",
                field="arguments",
                value=arguments,
            )
        given = dict(arguments or {})

        def decorate(function: Callable[P, R] | Task[P, R]) -> Task[P, R]:
            task: Task[P, R] = function if isinstance(function, Task) else self.job(function)
            task.check_call(given)  # so that wrong arguments are known now, not at the first tick
            anything: Task[..., Any] = task
            known = task.type if name is None else name

            def make(tick: datetime) -> Job:
                return anything.options(run_at=tick).new_job(**given)

            schedule = Periodic(known, when, make, missed)
            with self._lock:
                taken = self._schedules.get(known)
                # The same function object has two schedules; one of the same place is a cell that is run again.
                is_second = taken is not None and taken[1] is task.function
                if taken is not None and (is_second or _place(taken[1]) != _place(task.function)):
                    raise InvalidArgumentError(
                        f"a schedule is named {shown(known)} already; give one of them another by name=…",
                        field="name",
                        value=known,
                    )
                self._schedules[known] = schedule, task.function
            return task

        return decorate

    @property
    def schedules(self) -> Sequence[Periodic]:
        """The periodic schedules, which a worker ticks."""
        return tuple(schedule for schedule, _ in self._schedules.values())

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The tasks by type."""
        return MappingProxyType(self._tasks)

    def middleware(self, wrap: Middleware, /) -> Middleware:
        """Put a function around every handler; usable as a decorator. The first added is the outermost.

            @app.middleware
            def timed(context, call):
                start = time.perf_counter()
                try:
                    return call()
                finally:
                    context.log("took %.3f s", time.perf_counter() - start)

        It runs where the handler runs, is given the `JobContext` and a function that runs the rest, also if the handler
        is `async def`, and returns the result. What it raises is the job's failure.
        """
        self.middlewares = (*self.middlewares, _checked_middleware(wrap))
        return wrap

    # -- jobs ---------------------------------------------------------------------------------------------------

    @property
    def queue(self) -> Queue:
        """The queue, opened by the first use.

        Raises:
            BackendError: the store cannot be opened.
            InvalidArgumentError: this is the process of a job, which has no store: submit and wait work here, over
                the pipe to its worker.
        """
        if JobProcess.client is not None:
            raise InvalidArgumentError(
                "the process of a job has no store; submit, spawn and result go through its worker",
                field="queue",
            )
        client = self.client()
        if not isinstance(client, QueueClient):
            raise InvalidArgumentError("this app has no queue of its own now", field="queue")
        return client.queue

    @property
    def aio(self) -> AsyncQueue:
        """The queue for asyncio: its verbs are awaited. Inside `async with app` it is open already; else this opens it.

        Closed with the app; do not close it by itself.
        """
        from penstock.aio import AsyncQueue  # noqa: PLC0415  # most programs have no loop

        return AsyncQueue(self.queue, self.threads())

    def threads(self) -> Threads:
        """Return the threads on which blocking calls run for asyncio; not for users."""
        from penstock.aio import Threads  # noqa: PLC0415  # see above

        with self._lock:
            if self._threads is None:
                self._threads = Threads()
            return self._threads

    def handle(self, job_id: str) -> JobHandle[Any]:
        """Return the handle of any job by its id; its result is what JSON holds.

        Raises:
            InvalidArgumentError: an id that no job can have.
        """
        return JobHandle(checked_id(job_id), self.client)

    def client(self) -> Client:
        """Return the client of tasks and handles; not for users."""
        found = JobProcess.client or self._stand_in or self._client
        if found is not None:
            return found
        with self._lock:
            if self._client is None:
                self._client = QueueClient(Queue(open_backend(**self.connection())))
            return self._client

    def stand_in(self, client: Client | None) -> None:
        """Use another client than the app's own queue, until it is replaced (`penstock.testing`)."""
        self._stand_in = client

    def move_to(self, url: str | None, **options: Any) -> None:
        """Use another store from the next opening on, with these options beside the app's own; not for users."""
        self.close()
        self.url = url
        self._moved = options

    def connection(self) -> dict[str, Any]:
        """Return the arguments of `penstock.open_backend` with which the app opens its store; not for users."""
        return {"url": self.url, "clock": self._clock, **self._options, **self._moved}

    # Open stores and locks belong to this process; handlers and settings may be pickled for another one (a fleet).
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None, "_client": None, "_stand_in": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def close(self) -> None:
        """Close the queue, if it was opened; the next use opens it again."""
        with self._lock:
            client, self._client = self._client, None
            threads, self._threads = self._threads, None
        if client is not None:
            client.close()
            client.queue.close()
        if threads is not None:
            threads.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        """Open the queue without blocking the loop; raises before the first job if the store cannot be opened."""
        await self.threads().run(self.client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.threads().run(self.close)


class _Decorate:
    """The type of `@app.job(…)`: the task it makes of a function, with and without a context."""

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...

    def __call__(self, function: Callable[..., Any], /) -> Task[..., Any]:
        raise NotImplementedError


def _check_handler(function: object) -> None:
    if isinstance(function, type) or not callable(function) or not hasattr(function, "__name__"):
        raise InvalidArgumentError(
            f"@app.job decorates a function, got {shown(function)}", field="function", value=function
        )
    if isinstance(function, Task):
        raise InvalidArgumentError(f"{function!r} is a job already", field="function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgumentError(
            f"{function.__name__} is a generator: a handler returns its result, it does not yield it",
            field="function",
        )


def _type_name(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_TYPE or not name.isprintable():
        raise InvalidArgumentError(
            f"type must be a printable text of 1 to {MAX_TYPE} characters, got {shown(name)}",
            field="type",
            value=name,
        )
    return name


def _place(function: Callable[..., Any]) -> tuple[str, str]:
    module = getattr(function, "__module__", None) or ""
    return module, getattr(function, "__qualname__", None) or repr(function)


def _checked_middleware(wrap: Middleware) -> Middleware:
    if not callable(wrap) or inspect.iscoroutinefunction(wrap):
        raise InvalidArgumentError(
            f"a middleware is a plain function of a context and a call, got {shown(wrap)}",
            field="middleware",
            value=wrap,
        )
    return wrap
