"""A DataFrame becomes jobs: python examples/bulk_from_dataframe/bulk_from_dataframe.py

needs the extra: pip install '.[spark]'

Every customer of a table gets a job. All of them are stored or none; writing the same frame again adds nothing, because a
job's id is made from its row. Many small jobs run fastest on threads, with a prefetch.
"""

from __future__ import annotations

import sys
import tempfile
from typing import TYPE_CHECKING

import penstock
from penstock import spark as ps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

app = penstock.App()
CUSTOMERS = 2_000


@app.job
def remind(customer: int, cents: int) -> str:
    return f"customer {customer} owes {cents / 100:.2f}"


def reminders(spark: SparkSession) -> DataFrame:
    """Return a job for each customer who owes something, the largest debts first."""
    customers = spark.range(CUSTOMERS).selectExpr("id AS customer", "(id * 37) % 500 AS cents")
    return customers.where("cents > 0").selectExpr(
        "concat('reminder-2026-11-', customer) AS id",
        "'remind' AS type",
        "named_struct('customer', customer, 'cents', cents) AS payload",
        "IF(cents > 400, 1, 3) AS priority",
        "array('november') AS tags",
    )


def submit(spark: SparkSession, url: str) -> int:
    """Write the frame as jobs; return how many are new."""
    app.url = url
    before = app.queue.get_job_stats().total_jobs
    reminders(spark).write.format("penstock").option("url", url).mode("append").save()
    return app.queue.get_job_stats().total_jobs - before


def work() -> str:
    """Run the jobs; return the result of one."""
    penstock.Worker(app, prefetch=500, isolation="thread").run(until_idle=True)
    return str(app.handle("reminder-2026-11-7").result())


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bulk-") as folder:
        spark = ps.session()
        print(f"jobs from a DataFrame: {submit(spark, f'sqlite:///{folder}/jobs.db')}")
        print(f"the same frame again:  {submit(spark, f'sqlite:///{folder}/jobs.db')}")
        print(f"one of the results:    {work()}")
        app.close()
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
