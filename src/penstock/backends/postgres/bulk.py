"""Writing many rows at once: by COPY, or a few blobs as arrays.

What COPY sends is put together here, not by the driver: that takes a third of its time. Of plain jobs most fields are
alike, so these are put together once. Their journal and tag rows are copied too: COPY fills whole pages at once, where
INSERT … SELECT writes and logs row by row. Payloads go in the binary form, which for them is half as long; for rows of
many small fields the server takes longer over that than over text.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from penstock.backends.engine.rows import Gate, Row
from penstock.backends.engine.store import Blobs
from penstock.backends.engine.writes import ENQUEUE, FIRST_ENTRY, value_of
from penstock.backends.postgres.plain_jobs import plain_row
from penstock.backends.postgres.prepared import numbers
from penstock.backends.postgres.statements import PLAIN_COLUMNS, PLAIN_ENTRY
from penstock.backends.postgres.transaction_base import BaseTransaction
from penstock.job import Job

__all__ = ["copy_plain", "copy_rows", "upsert", "write_blobs"]

_COPIED: Final = 20
_PIECE: Final = 250
_NULL: Final = "\\N"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
# What follows number and id in a plain job's line, and in that of its first journal row.
_PLAIN_TAIL: Final = tuple(ENQUEUE[name] for name in PLAIN_COLUMNS[2:])
_ENTRY_TAIL: Final = tuple(ENQUEUE[FIRST_ENTRY[name]] for name in PLAIN_ENTRY)[2:]
# COPY's binary form: a record is the number of its fields, then for each its length and its bytes.
_BINARY_HEAD: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_BINARY_END: Final = b"\xff\xff"
_PAYLOAD_HEAD: Final = struct.Struct(">hiqi").pack


def copy_rows(tx: BaseTransaction, rows: Sequence[Row]) -> None:
    """Store jobs, journal and tag them."""
    lines = (_line((*msgspec.structs.astuple(row), "t" if _is_late(tx, row) else "f")) for row in rows)
    _copy(tx, "job ({columns}, late)", lines)
    _follow_up(tx, [row.seq for row in rows], is_tagged=any(row.tags != "[]" for row in rows))


def copy_plain(tx: BaseTransaction, jobs: Sequence[Job], seqs: Sequence[int]) -> None:
    """Store plain jobs with their payloads, journal and tag them."""
    journal: list[str] = []
    _copy(tx, "job ({plain_columns}, late)", _plain_lines(tx, jobs, seqs, journal))
    _copy_payloads(tx, jobs, seqs)
    _copy(tx, "journal_inbox ({plain_entry})", journal)
    if any(job.tags for job in jobs):
        _copy_tags(tx, jobs, seqs)


def _plain_lines(
    tx: BaseTransaction, jobs: Sequence[Job], seqs: Sequence[int], journal: list[str]
) -> Iterator[str]:
    """Yield the jobs' lines, and append those of the journal to the list."""
    now, is_long = tx.now, tx.is_long
    alike: dict[tuple[Any, ...], tuple[str, str]] = {}
    for job, seq in zip(jobs, seqs, strict=True):
        # By the identity of policy and timeouts, which is quick; the jobs keep them alive.
        kind = (job.type, job.tags, job.priority, id(job.retry), id(job.timeouts))
        tails = alike.get(kind)
        if tails is None:
            tails = alike[kind] = _tails(job, now, is_long=is_long)
        head = f"{seq}\t{_text(job.id)}\t"
        journal.append(head + tails[1])
        yield head + tails[0]


def _tails(job: Job, now: int, *, is_long: bool) -> tuple[str, str]:
    """Return what follows number and id in a job's line, and in that of its first journal row."""
    given = {**msgspec.structs.asdict(plain_row(job, with_payload=False)), "now": now}
    in_job = [value_of(text, given) for text in _PLAIN_TAIL]
    in_journal = [value_of(text, given) for text in _ENTRY_TAIL]
    return _line((*in_job, "t" if is_long else "f")), _line(in_journal)


def _copy_payloads(tx: BaseTransaction, jobs: Sequence[Job], seqs: Sequence[int]) -> None:
    records: list[bytes] = []
    for job, seq in zip(jobs, seqs, strict=True):
        payload = bytes(job.payload)
        if payload:
            records += (_PAYLOAD_HEAD(2, 8, seq, len(payload)), payload)
    if records:
        command = tx.text("COPY {schema}.payload (seq, data) FROM STDIN (FORMAT binary)")
        with tx.connection.cursor().copy(command) as copy:
            copy.write(b"".join((_BINARY_HEAD, *records, _BINARY_END)))


def _copy_tags(tx: BaseTransaction, jobs: Sequence[Job], seqs: Sequence[int]) -> None:
    tagged = [(job, seq, _text(tag)) for job, seq in zip(jobs, seqs, strict=True) for tag in job.tags]
    now = tx.now
    _copy(tx, "job_tag (tag, seq)", (f"{tag}\t{seq}\n" for _, seq, tag in tagged))
    _copy(
        tx,
        "ready_tag (tag, priority, order_at, seq)",
        (f"{tag}\t{int(job.priority)}\t{now}\t{seq}\n" for job, seq, tag in tagged),
    )


def _line(values: Sequence[Any]) -> str:
    return "\t".join(map(_field, values)) + "\n"


def write_blobs(tx: BaseTransaction, seqs: Sequence[int], blobs: Sequence[Blobs]) -> None:
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


def upsert(tx: BaseTransaction, table: str, values: Sequence[tuple[int, bytes]]) -> None:
    """Set blobs by insertion number."""
    tx.execute(
        tx.text(
            "INSERT INTO {schema}." + table + " (seq, data)"
            " SELECT * FROM unnest(%(seqs)s::bigint[], %(data)s::bytea[])"
            " ON CONFLICT (seq) DO UPDATE SET data = excluded.data"
        ),
        {"seqs": numbers(seq for seq, _ in values), "data": [data for _, data in values]},
    )


def _follow_up(tx: BaseTransaction, seqs: Sequence[int], *, is_tagged: bool) -> None:
    tx.execute(tx.shared.copied(is_tagged=is_tagged), {"seqs": numbers(seqs)})


def _copy(tx: BaseTransaction, target: str, lines: Iterable[str]) -> None:
    """Send lines in pieces, so that the server stores the first while the next are put together."""
    source = iter(lines)
    piece = list(islice(source, _PIECE))
    if not piece:
        return
    with tx.connection.cursor().copy(tx.text("COPY {schema}." + target + " FROM STDIN")) as copy:
        while piece:
            copy.write("".join(piece))
            piece = list(islice(source, _PIECE))


def _is_late(tx: BaseTransaction, row: Row) -> bool:
    return row.gate == Gate.READY and (tx.is_long or row.order_at != tx.now)


def _field(value: Any) -> str:
    if value is None:
        return _NULL
    return _text(value) if type(value) is str else str(int(value))


def _text(value: str) -> str:
    """Return text as a field of COPY; most holds nothing to escape."""
    return value if value.isprintable() and "\\" not in value else value.translate(_ESCAPES)
