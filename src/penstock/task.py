"""A handler as `@app.job` makes it: called as before, or submitted as a job."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeVar

import msgspec

from penstock._client import JoinedClient
from penstock._requests import labels
from penstock._signature import Signature
from penstock._urls import check_callback_url
from penstock.backends.base import UNSET, UnsetType
from penstock.context import JobContext
from penstock.errors import InvalidArgumentError, shown
from penstock.handle import JobHandle
from penstock.job import Job, Key, Priority
from penstock.policy import DEFAULT_TIMEOUTS, RetryPolicy, Timeouts, duration
from penstock.queue import Queue

if TYPE_CHECKING:
    from penstock._client import Submitter
    from penstock.app import App

__all__ = ["Isolation", "Submission", "Task"]

P = ParamSpec("P")
R = TypeVar("R")

Isolation = Literal["process", "thread"]
ISOLATIONS: Final = ("process", "thread")

#: A key made from the arguments: a function of them, or a text (or several) such as "customer-{customer}".
KeyRule = Callable[..., Key | str | Sequence[str] | None] | Key | str | Sequence[str]


class Submission(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job to be submitted, before any store has seen it; it can cross a pipe."""

    type: str
    payload: bytes = b""
    tags: tuple[str, ...] = ()
    priority: int = int(Priority.NORMAL)
    key: tuple[str, ...] | None = None
    run_at: datetime | None = None
    delay: float | None = None
    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()
    retry: RetryPolicy | UnsetType | None = UNSET
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    idempotency_key: str | None = None
    correlation_id: str | None = None
    callback_url: str | None = None
    parent_id: str | None = None
    held: bool = False
    trace: str | None = None

    def to_job(self, queue: Queue) -> Job:
        """Return the job that the queue would store."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return queue.new_job(**fields)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a task's jobs are submitted: the decorator's settings, changed by `.options(…)`."""

    tags: Sequence[str] | Mapping[str, str] = ()
    priority: Priority | int = Priority.NORMAL
    key: Any = None
    run_at: datetime | None = None
    delay: timedelta | float | None = None
    after: Sequence[str | JobHandle[Any]] = ()
    after_any: Sequence[str | JobHandle[Any]] = ()
    retry: RetryPolicy | UnsetType | None = UNSET
    timeout: timedelta | float | None = None
    timeouts: Timeouts | None = None
    idempotency_key: str | None = None
    correlation_id: str | None = None
    callback_url: str | None = None
    parent_id: str | None = None
    held: bool = False


