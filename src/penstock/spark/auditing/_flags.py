"""Facts about a single journal row as bits of one number: `flags`.

Two passes read the rows: a narrow one all of them, a wide one a few. The narrow one shuffles numbers only, so everything
that needs a row's texts is evaluated here, before both.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from penstock.job import FINAL, JobStatus
from penstock.lifecycle import ENQUEUES, LATE_MOVES, LOST_BY_SILENCE, MOVES, Verb
from penstock.spark.transforms.rows import REMOVES, TAKES, among_text, final, in_flight, quoted, waiting

__all__ = ["flag", "flags_of"]


def _legal_moves() -> list[str]:
    """Return the legal moves, and the rows that keep the status, as texts."""
    moves = [(move.verb, move.source, move.target) for move in MOVES if move.source is not None]
    moves += [(verb, status, status) for verb in REMOVES for status in FINAL]
    moves += [(Verb.UPDATE, status, status) for status in JobStatus if status not in FINAL]
    return [_text(*move) for move in moves]


def _text(verb: Verb, source: JobStatus, target: JobStatus) -> str:
    return f"{verb.value}>{source.value}>{target.value}"


_CONDITIONS: Final = {
    "enqueues": among_text("verb", ENQUEUES),
    "is_unique": f"verb = '{Verb.ENQUEUE_UNIQUE}'",
    "claims": f"verb = '{Verb.CLAIM}'",
    "takes": among_text("verb", TAKES),
    "removes": among_text("verb", REMOVES),
    "is_waiting": waiting(),
    "is_in_flight": in_flight(),
    "is_final": final(),
    "was_in_flight": in_flight("from_status"),
    "was_final": final("from_status"),
    "succeeds": f"status = '{JobStatus.COMPLETED}' AND NOT {among_text('verb', REMOVES)}",
    "is_first": among_text("verb", ENQUEUES) + " AND n = 1 AND from_status IS NULL",
    "is_legal": "from_status IS NOT NULL AND "
    + among_text("concat_ws('>', verb, from_status, status)", _legal_moves()),
    "starts_early": "",
    "ends_early": "",
    "loses": among_text("verb", LOST_BY_SILENCE),
    "is_late": among_text(
        "concat_ws('>', verb, from_status, status)",
        [_text(move.verb, move.source, move.target) for move in LATE_MOVES],
    ),
    "is_cut": "",
}
_BITS: Final = {name: 1 << place for place, name in enumerate(_CONDITIONS)}


def flags_of(cut: Iterable[str] = (), slack: timedelta = timedelta(0)) -> str:
    """Return the expression for a row's flags.

    Args:
        cut: the sources with archived histories, where the first rows of a job may be missing (`is_cut`).
        slack: how far clocks may disagree (`starts_early`, `ends_early`).
    """
    allowed = f"INTERVAL {slack // timedelta(microseconds=1)} MICROSECOND"
    among = ", ".join(map(quoted, cut))
    begins = among_text("verb", ENQUEUES)
    is_cut = f"source IN ({among}) AND n > 1 AND NOT {begins}" if among else "false"
    conditions = _CONDITIONS | {
        "starts_early": f"started_at < ready_at - {allowed}",
        "ends_early": f"recorded_at < started_at - {allowed}",
        "is_cut": is_cut,
    }
    bits = (f"CASE WHEN {condition} THEN {_BITS[name]} ELSE 0 END" for name, condition in conditions.items())
    return f"({' | '.join(bits)}) AS flags"


def flag(name: str, column: str = "flags") -> str:
    """Return the condition that a row has a flag."""
    return f"(({column} & {_BITS[name]}) <> 0)"
