"""What each job's own rows decide: invariants 1 to 9, 11 and 12. One pass over the rows of each job, in order."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from penstock.job import FINAL, JobStatus
from penstock.lifecycle import MOVES, Verb
from penstock.spark.auditing._words import Check, row_text
from penstock.spark.transforms._rows import REMOVES, TAKES, among, is_final, is_in_flight, is_waiting

__all__ = ["ORIGIN", "STATE", "checked_rows", "history_checks", "left_over"]

#: What the fold of a job's rows is compared in.
STATE: Final = (
    "n",
    "type",
    "status",
    "attempt",
    "retry_count",
    "failures",
    "max_attempts",
    "priority",
    "key",
    "tags",
    "idempotency_key",
    "assignee_id",
    "error_category",
    "error_code",
    "error_message",
)
ORIGIN: Final = ("after", "after_any", "parent_id")
_SEEN: Final = (
    "seq",
    "n",
    "verb",
    "from_status",
    "status",
    "attempt",
    "assignee_id",
    "recorded_at",
    "retry_count",
    "failures",
    "due_at",
)
#: What is asked of a history's first row, and what of it is never null.
_FIRST: Final = ("seq", "failures", "max_attempts", *ORIGIN, "began")
_NEVER_NULL: Final = ("seq", "failures", "began")


def _legal_moves() -> list[str]:
    """Return the published moves, and the two kinds of rows that keep the status, as texts."""
    moves = [(move.verb, move.source, move.target) for move in MOVES if move.source is not None]
    moves += [(verb, status, status) for verb in REMOVES for status in FINAL]
    moves += [(Verb.UPDATE, status, status) for status in JobStatus if status not in FINAL]
    return [f"{verb.value}>{source.value}>{target.value}" for verb, source, target in moves]


def checked_rows(events: DataFrame) -> DataFrame:
    """Return the journal with what each row needs to know of the rows before it: one shuffle, one sort.

    Every column of an earlier row is looked up by itself, and the structs are put together at the end: what nobody asks
    for is then never carried along, so that a pass which only asks whether something is wrong moves few bytes.
    """
    by_job = Window.partitionBy("source", "job_id").orderBy("seq")
    so_far = by_job.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = by_job.rowsBetween(Window.unboundedPreceding, -1)
    removed = F.coalesce(F.lag(among("verb", REMOVES)).over(by_job), F.lit(True))
    is_success = (F.col("status") == JobStatus.COMPLETED.value) & ~among("verb", REMOVES)
    first = tuple(name for name in _FIRST if name in events.columns)
    rows = events.select(
        *events.columns,
        removed.alias("begins"),
        *(F.lag(name).over(by_job).alias(f"was_{name}") for name in _SEEN),
        *(_latest(name, is_success, before).alias(f"success_{name}") for name in _SEEN),
        F.lead("seq").over(by_job).isNull().alias("is_end"),
    ).withColumns(
        {
            **{f"origin_{name}": _latest(name, F.col("begins"), so_far) for name in first},
            "history": F.sum(F.col("begins").cast("int")).over(so_far).cast("int"),
            "is_last": F.col("is_end") | among("verb", REMOVES),
        }
    )
    return rows.select(
        *events.columns,
        "begins",
        "history",
        "is_last",
        _gathered("was", _SEEN),
        _gathered("success", _SEEN),
        _gathered("origin", first),
    )


def _latest(name: str, condition: Column, window: WindowSpec) -> Column:
    """Return a column of the latest row that meets a condition."""
    if name in _NEVER_NULL:
        return F.last(F.when(condition, F.col(name)), ignorenulls=True).over(window)
    # A null of that row would be passed over in favour of an earlier row's value; a struct that holds it is not.
    return F.last(F.when(condition, F.struct(name)), ignorenulls=True).over(window)[name]


def _gathered(prefix: str, names: tuple[str, ...]) -> Column:
    return F.struct(*(F.col(f"{prefix}_{name}").alias(name) for name in names)).alias(prefix)


def history_checks(cut: list[str]) -> list[Check]:
    """Return the checks of a row of `checked_rows`.

    Args:
        cut: the sources from which histories were archived: a job may go on after its history has left the journal.
    """
    begins, was = F.col("begins"), F.col("was")
    here, there = row_text(), row_text("was.")
    both = F.concat_ws("; ", there, here)
    move = F.concat_ws(">", "verb", "from_status", "status")
    is_legal = F.coalesce(move.isin(_legal_moves()), F.lit(False)) & F.col("from_status").isNotNull()
    is_cut = F.col("source").isin(cut) & (F.col("n") > 1) & (F.col("verb") != Verb.ENQUEUE.value)
    is_proper = (F.col("verb") == Verb.ENQUEUE.value) & (F.col("n") == 1) & F.col("from_status").isNull()
    is_again = ~begins & (F.col("verb") == Verb.ENQUEUE.value)
    steps = ~begins & ~is_again
    takes = among("verb", TAKES)
    starts_elsewhere = ~F.col("from_status").eqNullSafe(was["status"])
    limit = F.greatest("origin.max_attempts", "origin.failures")
    is_over = F.col("origin.max_attempts").isNotNull() & (F.col("failures") > limit)
    was_over = ~begins & (was["failures"] > limit)

    def text(*parts: str | Column) -> Column:
        return F.concat(*(F.lit(part) if isinstance(part, str) else _shown(part) for part in parts))

    verb = F.col("verb")
    may_not = text(verb, " may not lead from ", was["status"], " to ", F.col("status"))
    checks: list[Check] = [
        (
            1,
            begins & ~is_cut & ~is_proper,
            text("the history does not begin with enqueue, n = 1"),
            here,
        ),
        (
            1,
            begins & is_cut & ~(is_final("from_status") & is_legal),
            text("its beginning is missing, and it had not ended there"),
            here,
        ),
        (1, is_again, text("enqueued again without removal"), both),
        (2, steps & (F.col("n") != was["n"] + 1), text("n goes from ", was["n"], " to ", F.col("n")), both),
        (3, steps & starts_elsewhere, text(verb, " starts from ", F.col("from_status")), both),
        (3, steps & ~starts_elsewhere & ~is_legal & ~is_final("was.status"), may_not, both),
        (4, steps & ~starts_elsewhere & ~is_legal & is_final("was.status"), may_not, both),
        (
            5,
            steps & (F.col("attempt") != was["attempt"] + takes.cast("int")),
            text(verb, " takes attempt from ", was["attempt"], " to ", F.col("attempt")),
            both,
        ),
        (6, steps & takes & is_in_flight("was.status"), text("taken while an attempt holds it"), both),
        (
            7,
            steps & ~takes & ~F.col("assignee_id").eqNullSafe(was["assignee_id"]),
            text(verb, " changes the assignee"),
            both,
        ),
        (
            7,
            steps & ((F.col("retry_count") < was["retry_count"]) | (F.col("failures") < was["failures"])),
            text(verb, " takes a counter back"),
            both,
        ),
        (
            8,
            (F.col("status") == JobStatus.COMPLETED.value)
            & ~among("verb", REMOVES)
            & (F.col("success.seq") >= F.col("origin.seq")),
            text("succeeded twice"),
            F.concat_ws("; ", row_text("success."), here),
        ),
        (
            11,
            is_over & ~was_over,
            text(F.col("failures"), " counted failures of ", F.col("origin.max_attempts"), " allowed"),
            here,
        ),
        (
            12,
            steps & (verb == Verb.CLAIM.value) & (F.col("recorded_at") < was["due_at"]),
            text("claimed before ", was["due_at"].cast("string")),
            both,
        ),
    ]
    return checks


def left_over(drained_at: datetime) -> Check:
    """Return the check that a job that could have run by then has ended (invariant 9)."""
    is_future = is_waiting() & F.coalesce(F.col("due_at") > F.lit(drained_at), F.lit(False))
    is_left = F.col("is_last") & ~among("verb", REMOVES) & ~is_final() & ~is_future
    return 9, is_left, F.concat(F.lit("is left "), F.col("status")), row_text()


def _shown(column: Column) -> Column:
    return F.coalesce(column.cast("string"), F.lit("nothing"))
