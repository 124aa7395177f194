"""Fixtures for tests of an app's jobs. To use them, name this module in a `conftest.py` at the root of your tests:

    pytest_plugins = ["penstock.testing.pytest_plugin"]

and say which app it is, in pytest's settings (`penstock_app = "shop.jobs:app"`) or by a fixture `penstock_app` of your
own. It is no entry point of pytest, so that it is imported only where it is named.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest

from penstock.app import App
from penstock.queue import Queue
from penstock.testing.app import in_memory, inline
from penstock.testing.clock import ManualClock

__all__ = ["penstock_app", "penstock_clock", "penstock_inline", "penstock_queue"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("penstock_app", "The app whose jobs are tested, such as shop.jobs:app.", default="")


@pytest.fixture(scope="session")
def penstock_app(pytestconfig: pytest.Config) -> App:
    """The app under test: that of the setting `penstock_app`. Override it to make one."""
    place = str(pytestconfig.getini("penstock_app"))
    module, _, name = place.partition(":")
    if not module or not name:
        raise pytest.UsageError(
            f"penstock_app must be such as shop.jobs:app, got {place!r}: set it in pytest's settings, or define a "
            "fixture penstock_app that returns your App"
        )
    found = getattr(importlib.import_module(module), name, None)
    if not isinstance(found, App):
        raise pytest.UsageError(f"penstock_app must name an App, but {place} is {found!r}")
    return found


@pytest.fixture
def penstock_clock() -> ManualClock:
    """The clock of the test's store; `advance(seconds)` moves it."""
    return ManualClock()


@pytest.fixture
def penstock_queue(penstock_app: App, penstock_clock: ManualClock) -> Iterator[Queue]:
    """An empty store in memory for this test: jobs wait there until `penstock.testing.drain(app)` runs them."""
    with in_memory(penstock_app, clock=penstock_clock) as queue:
        yield queue


@pytest.fixture
def penstock_inline(penstock_app: App, penstock_clock: ManualClock) -> Iterator[Queue]:
    """An empty store in memory for this test, where every job runs before `submit` returns."""
    with inline(penstock_app, clock=penstock_clock) as queue:
        yield queue
