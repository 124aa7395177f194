"""Many first starts of several processes on stores that do not exist yet."""

import psycopg
import pytest
from tests.first_starts import starters

import penstock

ROUNDS = 50


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.postgres
@pytest.mark.timeout(900)
def test_fifty_first_starts_of_four_processes_on_postgresql_all_succeed(postgres_url):
    """F7."""
    with starters(4) as processes:
        for number in range(ROUNDS):
            schema = f"start_{number}"
            assert processes.start(postgres_url, schema=schema) == []
            with penstock.open_backend(postgres_url, schema=schema) as backend:
                assert backend.get_job_stats().total_jobs == 4
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                connection.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.timeout(900)
def test_fifty_first_starts_of_four_processes_on_sqlite_all_succeed(tmp_path):
    """F7: its sibling."""
    with starters(4) as processes:
        for number in range(ROUNDS):
            url = f"sqlite:///{tmp_path}/jobs-{number}.db"
            assert processes.start(url) == []
            with penstock.open_backend(url) as backend:
                assert backend.get_job_stats().total_jobs == 4
