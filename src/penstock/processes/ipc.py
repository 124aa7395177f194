"""The variables that a job and its queue share, as users see them: a mapping of five variables and one lock."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from multiprocessing.managers import SyncManager
from typing import Any, Final, Self

from penstock.errors import invalid, shown
from penstock.payloads.json import encode_json
from penstock.processes._shared_state import LOCK_SECONDS, JobLock, SharedState
from penstock.processes.types import JobCommand, check_progress, check_status

__all__ = [
    "JobLock",
    "SharedState",
    "SharedVariable",
    "create_job_shared_state",
    "get_manager",
    "with_job_lock",
]

VARIABLES: Final = ("status", "command", "progress", "description", "result")


class SharedVariable:
    """One variable of a job's shared state: `.value` reads and writes it, under the job's lock.

    Progress never decreases while the job runs: writing a lower figure than before changes nothing.
    """

    def __init__(self, state: SharedState, name: str) -> None:
        self.state = state
        self.name = name

    @property
    def value(self) -> Any:
        """The value of the variable."""
        return getattr(self.state.read(), self.name)

    @value.setter
    def value(self, wanted: Any) -> None:
        self.state.write(**{self.name: _checked(self.name, wanted)})

    def get(self) -> Any:
        """Return the value of the variable."""
        return self.value

    def set(self, wanted: Any) -> None:
        """Change the variable."""
        self.value = wanted

    def __repr__(self) -> str:
        return f"<SharedVariable {self.name} = {shown(self.value)}>"


class _StateMutex:
    """The lock of a state, as an entry of its mapping; it is passed on with the rest."""

    def __init__(self, state: SharedState) -> None:
        self.state = state

    def acquire(self, timeout: float = LOCK_SECONDS) -> bool:
        """See `JobLock.acquire`."""
        return self.state.lock.acquire(timeout)

    def release(self) -> None:
        """See `JobLock.release`."""
        self.state.lock.release()

    def __enter__(self) -> Self:
        self.state.lock.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class StateManager:
    """Makes the shared state of jobs. One per process; it needs no process of its own."""

    def new_state(self) -> SharedState:
        """Return memory for one more job."""
        state = SharedState()
        state.share()
        return state


@functools.cache
def get_manager() -> StateManager:
    """Return this process's `StateManager`."""
    return StateManager()


def create_job_shared_state(manager: StateManager | SyncManager) -> dict[str, Any]:
    """Return the shared variables of a new job: status, command, progress, description, result, and its mutex.

    The mapping may be passed to any process, by fork or as an argument of a `multiprocessing.Process`.

    Args:
        manager: from `get_manager()`, or a `multiprocessing.Manager()`. The variables are the same either way: they lie
            in memory that needs no process of a manager.
    """
    if not isinstance(manager, StateManager | SyncManager):
        raise invalid("manager", "one of get_manager() or multiprocessing.Manager()", manager)
    return variables_of(get_manager().new_state())


def variables_of(state: SharedState) -> dict[str, Any]:
    """Return a state as the mapping that users see."""
    variables: dict[str, Any] = {name: SharedVariable(state, name) for name in VARIABLES}
    variables["mutex"] = _StateMutex(state)
    return variables


def with_job_lock(shared_state: dict[str, Any]) -> contextlib.AbstractContextManager[dict[str, Any]]:
    """Hold a job's mutex, so that what is read and written inside belongs together.

    Raises:
        InvalidArgumentError: the argument is not a mapping with a `mutex`.
        ProcessControlError: the lock was not free for 10 s.
    """
    mutex: Any = shared_state.get("mutex") if isinstance(shared_state, Mapping) else None
    if not (hasattr(mutex, "__enter__") and hasattr(mutex, "__exit__")):
        raise invalid(
            "shared_state", "a mapping with a mutex, as create_job_shared_state returns it", shared_state
        )
    return _locked(shared_state, mutex)


@contextlib.contextmanager
def _locked(
    shared_state: dict[str, Any], mutex: contextlib.AbstractContextManager[Any]
) -> Iterator[dict[str, Any]]:
    with mutex:
        yield shared_state


def _checked(name: str, value: Any) -> Any:
    if name == "status":
        return check_status(value)
    if name == "command":
        return _check_command(value)
    if name == "progress":
        return check_progress(value)
    if name == "description" and not (value is None or isinstance(value, str)):
        raise invalid("description", "text or None", value)
    encode_json(value, name)
    return value


def _check_command(value: object) -> JobCommand:
    if type(value) is int or isinstance(value, JobCommand):
        try:
            return JobCommand(value)
        except ValueError:
            pass  # the error below names it
    raise invalid("command", "a JobCommand", value)
