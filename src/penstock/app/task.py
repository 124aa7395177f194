"""A handler as `@app.job` makes it: called as before, or submitted as a job."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeVar, Unpack

from penstock.app._signature import Signature
from penstock.app.client import SubmitClient, delayed
from penstock.app.context import Attempt, JobContext
from penstock.app.handle import JobHandle, checked_id
from penstock.backends import UNSET
from penstock.backends.contract.callback_urls import check_callback_url
from penstock.durations import Duration, duration
from penstock.errors import InvalidArgumentError, shown
from penstock.job import UNIQUE, Job, Key, Priority, new_id
from penstock.policy import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts
from penstock.queue.requests import SUBMIT_FIELDS, CommonOptions, labels

if TYPE_CHECKING:
    from penstock.app import App
    from penstock.app.client import SubmittingClient

__all__ = ["Isolation", "Task", "TaskOptions"]

P = ParamSpec("P")
R = TypeVar("R")

Isolation = Literal["process", "thread"]
ISOLATIONS: Final = ("process", "thread")

#: An idempotency key, or a function that makes one from the arguments.
IdempotencyKey = Callable[..., str | None] | str
#: A key made from the arguments: a function of them, or a text (or several) such as "customer-{customer}".
KeyRule = Callable[..., Key | str | Sequence[str] | None] | Key | str | Sequence[str]


class TaskOptions(CommonOptions, total=False):
    """The options of `@app.job` and `Task.options`: how a task's jobs are submitted."""

    key: KeyRule | None
    after: Sequence[str | JobHandle[Any]]
    after_any: Sequence[str | JobHandle[Any]]
    idempotency_key: IdempotencyKey | None
    timeout: Duration | None


#: The options of a task: the fields of a submission, and `timeout`.
TASK_FIELDS: Final = SUBMIT_FIELDS | {"timeout"}
#: Those that are made from the arguments of each job, or need the store's time.
_PER_JOB: Final = frozenset({"delay", "idempotency_key", "key", "timeout"})


