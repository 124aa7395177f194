"""What holds for every test."""

import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine, not about the code.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")

HERE = Path(__file__).parent
#: Folders of what is built on stores: it runs on SQLite in `make test`, and on PostgreSQL in `make test-deep`,
ABOVE_STORES = {"app", "callbacks", "cli", "fuzz", "metrics", "periodic", "processes", "queue", "spark"}
#: but for these, which run on both in `make test`: the first thing that each of them does with a store.
ON_BOTH = {
    "test_a_job_finished_by_another_process_frees_the_slot",
    "test_a_job_of_another_process_reaches_a_waiting_stream",
    "test_a_killed_worker_takes_its_jobs_with_it_and_another_runs_them_again",
    "test_a_worker_that_was_frozen_past_its_lease_changes_nothing",
    "test_at_the_limit_the_attempt_is_failed_and_its_slot_stays_closed_until_the_thread_returns",
    "test_jobs_are_submitted_and_awaited_in_a_loop",
    "test_no_stream_gets_more_than_it_has_room_for",
    "test_the_first_signal_lets_jobs_finish_and_exits_0",
    "test_thousands_of_streams_share_few_threads",
    "test_workers_make_jobs_of_ticks",
    "test_a_frame_becomes_jobs_once",
    "test_a_job_completes_and_its_record_says_so",
    "test_both_tables_are_dataframes",
    "test_it_ticks_in_the_background",
    "test_jobs_are_counted_by_type_and_state",
    "test_one_poll_prints_everything_as_json",
    "test_the_end_of_a_job_is_delivered_once_and_signed",
}


def pytest_configure() -> None:
    # Run in the background by a shell, the tests and all they start would ignore Ctrl-C, which some of them send.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo what a command that ran in this process did to logging: a later test would miss records below its level."""
    loggers = [
        logging.root,
        *(logging.getLogger(name) for name in ("penstock", "penstock.worker", "penstock.job")),
    ]
    before = [(each, each.level, each.handlers[:], each.propagate, each.disabled) for each in loggers]
    yield
    for each, level, handlers, propagate, disabled in before:
        if each.level != level:
            each.setLevel(level)
        if each is not logging.root:  # pytest's own handlers come and go there
            each.handlers[:] = handlers
        each.propagate, each.disabled = propagate, disabled


@pytest.hookimpl(tryfirst=True)  # before the markers select tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(HERE).parts[0]
        if folder in ABOVE_STORES and is_on_postgres(item) and not is_on_both(item):
            item.add_marker(pytest.mark.deep)


def is_on_both(item: pytest.Item) -> bool:
    return item.path.name == "test_conformance.py" or item.originalname in ON_BOTH


def is_on_postgres(item: pytest.Item) -> bool:
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(isinstance(each, str) and each == "postgres" for each in parameters)
