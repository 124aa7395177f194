"""Reports about attempts: each is decided by its row, and fenced by its attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from penstock.backends.contract.values import Failure
from penstock.backends.engine import arguments, decisions
from penstock.backends.engine.decisions import stale
from penstock.backends.engine.rows import STATUSES, Row
from penstock.backends.engine.settlement import settle
from penstock.backends.engine.store import Reach, Transaction, find_row, save_rows
from penstock.durations import duration
from penstock.errors import JobNotFoundError, PenstockError, ReportErrors
from penstock.job import FINAL, IN_FLIGHT, JobStatus
from penstock.lifecycle import Verb, allows, allows_late, refusal

__all__ = [
    "Decision",
    "Outcome",
    "checked_failure",
    "checked_messages",
    "complete",
    "complete_one",
    "freed_or_raise",
    "report",
    "report_one",
    "update_status",
]

Decision = Callable[[Row, Any, int], None]
#: The slots that reports freed, by assignee, and why others were refused.
Outcome = tuple[dict[str, int], list[PenstockError]]

# Where the last attempt may still report: it holds the job, or its outcome is unknown.
MAY_REPORT: Final = IN_FLIGHT | {JobStatus.UNKNOWN_RETRY, JobStatus.UNKNOWN_STOPPED}


def checked_failure(failure: Failure) -> Failure:
    """Return a failure whose facts can be stored."""
    after = failure.retry_after
    return msgspec.structs.replace(
        failure,
        message=arguments.message("error_message", failure.message, required=True),
        category=arguments.category(failure.category),
        code=arguments.optional_text("code", failure.code, arguments.MAX_TYPE),
        retry_after=None if after is None else duration(after, "retry_after"),
    )


def checked_messages(messages: Mapping[str, str]) -> dict[str, str]:
    """Return messages that can be stored, by job id."""
    arguments.mapping("messages", messages)
    return {job_id: arguments.message("error_message", text) for job_id, text in messages.items()}


def freed_or_raise(outcome: Outcome, count: int) -> dict[str, int]:
    """Return what a plural report freed, or raise what of it was refused."""
    freed, errors = outcome
    if errors:
        raise ReportErrors(f"{len(errors)} of {count} reports were refused", errors, freed)
    return freed


def complete_one(
    tx: Transaction, results: Mapping[str, bytes | None], fences: Mapping[str, int]
) -> dict[str, int]:
    """Complete one job."""
    return _only(*complete(tx, results, fences))


def complete(tx: Transaction, results: Mapping[str, bytes | None], fences: Mapping[str, int]) -> Outcome:
    """Complete the simple jobs in one statement and the rest one by one."""
    done = tx.complete_simple({job_id: fences.get(job_id) for job_id in results})
    freed = Counter(assignee for _, _, assignee in done if assignee is not None)
    tx.store_results([(seq, results[job_id]) for job_id, seq, _ in done])
    errors: list[PenstockError] = []
    if len(done) < len(results):
        rest = dict(results)
        for job_id, _, _ in done:
            del rest[job_id]
        also_freed, errors = report(tx, Verb.COMPLETE, rest, fences, decisions.complete)
        freed.update(also_freed)
    return dict(freed), errors


def report_one(
    tx: Transaction, verb: Verb, job_id: str, value: object, attempt: int | None, decide: Decision
) -> dict[str, int]:
    """Decide one report."""
    fences = {} if attempt is None else {job_id: attempt}
    return _only(*report(tx, verb, {job_id: value}, fences, decide))


def report(
    tx: Transaction, verb: Verb, values: Mapping[str, Any], fences: Mapping[str, int], decide: Decision
) -> Outcome:
    """Decide each report by itself; what is refused changes nothing."""
    freed: Counter[str] = Counter()
    late: Counter[str] = Counter()
    errors: list[PenstockError] = []
    changed: list[Row] = []
    tx.expect(Reach.NEXT if verb is Verb.COMPLETE else Reach.ALL)
    rows = tx.rows(values.keys())
    for job_id, value in values.items():
        row = rows.get(job_id)
        error = _objection(verb, job_id, row, fences.get(job_id))
        if error is not None or row is None:
            errors.append(error or JobNotFoundError(job_id))
            continue
        if row.assignee_id is not None:
            (freed if row.is_in_flight else late)[row.assignee_id] += 1
        decide(row, value, tx.now)
        changed.append(row)
    save_rows(tx, changed)
    if verb is Verb.COMPLETE:
        tx.store_results([(row.seq, values[row.id]) for row in changed])
    settle(tx, changed)
    if late:
        tx.revive(late)  # a report on a reclaimed job is a sign of life
    return dict(freed), errors


def update_status(
    tx: Transaction,
    job_id: str,
    target: JobStatus,
    result: bytes | None,
    message: str,
    attempt: int | None,
) -> dict[str, int]:
    """Move a job along a legal edge that no other verb covers."""
    tx.expect(Reach.ALL)
    row = find_row(tx, job_id)
    source = JobStatus(row.status)
    if attempt is not None and (attempt != row.attempt or source not in MAY_REPORT):
        raise stale(Verb.UPDATE_STATUS, row, attempt)
    if source is target and target not in FINAL:
        return {}
    if not allows(Verb.UPDATE_STATUS, source, target):
        raise refusal(Verb.UPDATE_STATUS, job_id, source, target)
    if target is JobStatus.CANCELLING and source.is_final and row.key is not None:
        tx.lock_keys([row.key])
        if any(member.is_in_flight for member in tx.key_members([row.key])):
            raise refusal(Verb.UPDATE_STATUS, job_id, source, target)
    frees = source.holds_slot and target in decisions.FREEING_UPDATES
    decisions.update_status(row, target, message, tx.now)
    save_rows(tx, [row])
    if row.closed and row.unmet:
        tx.drop_edges_of([row.seq])  # it waits for nothing any more
    if result is not None:
        tx.store_results([(row.seq, result)])
    settle(tx, [row])
    return {row.assignee_id: 1} if frees and row.assignee_id is not None else {}


def _only(freed: dict[str, int], errors: list[PenstockError]) -> dict[str, int]:
    """Return what a single report freed, or raise why it was refused."""
    if errors:
        raise errors[0]
    return freed


def _objection(verb: Verb, job_id: str, row: Row | None, attempt: int | None) -> PenstockError | None:
    """Return why a report is refused, or None."""
    if row is None:
        return JobNotFoundError(job_id)
    status = STATUSES[row.status]
    allowed = allows(verb, status) or (attempt is not None and allows_late(verb, status, row.verb))
    if attempt is not None and (attempt != row.attempt or not (allowed or row.is_in_flight)):
        return stale(verb, row, attempt)
    return None if allowed else refusal(verb, job_id, status)
