"""What a journal row says by itself, as bits of one number: `flags`.

Two passes look at the rows, a narrow one at all of them and a wide one at a few. The narrow one moves numbers alone, so
whatever needs a row's words is decided before, here, for both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.job import FINAL, JobStatus
from penstock.lifecycle import MOVES, Verb
from penstock.spark.transforms._rows import REMOVES, TAKES, among_text, final, in_flight, quoted, waiting

__all__ = ["flag", "flags_of"]


def _legal_moves() -> list[str]:
    """Return the published moves, and the two kinds of rows that keep the status, as texts."""
    moves = [(move.verb, move.source, move.target) for move in MOVES if move.source is not None]
    moves += [(verb, status, status) for verb in REMOVES for status in FINAL]
    moves += [(Verb.UPDATE, status, status) for status in JobStatus if status not in FINAL]
    return [f"{verb.value}>{source.value}>{target.value}" for verb, source, target in moves]


_CONDITIONS: Final = {
    "enqueues": f"verb = '{Verb.ENQUEUE}'",
    "claims": f"verb = '{Verb.CLAIM}'",
    "takes": among_text("verb", TAKES),
    "removes": among_text("verb", REMOVES),
    "is_waiting": waiting(),
    "is_in_flight": in_flight(),
    "is_final": final(),
    "was_in_flight": in_flight("from_status"),
    "was_final": final("from_status"),
    "succeeds": f"status = '{JobStatus.COMPLETED}' AND NOT {among_text('verb', REMOVES)}",
    "is_first": f"verb = '{Verb.ENQUEUE}' AND n = 1 AND from_status IS NULL",
    "is_legal": "from_status IS NOT NULL AND "
    + among_text("concat_ws('>', verb, from_status, status)", _legal_moves()),
    "is_cut": "",
}
_BITS: Final = {name: 1 << place for place, name in enumerate(_CONDITIONS)}


def flags_of(cut: Iterable[str] = ()) -> str:
    """Return the expression for a row's flags.

    Args:
        cut: the sources from which histories were archived: there a job may go on whose beginning has left the journal
            (`is_cut`).
    """
    among = ", ".join(map(quoted, cut))
    is_cut = f"source IN ({among}) AND n > 1 AND verb <> '{Verb.ENQUEUE}'" if among else "false"
    conditions = _CONDITIONS | {"is_cut": is_cut}
    bits = (f"CASE WHEN {condition} THEN {_BITS[name]} ELSE 0 END" for name, condition in conditions.items())
    return f"({' | '.join(bits)}) AS flags"


def flag(name: str, column: str = "flags") -> str:
    """Return the condition that a row has a flag."""
    return f"(({column} & {_BITS[name]}) <> 0)"