class Task(Generic[P, R]):
    """A function that can be run as a job. Made by `@app.job`.

    Calling it runs the function here and now, as if it were not decorated. A context that the caller leaves out is one
    that knows no store.

    Attributes:
        type: the type of its jobs.
        function: the function itself.
        isolation: "process", "thread", or None for whatever the worker does.
        limits: the limits of one job, by name: memory, processes, files, output.
    """

    def __init__(
        self,
        app: App,
        function: Callable[..., Any],
        type: str,
        options: TaskOptions,
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
        self._joined: object = None
        self._known_seconds: tuple[Timeouts, timedelta, float] | None = None
        self._set_options(options)
        _ = self.signature  # this is the check

    def _set_options(self, options: TaskOptions) -> None:
        delay = options.get("delay")
        self._options = options
        self._delay = None if delay is None else duration(delay, "delay")
        #: The fields that all its jobs share, with the app's limit that they were made for.
        self._shared: tuple[timedelta, dict[str, Any]] | None = None

    @functools.cached_property
    def signature(self) -> Signature:
        """The parameters and the result of the function."""
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
        """The execution time of one attempt: that of the decorator, at most `App(max_execution=…)`."""
        limit = self.app.max_execution
        own = self._options.get("timeout")
        return limit if own is None else min(duration(own, "timeout", positive=True), limit)

    def seconds_for(self, job: Job) -> float:
        """Return the execution time of one attempt of this job: its own if it was submitted with one, else the task's.

        Never longer than the job's stored limit: at its end, the store fails the attempt on any worker.
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
        job = self._job(args, kwargs)
        client = self.app.client() if self._joined is None else self._joined_client()
        (job_id,) = client.submit([job], self._delay)
        return JobHandle(job_id, self.app.client, self.signature, is_duplicate=job_id != job.id)

    async def submit_async(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """As `submit`, from a coroutine: the loop goes on while the job is stored. `await` the handle for the result.

        A task that is cancelled here has submitted nothing, or the job is stored: then it is cancelled after that.
        """
        return (await self._submit_async([self._job(args, kwargs)]))[0]

    def submit_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[JobHandle[R]]:
        """Store many jobs, all or none; each item is a mapping of arguments by name."""
        jobs = self._jobs(arguments)
        if not jobs:
            return []
        client = self.app.client() if self._joined is None else self._joined_client()
        return self._handles(jobs, client.submit(jobs, self._delay))

    async def submit_many_async(self, arguments: Iterable[Mapping[str, Any]]) -> list[JobHandle[R]]:
        """As `submit_many`, from a coroutine."""
        jobs = self._jobs(arguments)
        return await self._submit_async(jobs) if jobs else []

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

    def _joined_client(self) -> SubmittingClient:
        return SubmitClient(self.app.queue.joined(self._joined))

    async def _submit_async(self, jobs: Sequence[Job]) -> list[JobHandle[R]]:
        threads = self.app.threads()
        client: SubmittingClient = await threads.run(self.app.client)  # which may open the store
        if self._joined is not None:
            client = SubmitClient(self.app.aio.joined(self._joined).queue)
        return self._handles(jobs, await threads.run(lambda: client.submit(jobs, self._delay)))

    def _handles(self, jobs: Iterable[Job], ids: Iterable[str]) -> list[JobHandle[R]]:
        """Return the handles of jobs that were submitted, each under its own id or a duplicate's."""
        client, signature = self.app.client, self.signature
        return [
            JobHandle(job_id, client, signature, is_duplicate=job_id != job.id)
            for job, job_id in zip(jobs, ids, strict=True)
        ]

    def spawned_by(self, attempt: Attempt, arguments: Mapping[str, Any]) -> JobHandle[R]:
        """Submit a job on behalf of a running attempt; what `JobContext.spawn` does."""
        job = self._job((), arguments)
        return self._handles([job], [attempt.spawn(job, self._delay)])[0]

    def _jobs(self, arguments: Iterable[Mapping[str, Any]]) -> list[Job]:
        if isinstance(arguments, Mapping | str | bytes) or not isinstance(arguments, Iterable):
            raise InvalidArgumentError(
                f"submit_many takes a list of mappings of arguments, got {shown(arguments)}",
                field="arguments",
                value=arguments,
            )
        jobs = []
        for index, each in enumerate(arguments):
            if not isinstance(each, Mapping):
                raise InvalidArgumentError(
                    f"arguments[{index}] must be a mapping of arguments by name, got {shown(each)}",
                    field="arguments",
                    value=each,
                )
            try:
                jobs.append(self._job((), each))
            except InvalidArgumentError as error:
                raise error.in_batch(index, None) from None
        return jobs

    def options(self, **fields: Unpack[TaskOptions]) -> Task[P, R]:
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
        options = checked_options({**self._options, **fields})
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
        changed._set_options(options)  # noqa: SLF001  # of the same class
        return changed

    def _copy(self) -> Task[P, R]:
        copy = Task[P, R].__new__(Task)
        copy.__dict__.update(self.__dict__)
        return copy

    def new_job(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Return the job that `submit` would store, without storing it: for `chain`, `fan_in`, `Flow`."""
        job = self._job(args, kwargs)
        return job if self._delay is None else delayed(job, self.app.queue.backend.now() + self._delay)

    def handle(self, job_id: str) -> JobHandle[R]:
        """Return the handle of a job of this task that was submitted before."""
        return JobHandle(checked_id(job_id), self.app.client, self.signature)

    def check_call(self, arguments: Mapping[str, Any]) -> None:
        """Raise InvalidArgumentError if no job can be made of these arguments."""
        self._job((), arguments)

    def _job(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Job:
        """Return the job of a call with these arguments; a delay is added where the store's time is known."""
        given, signature = self._options, self.signature
        arguments = signature.bind(args, kwargs)
        shared = self._shared
        if shared is None or shared[0] is not self.app.max_execution:
            shared = self._shared = (self.app.max_execution, self._shared_fields())
        fields = shared[1]
        if "key" in given or "idempotency_key" in given:
            fields = {
                **fields,
                "key": self._key(given.get("key"), arguments),
                "idempotency_key": self._idempotency_key(given.get("idempotency_key"), arguments),
            }
        return Job(id=new_id(), type=self.type, payload=signature.encode(arguments), **fields)

    def _shared_fields(self) -> dict[str, Any]:
        """Return the fields that are the same in all jobs of this task."""
        given = self._options
        if given.get("unique") is not None and given.get("idempotency_key") is None:
            raise _keyless(given["unique"])
        fields: dict[str, Any] = {name: value for name, value in given.items() if name not in _PER_JOB}
        fields["timeouts"] = self._timeouts()
        if fields.get("retry", UNSET) is UNSET:
            fields["retry"] = DEFAULT_RETRY
        if "tags" in fields:
            fields["tags"] = labels(fields["tags"])
        for name in ("after", "after_any"):
            if name in fields:
                fields[name] = _ids(fields[name], name)
        return fields

    def _timeouts(self) -> Timeouts:
        own = self._options.get("timeouts")
        given = own if isinstance(own, Timeouts) else DEFAULT_TIMEOUTS
        execution = self.timeout
        if given is own and given.execution is not None:
            execution = min(execution, given.execution)
        elif self._options.get("timeout") is None and DEFAULT_TIMEOUTS.execution is not None:
            execution = min(execution, DEFAULT_TIMEOUTS.execution)
        return Timeouts(execution=execution, visibility=given.visibility, lifetime=given.lifetime)

    def _idempotency_key(self, rule: IdempotencyKey | None, arguments: dict[str, Any]) -> str | None:
        key: str | None = rule if rule is None else self._unique_text(rule, arguments)
        unique = self._options.get("unique")
        if key is None and unique is not None:
            raise _keyless(unique)
        return key

    def _unique_text(self, rule: IdempotencyKey, arguments: dict[str, Any]) -> Any:
        if callable(rule):
            return self._made_by(rule, arguments, "idempotency_key")
        return self._filled([rule], arguments, "idempotency_key")[0] if isinstance(rule, str) else rule

    def _made_by(self, rule: Callable[..., Any], arguments: dict[str, Any], field: str) -> Any:
        """Return what a function of the arguments returns."""
        try:
            return rule(**self.signature.with_defaults(arguments))
        except InvalidArgumentError:
            raise
        except Exception as error:
            raise InvalidArgumentError(
                f"the {field} of {self.type} cannot be made from these arguments: {type(error).__name__}: {error}",
                field=field,
            ) from error

    def _key(self, rule: KeyRule | None, arguments: dict[str, Any]) -> Key | None:
        if rule is None or isinstance(rule, Key):
            return rule
        if callable(rule):
            return Key.of(self._made_by(rule, arguments, "key"))
        return Key(*self._filled([rule] if isinstance(rule, str) else rule, arguments, "key"))

    def _filled(self, texts: Iterable[str], arguments: dict[str, Any], field: str) -> list[str]:
        """Return texts with the values of the arguments that they name in braces."""
        values = self.signature.with_defaults(arguments)
        filled = []
        for text in texts:
            try:
                filled.append(text.format_map(values))
            except (KeyError, IndexError, AttributeError, ValueError) as error:
                raise InvalidArgumentError(
                    f"the {field} {shown(text)} of {self.type} cannot be made from these arguments: {error!r}",
                    field=field,
                    value=text,
                ) from None
        return filled


class NoAttempt:
    """The attempt of a function that is called directly: nothing is stored."""

    deadline = None
    is_cancelled = False

    def __init__(self, app: App) -> None:
        self._app = app

    def progress(self, percent: int, description: str | None) -> None:
        """Ignore progress."""

    def save_checkpoint(self, data: bytes) -> None:
        """Ignore a checkpoint."""

    def spawn(self, job: Job, delay: timedelta | None) -> str:
        return self._app.client().submit([job], delay)[0]


def _keyless(unique: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"unique={unique!r} needs an idempotency_key: it says how long that key is taken",
        field="unique",
        value=unique,
    )


def checked_options(options: TaskOptions) -> TaskOptions:
    """Return the settings of a task, their names and simple types checked."""
    unknown = sorted(options.keys() - TASK_FIELDS)
    if unknown:
        raise InvalidArgumentError(
            f"unknown: {', '.join(unknown)} (there are {', '.join(sorted(TASK_FIELDS))})",
            field=unknown[0],
            value=unknown,
        )
    _check_options(**options)
    return options


def _check_options(
    *,
    priority: object = Priority.NORMAL,
    timeout: Duration | None = None,
    timeouts: object = None,
    retry: object = UNSET,
    delay: Duration | None = None,
    callback_url: object = None,
    unique: object = None,
    tags: Any = (),
    key: object = None,
    **_: Any,
) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 4:
        raise InvalidArgumentError(
            f"priority must be a Priority (0 CRITICAL to 4 BULK), got {shown(priority)}",
            field="priority",
            value=priority,
        )
    if timeout is not None:
        duration(timeout, "timeout", positive=True)
    if timeouts is not None and not isinstance(timeouts, Timeouts):
        raise InvalidArgumentError(
            f"timeouts must be a Timeouts, got {shown(timeouts)}",
            field="timeouts",
            value=timeouts,
        )
    if timeout is not None and timeouts is not None and timeouts.execution is not None:
        raise InvalidArgumentError("give timeout or timeouts.execution, not both", field="timeout")
    if retry is not UNSET and retry is not None and not isinstance(retry, RetryPolicy):
        raise InvalidArgumentError(
            f"retry must be a RetryPolicy or None, got {shown(retry)}",
            field="retry",
            value=retry,
        )
    if delay is not None:
        duration(delay, "delay")
    if isinstance(callback_url, str):  # the store refuses what is no text
        check_callback_url(callback_url)
    if unique is not None and unique not in UNIQUE:
        raise InvalidArgumentError(
            f"unique must be None or one of {', '.join(UNIQUE)}, got {shown(unique)}",
            field="unique",
            value=unique,
        )
    labels(tags)
    _check_key_rule(key)


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


def _ids(jobs: Sequence[str | JobHandle[Any]], field: str) -> tuple[str, ...]:
    if isinstance(jobs, str | bytes) or not isinstance(jobs, Iterable):
        raise InvalidArgumentError(
            f"{field} must be a sequence of ids or handles, got {shown(jobs)}", field=field, value=jobs
        )
    return tuple(each.id if isinstance(each, JobHandle) else each for each in jobs)
