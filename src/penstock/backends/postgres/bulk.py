"""Writing many rows at once: jobs by COPY, payloads, results and checkpoints by COPY or as arrays.

Lines of COPY are put together here, not by the driver: that takes a third of its time, and most of a bulk submission's
time is spent on the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import msgspec

from penstock.backends._rows import Gate, Row, encode_policy, encode_strings, encode_timeouts
from penstock.backends._store import Blobs
from penstock.backends.postgres.core import CoreTransaction
from penstock.backends.postgres.fast import numbers
from penstock.job import Job
from penstock.policy import RetryPolicy, Timeouts

__all__ = ["copy_plain", "copy_rows", "upsert", "write_blobs"]

_COPIED: Final = 20
_PIECE: Final = 250
_NULL: Final = "\\N"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
_PLAIN_COLUMNS: Final = (
    "seq, id, type, tags, priority, max_attempts, retry, execution, visibility, lifetime, expires_at,"
    " order_at, created_at, updated_at, ready_at, gate, late"
)


def copy_rows(tx: CoreTransaction, rows: Sequence[Row]) -> None:
    """Store jobs, journal and tag them."""
    lines = (
        "\t".join(map(_field, msgspec.structs.astuple(row))) + ("\tt\n" if _is_late(tx, row) else "\tf\n")
        for row in rows
    )
    _copy(tx, "job ({columns}, late)", lines)
    _follow_up(tx, [row.seq for row in rows], is_tagged=any(row.tags != "[]" for row in rows))


def copy_plain(tx: CoreTransaction, jobs: Sequence[Job], seqs: Sequence[int]) -> None:
    """Store plain jobs with their payloads, journal and tag them."""
    _copy(tx, f"job ({_PLAIN_COLUMNS})", _plain_lines(tx, jobs, seqs))
    _copy(
        tx,
        "payload (seq, data)",
        (f"{seq}\t\\\\x{job.payload.hex()}\n" for job, seq in zip(jobs, seqs, strict=True) if job.payload),
    )
    _follow_up(tx, seqs, is_tagged=any(job.tags for job in jobs))


def _plain_lines(tx: CoreTransaction, jobs: Sequence[Job], seqs: Sequence[int]) -> Iterator[str]:
    now = tx.now
    ending = f"\t{now}\t{now}\t{now}\t{now}\t0\t{'t' if tx.is_long else 'f'}\n"
    for job, seq in zip(jobs, seqs, strict=True):
        yield (
            f"{seq}\t{_text(job.id)}\t{_text(job.type)}\t{_text(encode_strings(job.tags))}\t{int(job.priority)}"
            f"\t{_policy_fields(job.retry)}\t{_timeout_fields(job.timeouts, now)}{ending}"
        )


@lru_cache(maxsize=256)
def _policy_fields(retry: RetryPolicy | None) -> str:
    return f"{_NULL}\t{_NULL}" if retry is None else f"{retry.max_attempts}\t{_text(encode_policy(retry))}"


@lru_cache(maxsize=256)
def _timeout_fields(timeouts: Timeouts, now: int) -> str:
    """Return execution, visibility, lifetime and the end of a lifetime that begins now."""
    fields = encode_timeouts(timeouts)
    expires_at = None if fields[2] is None else now + fields[2]
    return "\t".join(map(_field, (*fields, expires_at)))


def write_blobs(tx: CoreTransaction, seqs: Sequence[int], blobs: Sequence[Blobs]) -> None:
    """Store what new jobs bring along."""
    pairs = list(zip(seqs, blobs, strict=True))
    for table, values in (
        ("payload", [(seq, each.payload) for seq, each in pairs if each.payload]),
        ("result", [(seq, each.result) for seq, each in pairs if each.result is not None]),
        ("checkpoint", [(seq, each.checkpoint) for seq, each in pairs if each.checkpoint is not None]),
    ):
        if len(values) >= _COPIED:
            _copy(tx, f"{table} (seq, data)", [f"{seq}\t\\\\x{data.hex()}\n" for seq, data in values])
        elif values:
            upsert(tx, table, values)


def upsert(tx: CoreTransaction, table: str, values: Sequence[tuple[int, bytes]]) -> None:
    """Set blobs by insertion number."""
    tx.execute(
        tx.text(
            "INSERT INTO {schema}." + table + " (seq, data)"
            " SELECT * FROM unnest(%(seqs)s::bigint[], %(data)s::bytea[])"
            " ON CONFLICT (seq) DO UPDATE SET data = excluded.data"
        ),
        {"seqs": numbers(seq for seq, _ in values), "data": [data for _, data in values]},
    )


def _follow_up(tx: CoreTransaction, seqs: Sequence[int], *, is_tagged: bool) -> None:
    tx.execute(tx.context.copied(is_tagged=is_tagged), {"seqs": numbers(seqs)})


def _copy(tx: CoreTransaction, target: str, lines: Iterable[str]) -> None:
    """Send lines in pieces, so that the server stores the first while the next are put together."""
    source = iter(lines)
    piece = list(islice(source, _PIECE))
    if not piece:
        return
    with tx.connection.cursor().copy(tx.text("COPY {schema}." + target + " FROM STDIN")) as copy:
        while piece:
            copy.write("".join(piece))
            piece = list(islice(source, _PIECE))


def _is_late(tx: CoreTransaction, row: Row) -> bool:
    return row.gate == Gate.READY and (tx.is_long or row.order_at != tx.now)


def _field(value: Any) -> str:
    if value is None:
        return _NULL
    return _text(value) if type(value) is str else str(int(value))


def _text(value: str) -> str:
    """Return text as a field of COPY; most holds nothing to escape."""
    return value if value.isprintable() and "\\" not in value else value.translate(_ESCAPES)
