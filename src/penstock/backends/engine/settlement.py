"""What follows when jobs end or come back: dependents are released or share the fate, keys pass on their turn.

Each step saves before the next one reads, so that a row is never held in two versions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from penstock.backends.engine.rows import Gate, Row
from penstock.backends.engine.store import AFTER_ANY, SPAWNED, Transaction, emit, save_rows
from penstock.errors import shown
from penstock.job import CANCELLED, JobStatus
from penstock.lifecycle import Verb
from penstock.policy import FailureCategory

__all__ = ["doom", "end_doomed", "fate_of", "settle", "settle_keys"]

_FATES: Final = {
    JobStatus.FAILED: JobStatus.FAILED,
    JobStatus.DEAD_LETTER: JobStatus.DEAD_LETTER,
} | dict.fromkeys(CANCELLED, JobStatus.UNSCHEDULED)


def fate_of(dependency: Row) -> JobStatus | None:
    """Return what a dependency's final status does to the jobs after it; None if it lets them live."""
    return _FATES.get(JobStatus(dependency.status))


def doom(row: Row, cause: Row, now: int) -> None:
    """End a waiting job the way the job it waits for ended."""
    fate = _FATES[JobStatus(cause.status)]
    row.move(Verb.PROPAGATE, fate, now)
    row.error_message = f"dependency {shown(cause.id)} ended {cause.status}"
    if fate is JobStatus.UNSCHEDULED:
        row.error_category, row.error_code = FailureCategory.CANCELLED.value, "dependency_cancelled"
    else:
        row.error_category, row.error_code = cause.error_category, f"dependency_{fate.value}"


def end_doomed(tx: Transaction, doomed: Sequence[tuple[Row, Row]]) -> None:
    """End stored, waiting jobs for a cause each, and carry on what follows."""
    if not doomed:
        return
    for row, cause in doomed:
        doom(row, cause, tx.now)
    ended = [row for row, _ in doomed]
    tx.drop_edges_of([row.seq for row in ended])
    save_rows(tx, ended)
    settle(tx, ended)


def settle(tx: Transaction, changed: Sequence[Row]) -> None:
    """Carry the consequences of saved changes to the jobs that wait for them."""
    keys = {row.key for row in changed if row.key is not None}
    wave = [row for row in changed if row.closed and row.fan]
    while wave:
        wave = _settle_dependents(tx, wave, keys)
    if keys:
        settle_keys(tx, keys)


def _settle_dependents(tx: Transaction, ended: Sequence[Row], keys: set[str]) -> list[Row]:
    """Release or end the jobs that waited for `ended`; return those that ended and are waited for in turn."""
    causes = {row.seq: row for row in ended}
    rank = {seq: number for number, seq in enumerate(causes)}
    edges = sorted(tx.edges_onto(list(causes)), key=lambda edge: (rank[edge.on_seq], edge.job_seq))
    if not edges:
        return []
    tx.drop_edges_onto(list(causes))
    spawned = [edge for edge in edges if edge.kind == SPAWNED]
    if spawned:
        edges = [edge for edge in edges if edge.kind != SPAWNED]
        failed = [edge for edge in spawned if fate_of(causes[edge.on_seq]) is not None]
        if failed:
            tx.insert_edges(failed)  # jobs that are enqueued later must share the fate
    dependents = tx.rows_by_seq(sorted({edge.job_seq for edge in edges}))
    doomed: dict[int, Row] = {}
    any_met: set[int] = set()
    touched: dict[int, Row] = {}
    for edge in edges:
        row = dependents.get(edge.job_seq)
        if row is None or row.closed:
            continue
        cause = causes[edge.on_seq]
        touched[row.seq] = row
        if edge.kind == AFTER_ANY:
            if row.seq not in any_met:
                any_met.add(row.seq)
                row.unmet -= 1
        elif fate_of(cause) is None:
            row.unmet -= 1
        else:
            doom(row, cause, tx.now)
            doomed[row.seq] = row
    if any_met:
        tx.drop_edges_of(any_met, AFTER_ANY)
    if doomed:
        tx.drop_edges_of(list(doomed))
        save_rows(tx, list(doomed.values()))
    spared = [row for row in touched.values() if row.seq not in doomed]
    for row in spared:
        if row.key is None:
            row.settle_gate(tx.now)
    tx.place(spared)
    emit(tx, (row for row in spared if row.gate == Gate.READY), verb="available")
    keys.update(row.key for row in touched.values() if row.key is not None)
    return [row for row in doomed.values() if row.fan]


def settle_keys(tx: Transaction, keys: Collection[str]) -> None:
    """Give each key's turn to the job that has it, and to no other."""
    by_key: dict[str, list[Row]] = {}
    for row in tx.key_members(keys):
        by_key.setdefault(row.key or "", []).append(row)
    moved: list[Row] = []
    for members in by_key.values():
        turn = _whose_turn(tx, members)
        moved += _give_turn(tx, members, turn)
    if moved:
        moved.sort(key=lambda row: row.seq)  # emitted in their order, whatever that of the keys
        tx.place(moved)
        emit(tx, (row for row in moved if row.gate == Gate.READY), verb="available")


def _whose_turn(tx: Transaction, members: list[Row]) -> Row | None:
    """Return the job that may be claimed next: the first unfinished one, unless one is in flight.

    If the first one waits for a job behind it in the same key, directly or not, that one passes it; otherwise the key
    would never move again.
    """
    if any(row.is_in_flight for row in members):
        return None
    turn = min(members, key=lambda row: row.seq)
    while turn.unmet:
        awaited = tx.first_awaited(turn)
        if awaited is None:
            break
        turn = next((row for row in members if row.seq == awaited.seq), awaited)
    return turn


def _give_turn(tx: Transaction, members: Iterable[Row], turn: Row | None) -> list[Row]:
    moved: list[Row] = []
    rows = {row.seq: row for row in members}
    if turn is not None:
        rows.setdefault(turn.seq, turn)
    for row in rows.values():
        before = (row.gate, row.ready_at)
        row.settle_gate(tx.now, has_turn=turn is not None and row.seq == turn.seq)
        if (row.gate, row.ready_at) != before:
            moved.append(row)
    return moved
