"""Tests on a server that is there already leave nothing behind on it."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from tests.stores import SERVER_VARIABLE

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.process
@pytest.mark.slow
def test_tests_run_on_a_server_that_is_given_and_remove_what_they_made(postgres_url):
    """PostgreSQL 14 to 18: whichever is there."""
    databases = "SELECT datname FROM pg_database WHERE datname LIKE 'penstock_test_%'"
    chosen = (
        "tests/postgres/test_listing.py",
        "tests/periodic",
        "-m",
        "postgres",
        "-k",
        "listing or schedule",
    )
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        before = set(connection.execute(databases).fetchall())
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:randomly",
                "-x",
                *chosen,
            ],
            cwd=ROOT,
            env={**os.environ, SERVER_VARIABLE: postgres_url},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        assert " passed" in done.stdout
        assert set(connection.execute(databases).fetchall()) <= before
