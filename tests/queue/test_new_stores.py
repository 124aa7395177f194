"""A program in the wrong folder makes a new store there by mistake: a warning names it."""

import asyncio
import logging

import pytest

import penstock
import penstock.aio


@pytest.fixture
def warnings(caplog, tmp_path, monkeypatch):
    """What was logged as a warning, as texts; in an empty folder, without settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    caplog.set_level(logging.WARNING, logger="penstock")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_queue_without_a_url_names_the_store_that_it_makes(warnings, tmp_path):
    penstock.connect().close()
    (warning,) = warnings()
    assert "a new store was made" in warning
    assert str(tmp_path / "penstock.db") in warning
    penstock.connect().close()
    assert len(warnings()) == 1, "the store is there now"


def test_a_queue_for_asyncio_does_so_too(warnings):
    async def main() -> None:
        async with penstock.aio.connect():
            pass

    asyncio.run(main())
    assert len(warnings()) == 1


def test_a_store_that_was_named_is_meant(warnings, tmp_path):
    penstock.connect(f"sqlite:///{tmp_path}/other.db").close()
    assert warnings() == []


def test_an_app_warns_when_it_submits_and_only_then(warnings):
    with penstock.App() as app:
        app.queue.get_job_stats()
        assert warnings() == []

        @app.job
        def work() -> None: ...

        work.submit()
        work.submit()
    assert len(warnings()) == 1
