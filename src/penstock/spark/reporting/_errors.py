"""Failed attempts grouped by message: messages that differ only in numbers and ids are one group."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.job import JobStatus
from penstock.spark.reporting._values import moment

__all__ = ["error_groups", "without_numbers"]

_MAX_GROUPS: Final = 20
_MAX_TYPES: Final = 5
_MAX_LENGTH: Final = 200
_MAX_SEARCHED: Final = 2_000
#: Replacements in this order: ids first, since they contain numbers. Backslashes are doubled for SQL.
_NUMBERS: Final = (
    (r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "<id>"),
    (r"\\b0[xX][0-9a-fA-F]+", "<hex>"),
    (r"\\b(?=[0-9a-fA-F]*[0-9])(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\\b", "<hex>"),
    (r"[0-9]+(?:[.,:][0-9]+)*", "<n>"),
)


def error_groups(attempts: DataFrame) -> list[dict[str, Any]]:
    """Return the most frequent failures of the table `attempts`, the most frequent first.

    Each has `message` (without numbers and ids), `attempts`, `jobs`, `failed` (how many of the attempts ended their job),
    `types`, `category`, `last` (a moment) and `example`, the last job that failed with it.
    """
    finals = f"outcome IN ('{JobStatus.FAILED}', '{JobStatus.DEAD_LETTER}')"
    failed = attempts.where("error_message IS NOT NULL AND NOT coalesce(released, false)")
    rows = (
        failed.selectExpr(f"{without_numbers('error_message')} AS message", "*")
        .groupBy("message")
        .agg(
            *map(
                F.expr,
                (
                    "count(*) AS attempts",
                    "count(DISTINCT source, job_id) AS jobs",
                    f"count(CASE WHEN {finals} THEN 1 END) AS failed",
                    "array_sort(collect_set(type)) AS types",
                    "max_by(error_category, ended_at) AS category",
                    "unix_micros(max(ended_at)) AS last",
                    "max_by(job_id, ended_at) AS example",
                ),
            )
        )
        .orderBy("attempts", "message", ascending=[False, True])
        .limit(_MAX_GROUPS)
        .collect()
    )
    return [
        {
            **{name: row[name] for name in ("message", "attempts", "jobs", "failed", "category", "example")},
            "types": list(row["types"])[:_MAX_TYPES],
            "last": moment(row["last"]),
        }
        for row in rows
    ]


def without_numbers(column: str) -> str:
    """Return the expression for a message without its traceback, numbers and ids."""
    # The traceback follows an empty line.
    text = f"substring(split({column}, '\\\\n\\\\s*\\\\n', 2)[0], 1, {_MAX_SEARCHED})"
    for pattern, name in _NUMBERS:
        text = f"regexp_replace({text}, '{pattern}', '{name}')"
    return f"substring(trim({text}), 1, {_MAX_LENGTH})"
