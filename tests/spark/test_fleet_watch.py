"""How a task of a fleet notices that the fleet has ended, without Spark."""

import logging
import threading
from types import SimpleNamespace

import pytest
from tests.waiting import until

from penstock.errors import BackendError

pytest.importorskip("pyarrow")

from penstock.spark.fleet import _task


class Watched:
    """A store whose answers the test gives, and a worker that notes that it was stopped."""

    def __init__(self):
        self.answer = True
        self.asked = 0
        self.stopped = threading.Event()
        self.owners = self

    def has(self, _owner_id):
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def stop(self):
        self.stopped.set()


@pytest.fixture
def watched(monkeypatch):
    monkeypatch.setattr(_task, "POLL_SECONDS", 0.001)
    return Watched()


def watching(watched, seconds=None):
    order = SimpleNamespace(owner_id="driver", seconds=seconds)
    return _task._watching_driver(watched, watched, order)


def threads():
    return [each for each in threading.enumerate() if each.name == "penstock-fleet"]


def test_the_worker_is_stopped_when_the_row_of_the_driver_is_gone(watched):
    with watching(watched) as was_stopped:
        until(lambda: watched.asked > 3)
        assert not was_stopped.is_set()
        watched.answer = False
        assert watched.stopped.wait(30)
        assert was_stopped.is_set()
    assert not threads()


def test_a_worker_that_ends_by_itself_was_not_stopped(watched):
    with watching(watched) as was_stopped:
        pass
    assert not was_stopped.is_set()
    assert not watched.stopped.is_set()
    assert not threads()


def test_a_store_that_is_away_is_no_reason_to_stop(watched, caplog):
    caplog.set_level(logging.DEBUG, "penstock")
    watched.answer = BackendError("away", retryable=True)
    with watching(watched) as was_stopped:
        until(lambda: watched.asked > 3)
        assert not was_stopped.is_set()
        watched.answer = False
        assert watched.stopped.wait(30)
    assert "checking for the fleet's driver failed and is retried: away" in caplog.text


def test_the_time_limit_holds_while_the_store_is_away(watched):
    watched.answer = BackendError("away", retryable=True)
    with watching(watched, seconds=0.05) as was_stopped:
        assert watched.stopped.wait(30)
        assert was_stopped.is_set()
