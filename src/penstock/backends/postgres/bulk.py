"""Writing many rows at once: jobs by COPY, payloads, results and checkpoints by COPY or as arrays.

Lines of COPY are put together here, not by the driver: that takes a third of its time, and most of a bulk submission's
time is spent on the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from penstock.backends._rows import Gate, Row
from penstock.backends._store import Blobs
from penstock.backends.postgres.core import CoreTransaction
from penstock.backends.postgres.plain import plain_row
from penstock.job import Job

__all__ = ["copy_plain", "copy_rows", "upsert", "write_blobs"]

_COPIED: Final = 20
_NULL: Final = "\\N"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
_PLAIN_COLUMNS: Final = (
    "seq, id, type, tags, priority, max_attempts, retry, execution, visibility, lifetime, expires_at,"
    " order_at, created_at, updated_at, ready_at, gate, late"
)


def copy_rows(tx: CoreTransaction, rows: Sequence[Row]) -> None:
    """Store jobs, journal and tag them."""
    lines = [
        "\t".join(map(_field, msgspec.structs.astuple(row))) + ("\tt\n" if _is_late(tx, row) else "\tf\n")
        for row in rows
    ]
    _copy(tx, "job ({columns}, late)", lines)
    _follow_up(tx, [row.seq for row in rows], is_tagged=any(row.tags != "[]" for row in rows))


def copy_plain(tx: CoreTransaction, jobs: Sequence[Job], seqs: Sequence[int]) -> None:
    """Store plain jobs with their payloads, journal and tag them."""
    now = tx.now
    late = "t" if tx.is_long else "f"
    ending = f"\t{now}\t{now}\t{now}\t{now}\t0\t{late}\n"
    lines = []
    payloads = []
    for job, seq in zip(jobs, seqs, strict=True):
        row = plain_row(job, with_payload=False)
        expires_at = None if row.lifetime is None else now + row.lifetime
        lines.append(
            f"{seq}\t{_text(row.id)}\t{_text(row.type)}\t{_text(row.tags)}\t{row.priority}"
            f"\t{_field(row.max_attempts)}\t{_field(row.retry)}\t{_field(row.execution)}\t{_field(row.visibility)}"
            f"\t{_field(row.lifetime)}\t{_field(expires_at)}{ending}"
        )
        if job.payload:
            payloads.append(f"{seq}\t\\\\x{job.payload.hex()}\n")
    _copy(tx, f"job ({_PLAIN_COLUMNS})", lines)
    if payloads:
        _copy(tx, "payload (seq, data)", payloads)
    _follow_up(tx, seqs, is_tagged=any(job.tags for job in jobs))


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
        {"seqs": [seq for seq, _ in values], "data": [data for _, data in values]},
    )


def _follow_up(tx: CoreTransaction, seqs: Sequence[int], *, is_tagged: bool) -> None:
    tx.execute(tx.context.copied(is_tagged=is_tagged), {"seqs": list(seqs)})


def _copy(tx: CoreTransaction, target: str, lines: Iterable[str]) -> None:
    with tx.connection.cursor().copy(tx.text("COPY {schema}." + target + " FROM STDIN")) as copy:
        copy.write("".join(lines))


def _is_late(tx: CoreTransaction, row: Row) -> bool:
    return row.gate == Gate.READY and (tx.is_long or row.order_at != tx.now)


def _field(value: Any) -> str:
    if value is None:
        return _NULL
    return _text(value) if type(value) is str else str(int(value))


def _text(value: str) -> str:
    """Return text as a field of COPY; most holds nothing to escape."""
    return value if value.isprintable() and "\\" not in value else value.translate(_ESCAPES)
