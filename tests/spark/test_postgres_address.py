"""The address by which Spark's tasks reach a PostgreSQL server."""

import pytest
from psycopg.conninfo import conninfo_to_dict

from penstock.spark.stores import store_at


@pytest.mark.parametrize(
    ("url", "seconds"),
    [
        ("postgresql://u@h/db", 10),
        ("postgresql://u@h/db?sslmode=require", 10),
        ("postgresql://h", 10),
        ("postgresql://u@h/db?schema=jobs&connect_timeout=30", 30),
        ("postgresql://u@h/db?connect_timeout=0.1", 2),  # the least that libpq knows
    ],
)
def test_connecting_has_a_limit(url: str, seconds: int) -> None:
    found = conninfo_to_dict(store_at(url).address)
    assert int(found["connect_timeout"]) == seconds
    assert found["host"] == "h"
    assert "schema" not in found
