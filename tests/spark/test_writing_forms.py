"""The sink without a session: the forms of arguments, and the errors of wrong ones."""

from datetime import timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from tests.spark.test_writing import frame, jobs_in, save

from penstock.errors import InvalidArgumentError, JobExistsError


def test_seconds_may_be_a_decimal(url):
    """In Spark's SQL 12.5 is one."""
    seconds = pa.array([Decimal("12.5"), None], pa.decimal128(3, 1))
    save(url, frame(2, execution_timeout=seconds))
    assert jobs_in(url)["job-0"].timeouts.execution == timedelta(seconds=12.5)
    assert jobs_in(url)["job-1"].timeouts.execution == timedelta(minutes=30)


def test_whole_numbers_may_not(sqlite_url):
    with pytest.raises(InvalidArgumentError, match=r"priority must be integer, not decimal\(3,1\)"):
        save(sqlite_url, frame(1, priority=pa.array([Decimal(1)], pa.decimal128(3, 1))))


@pytest.mark.parametrize("atomic", ["true", "false"])
def test_a_key_that_stands_twice_is_named(url, atomic):
    """Rows with a key need no id, and one that was made up says nothing."""
    table = pa.table({"type": ["t", "t"], "idempotency_key": ["order-7", "order-7"]})
    with pytest.raises(JobExistsError, match="its idempotency key 'order-7' stands twice"):
        save(url, table, atomic=atomic)
    assert not jobs_in(url)
