"""Writing many rows at once: jobs by COPY, payloads, results and checkpoints by COPY or as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.backends._rows import COLUMNS, Gate, Row
from penstock.backends._store import Blobs
from penstock.backends.postgres.core import CoreTransaction

__all__ = ["copy_jobs", "upsert", "write_blobs"]

_COPIED: Final = 20


def copy_jobs(tx: CoreTransaction, rows: Sequence[Row]) -> None:
    """Append jobs; the trigger journals and tags them."""
    with tx.connection.cursor().copy(tx.text("COPY {schema}.job ({columns}, late) FROM STDIN")) as copy:
        for row in rows:
            is_late = row.gate == Gate.READY and (tx.is_long or row.order_at != tx.now)
            copy.write_row([*(getattr(row, name) for name in COLUMNS), is_late])


def write_blobs(tx: CoreTransaction, seqs: Sequence[int], blobs: Sequence[Blobs]) -> None:
    """Store what new jobs bring along."""
    pairs = list(zip(seqs, blobs, strict=True))
    for table, values in (
        ("payload", [(seq, each.payload) for seq, each in pairs if each.payload]),
        ("result", [(seq, each.result) for seq, each in pairs if each.result is not None]),
        ("checkpoint", [(seq, each.checkpoint) for seq, each in pairs if each.checkpoint is not None]),
    ):
        if len(values) < _COPIED:
            if values:
                upsert(tx, table, values)
            continue
        with tx.connection.cursor().copy(
            tx.text("COPY {schema}." + table + " (seq, data) FROM STDIN BINARY")
        ) as copy:
            copy.set_types(["int8", "bytea"])
            for value in values:
                copy.write_row(value)


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
