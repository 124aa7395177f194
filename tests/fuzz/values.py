"""Values that no argument should choke on, and a caller that tries each of them in the place of each argument."""

import inspect
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

from penstock import Job, JobStatus, PenstockError
from penstock.errors import ReportErrors


class BrokenRepr:
    """Cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no text for you")


class BrokenHash:
    """Cannot be looked up."""

    def __hash__(self) -> int:
        raise RuntimeError("no hash for you")


class TextOfOwn(str):
    """Looks like text."""

    __slots__ = ()


_HUGE = 10**5000
NUMBERS: list[Any] = [
    _HUGE, -_HUGE, 10**400, 2**64, 2**63, 2**31, -1, 0, True, float("nan"), float("inf"), -float("inf"), 1e308,
    Decimal("1e99999"), Decimal("nan"), Fraction(_HUGE, 3), 1 + 1j,
]  # fmt: skip
TEXTS: list[Any] = [
    "", "\0", "\ud800", "x" * 100_000, "5" * 5000, "9" * 400 + "h", "1e999s", "running", TextOfOwn("running-1"),
    b"x", b"\xff", bytearray(b"x"),
]  # fmt: skip
TIMES: list[Any] = [
    datetime(2030, 1, 1), datetime.min, datetime.max, datetime.min.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
    timedelta.max, timedelta.min, timedelta(0),
]  # fmt: skip
COLLECTIONS: list[Any] = [
    [], {}, (), [5], ["\0"], ["\ud800"], ["x" * 10_000], [None], [[]], [_HUGE], [BrokenRepr()], [BrokenHash()],
    {5: 5}, {_HUGE: 1}, {"\0": 1}, {"running-1": _HUGE}, {"running-1": -1}, {"running-1": None},
    {"running-1": ["a"]}, {"running-1": "x"}, {1, 2}, range(3),
]  # fmt: skip
OBJECTS: list[Any] = [
    None, object(), int, len, BrokenRepr(), BrokenHash(), JobStatus.RUNNING, Job(id="x", type="t"),
    Job(id="y", type="t", attempt=_HUGE), [Job(id="z", type="t", progress=_HUGE)],
]  # fmt: skip
VALUES: list[Any] = [*NUMBERS, *TEXTS, *TIMES, *COLLECTIONS, *OBJECTS]
#: One of each kind, for stores on which a call takes long.
FEW: list[Any] = [
    _HUGE, -1, True, float("nan"), "", "\0", "\ud800", "x" * 100_000, b"\xff", datetime(2030, 1, 1),
    datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), timedelta.max, [5], ["\0"], [None],
    {5: 5}, {"running-1": _HUGE}, None, BrokenRepr(), Job(id="y", type="t", attempt=_HUGE),
]  # fmt: skip
LONGEST_MESSAGE = 3000


def arguments_of(call: Callable[..., Any]) -> list[str]:
    """Return the names that a call can be given arguments by."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, each in inspect.signature(call).parameters.items() if each.kind in named]


def misbehaviour(
    call: Callable[..., Any],
    good: dict[str, Any],
    arguments: Iterable[str] | None = None,
    *,
    after_refusal: Callable[[BaseException], None] = lambda error: None,
    after_success: Callable[[], None] = lambda: None,
    values: Iterable[Any] = VALUES,
) -> list[str]:
    """Call with every value in the place of every argument, one at a time; return what raised an error not ours.

    Args:
        call: what to call.
        good: arguments with which it can be called.
        arguments: which ones to replace; by default, all of them.
        after_refusal: called after each error, with it.
        after_success: called after each call that raised none.
        values: what to put there.
    """
    wrong: list[str] = []
    values = list(values)
    for name in arguments_of(call) if arguments is None else arguments:
        for value in values:
            error = _error_of(call, {**good, name: value})
            if error is None:
                after_success()
                continue
            after_refusal(error)
            if not isinstance(error, PenstockError | ReportErrors):
                wrong.append(f"{name}={_short(value)}: {type(error).__name__}: {error}"[:300])
            elif isinstance(error, PenstockError) and len(str(error)) > LONGEST_MESSAGE:
                wrong.append(f"{name}={_short(value)}: a message of {len(str(error))} characters")
    return wrong


def _error_of(call: Callable[..., Any], arguments: dict[str, Any]) -> BaseException | None:
    try:
        result = call(**arguments)
        if inspect.isgenerator(result):
            next(result, None)
    except Exception as error:
        return error
    if hasattr(result, "close"):
        result.close()
    return None


def _short(value: object) -> str:
    try:
        return repr(value)[:60]
    except Exception:
        return f"<{type(value).__name__}>"