class Task(Generic[P, R]):
    """A function that can be run as a job. Made by `@app.job`.

    Calling it runs the function here and now, as if it were not decorated. A context that the caller leaves out is one
    that knows no store.

    Attributes:
        type: the type of its jobs.
        function: the function itself.
        isolation: "process", "thread", or None for whatever the worker does.
        limits: what one job of it may use, by name: memory, processes, files, output.
    """

    def __init__(
        self,
        app: App,
        function: Callable[..., Any],
        type: str,
        options: Options,
        *,
        isolation: Isolation | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.app = app
        self.function = function
        self.type = type
        self.isolation = isolation
        self.limits = dict(limits or {})
        self._options = options
        self._joined: object = None
        self._known_seconds: tuple[Timeouts, timedelta, float] | None = None
        _ = self.signature  # this is the check

    @functools.cached_property
    def signature(self) -> Signature:
        """What the function takes and gives back."""
        return Signature(self.function, JobContext)

    @functools.cached_property
    def is_async(self) -> bool:
        """Whether the function is `async def`."""
        return inspect.iscoroutinefunction(self.function)

    def __getstate__(self) -> dict[str, Any]:
        # A function that is sent elsewhere is whole only after the tasks that it names: its signature is made anew.
        return {name: value for name, value in self.__dict__.items() if name not in ("signature", "is_async")}

    def __repr__(self) -> str:
        return f"<Task {self.type}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        name = self.signature.context_name
        given: dict[str, Any] = dict(kwargs)
        if name is not None and name not in given and not any(isinstance(each, JobContext) for each in args):
            given[name] = JobContext(Job.new(self.type, attempt=1), NoAttempt(self.app))
            # By name, so that the position of the context among the others does not matter.
            given |= self.signature.bind(args, kwargs)
            return self.function(**given)  # type: ignore[no-any-return]
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]

    @property
    def timeout(self) -> timedelta:
        """How long one attempt may take: what the decorator says, but never more than `App(max_execution=…)`."""
        limit = self.app.max_execution
        own = self._options.timeout
        return limit if own is None else min(duration(own, "timeout", positive=True), limit)

    def seconds_for(self, job: Job) -> float:
        """How long an attempt of this job may take: what it was submitted with, else the handler's own limit.

        Never longer than what the store has, which fails the attempt when that is over, whoever runs it.
        """
        timeouts, most = job.timeouts, self.app.max_execution
        known = self._known_seconds
        if known is not None and known[0] is timeouts and known[1] is most:  # jobs of a store share them
            return known[2]
        execution = timeouts.execution
        if execution is None:
            seconds = self.timeout.total_seconds()
        else:
            # A submission that says nothing has the default, and then the handler may ask for less.
            limit = self.timeout if execution == DEFAULT_TIMEOUTS.execution else most
            seconds = min(execution, limit).total_seconds()
        self._known_seconds = (timeouts, most, seconds)
        return seconds

    # -- submission ---------------------------------------------------------------------------------------------

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job with these arguments; it is on disk when this returns.

        Raises:
            InvalidArgumentError: the arguments do not fit the function, or JSON cannot hold one.
            PayloadTooLargeError: together they are over the store's limit.
            QueueBlockedError, QueueFullError: no new jobs are accepted now.
        """
        return self._handles(self._submitter().submit([self.submission(args, kwargs)]))[0]

    async def submit_async(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """As `submit`, from a coroutine: the loop goes on while the job is stored. `await` the handle for the result.

        A task that is cancelled here has submitted nothing, or the job is stored: then it is cancelled after that.
        """
        return (await self._submit_async([self.submission(args, kwargs)]))[0]

    def submit_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[JobHandle[R]]:
        """Store many jobs, all or none; each item is a mapping of arguments by name."""
        submissions = self._submissions(arguments)
        return self._handles(self._submitter().submit(submissions)) if submissions else []

    async def submit_many_async(self, arguments: Iterable[Mapping[str, Any]]) -> list[JobHandle[R]]:
        """As `submit_many`, from a coroutine."""
        submissions = self._submissions(arguments)
        return await self._submit_async(submissions) if submissions else []

    def joined(self, connection: object) -> Task[P, R]:
        """Return this task with submissions that join a transaction of the caller's own. PostgreSQL only.

            with session.begin():
                session.add(order)
                invoice.joined(session).submit(order=7)

        The job is there if, and only if, the transaction is committed; wait for its result after that.

        Args:
            connection: what `Queue.joined` takes; for `submit_async`, what `penstock.aio`'s takes.
        """
        changed = self._copy()
        changed._joined = connection  # noqa: SLF001  # of the same class
        return changed

    def _submitter(self) -> Submitter:
        if self._joined is None:
            return self.app.client()
        return JoinedClient(self.app.queue.joined(self._joined))

    async def _submit_async(self, submissions: Sequence[Submission]) -> list[JobHandle[R]]:
        threads = self.app.threads()
        client: Submitter = await threads.run(self.app.client)  # which may open the store
        if self._joined is not None:
            client = JoinedClient(self.app.aio.joined(self._joined).queue)
        return self._handles(await threads.run(lambda: client.submit(submissions)))

    def _handles(self, job_ids: Iterable[str]) -> list[JobHandle[R]]:
        return [self.handle(job_id) for job_id in job_ids]

    def _submissions(self, arguments: Iterable[Mapping[str, Any]]) -> list[Submission]:
        if isinstance(arguments, Mapping | str | bytes) or not isinstance(arguments, Iterable):
            raise InvalidArgumentError(
                f"submit_many takes a list of mappings of arguments, got {shown(arguments)}",
                field="arguments",
                value=arguments,
            )
        submissions = []
        for index, each in enumerate(arguments):
            if not isinstance(each, Mapping):
                raise InvalidArgumentError(
                    f"arguments[{index}] must be a mapping of arguments by name, got {shown(each)}",
                    field="arguments",
                    value=each,
                )
            try:
                submissions.append(self.submission((), each))
            except InvalidArgumentError as error:
                raise error.in_batch(index, None) from None
        return submissions

    def options(self, **fields: Any) -> Task[P, R]:
        """Return this task with other submission fields, for one call or many.

            resize.options(priority=Priority.HIGH, delay=60).submit(image="cat.png")

        Args:
            **fields: any of `Queue.submit`'s arguments but type and payload; `timeout=` is the execution time alone;
                `after` and `after_any` take handles too.

        Raises:
            InvalidArgumentError: an unknown field, or an execution time above the app's `max_execution`.
        """
        if getattr(fields.get("timeouts"), "execution", None) is not None:
            fields.setdefault("timeout", None)  # one execution time replaces the other
        options = checked_options(self._options, fields)
        for name, value in (
            ("timeout", fields.get("timeout")),
            ("timeouts", getattr(fields.get("timeouts"), "execution", None)),
        ):
            if value is not None and duration(value, name, positive=True) > self.app.max_execution:
                raise InvalidArgumentError(
                    f"{name} must be at most the app's max_execution of {self.app.max_execution}, got {shown(value)}",
                    field=name,
                    value=value,
                )
        changed = self._copy()
        changed._options = options  # noqa: SLF001  # of the same class
        return changed

    def _copy(self) -> Task[P, R]:
        copy = Task[P, R].__new__(Task)
        copy.__dict__.update(self.__dict__)
        return copy

    def new_job(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Return the job that `submit` would store, without storing it: for `chain`, `fan_in`, `Flow`."""
        return self.submission(args, kwargs).to_job(self.app.queue)

    def handle(self, job_id: str) -> JobHandle[R]:
        """Return the handle of a job of this task that was submitted before."""
        return JobHandle(job_id, self.app.client, self.signature)

    def submission(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Submission:
        """Return a checked submission of a call with these arguments."""
        given = self._options
        arguments = self.signature.bind(args, kwargs)
        return Submission(
            type=self.type,
            payload=self.signature.encode(arguments),
            tags=_tags(given.tags),
            priority=given.priority,
            key=self._key(arguments),
            run_at=given.run_at,
            delay=None if given.delay is None else duration(given.delay, "delay").total_seconds(),
            after=_ids(given.after, "after"),
            after_any=_ids(given.after_any, "after_any"),
            retry=given.retry,
            timeouts=self._timeouts(),
            idempotency_key=given.idempotency_key,
            correlation_id=given.correlation_id,
            callback_url=given.callback_url,
            parent_id=given.parent_id,
            held=given.held,
        )

    def _timeouts(self) -> Timeouts:
        given = self._options.timeouts or DEFAULT_TIMEOUTS
        execution = self.timeout
        if self._options.timeouts is not None and given.execution is not None:
            execution = min(execution, given.execution)
        elif self._options.timeout is None and DEFAULT_TIMEOUTS.execution is not None:
            execution = min(execution, DEFAULT_TIMEOUTS.execution)
        return Timeouts(execution=execution, visibility=given.visibility, lifetime=given.lifetime)

    def _key(self, arguments: dict[str, Any]) -> Key | None:
        rule = self._options.key
        if rule is None or isinstance(rule, Key):
            return rule
        values = self.signature.with_defaults(arguments)
        if callable(rule):
            try:
                return Key.of(rule(**values))
            except InvalidArgumentError:
                raise
            except Exception as error:
                raise InvalidArgumentError(
                    f"the key of {self.type} cannot be made from these arguments: {type(error).__name__}: {error}",
                    field="key",
                ) from error
        parts = [rule] if isinstance(rule, str) else list(rule)
        try:
            return Key(*(part.format_map(values) for part in parts))
        except (KeyError, IndexError, AttributeError, ValueError) as error:
            raise InvalidArgumentError(
                f"the key {shown(rule)} of {self.type} cannot be made from these arguments: {error!r}",
                field="key",
                value=rule,
            ) from None


class NoAttempt:
    """Stands behind the context of a function that was called directly: nothing is stored."""

    deadline = None
    is_cancelled = False

    def __init__(self, app: App) -> None:
        self._app = app

    def progress(self, percent: int, description: str | None) -> None:
        """Tell nobody."""

    def save_checkpoint(self, data: bytes) -> None:
        """Keep nothing."""

    def spawn(self, submission: Submission) -> str:
        return self._app.client().submit([submission])[0]


def checked_options(options: Options, fields: Mapping[str, Any]) -> Options:
    """Return options with some fields changed, the names and simple types checked."""
    unknown = sorted(fields.keys() - set(Options.__struct_fields__))
    if unknown:
        raise InvalidArgumentError(
            f"unknown: {', '.join(unknown)} (there are {', '.join(Options.__struct_fields__)})",
            field=unknown[0],
            value=unknown,
        )
    changed = msgspec.structs.replace(options, **fields)
    _check_options(changed)
    return changed


def _check_options(options: Options) -> None:
    priority = options.priority
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 4:
        raise InvalidArgumentError(
            f"priority must be a Priority (0 CRITICAL to 4 BULK), got {shown(priority)}",
            field="priority",
            value=priority,
        )
    if options.timeout is not None:
        duration(options.timeout, "timeout", positive=True)
    if options.timeouts is not None and not isinstance(options.timeouts, Timeouts):
        raise InvalidArgumentError(
            f"timeouts must be a Timeouts, got {shown(options.timeouts)}",
            field="timeouts",
            value=options.timeouts,
        )
    if (
        options.timeout is not None
        and options.timeouts is not None
        and options.timeouts.execution is not None
    ):
        raise InvalidArgumentError("give timeout or timeouts.execution, not both", field="timeout")
    if (
        options.retry is not UNSET
        and options.retry is not None
        and not isinstance(options.retry, RetryPolicy)
    ):
        raise InvalidArgumentError(
            f"retry must be a RetryPolicy or None, got {shown(options.retry)}",
            field="retry",
            value=options.retry,
        )
    if options.delay is not None:
        duration(options.delay, "delay")
    if isinstance(options.callback_url, str):  # the store refuses what is no text
        check_callback_url(options.callback_url)
    _tags(options.tags)
    _check_key_rule(options.key)


def _check_key_rule(rule: object) -> None:
    if rule is None or isinstance(rule, str) or callable(rule):
        return
    if isinstance(rule, tuple | list) and rule and all(isinstance(part, str) for part in rule):
        return
    raise InvalidArgumentError(
        f"key must be a text, several, or a function of the arguments, got {shown(rule)}",
        field="key",
        value=rule,
    )


def _tags(tags: Sequence[str] | Mapping[str, str]) -> tuple[str, ...]:
    return labels(tags)


def _ids(jobs: Sequence[str | JobHandle[Any]], field: str) -> tuple[str, ...]:
    if isinstance(jobs, str | bytes) or not isinstance(jobs, Iterable):
        raise InvalidArgumentError(
            f"{field} must be a sequence of ids or handles, got {shown(jobs)}", field=field, value=jobs
        )
    return tuple(each.id if isinstance(each, JobHandle) else each for each in jobs)
