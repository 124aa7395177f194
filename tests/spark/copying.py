"""A query that copies the jobs of one store to another, batch by batch, with the batch sink."""

from collections.abc import Callable
from typing import Any

__all__ = ["start_copy"]


def start_copy(
    spark: Any, source: str, target: str, folder: str, after_batch: Callable[[int], None] = lambda _: None
) -> Any:
    """Start the query; `after_batch` is called when a batch was written and Spark does not know it yet."""

    def write(frame: Any, batch: int) -> None:
        frame.write.format("penstock").option("url", target).mode("append").save()
        after_batch(batch)

    rows = (
        spark.readStream.format("penstock")
        .option("url", source)
        .option("maxRowsPerTrigger", 100)
        .load()
        .where("verb = 'enqueue'")
        .selectExpr("job_id AS id", "type")
    )
    return (
        rows.writeStream.trigger(availableNow=True)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .foreachBatch(write)
        .start()
    )
