"""A server that is lost and comes back: what the log says."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.waiting import until

import penstock
from penstock.backends.postgres import connection
from penstock.errors import BackendError
from penstock.job import Job
from penstock.logs import retry_level


def said(caplog):
    """What an operator reads."""
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.fixture
def lost(proxy):
    """Takes the server away."""

    def lose():
        proxy.close()
        proxy.cut_all()

    return lose


def test_an_outage_is_logged_once_when_it_begins_and_once_when_it_ends(open_store, proxy, lost, caplog, call):
    """Section 3: by whatever notices it first."""
    backend = open_store(proxy.url)
    backend.enqueue_job(Job(id="before", type="t"))
    listening = threading.Event()
    stop = backend.runtime.watch(listening.set)
    assert listening.wait(20)
    lost()
    under_way = [
        call(backend.enqueue_job, Job(id=f"during-{number}", type="t", key="k")) for number in range(3)
    ]
    until(lambda: said(caplog))
    assert all(each.is_waiting(0.1) for each in under_way)
    proxy.open()
    assert {each.result() for each in under_way} == {f"during-{number}" for number in range(3)}
    stop()
    begun, ended = said(caplog)
    assert "unreachable since 2" in begun
    assert backend.location in begun
    assert backend.location in ended
    assert "is back after " in ended


def test_a_stream_that_waits_notices_an_outage_by_itself(open_store, proxy, lost, caplog):
    """Section 3: and gets the job that comes after it."""
    caplog.set_level(logging.DEBUG)
    with penstock.Queue(open_store(proxy.url)) as queue, queue.stream_jobs("w") as stream:
        lost()
        until(lambda: any("unreachable since" in text for text in said(caplog)))
        proxy.open()
        until(lambda: any("is back after" in text for text in said(caplog)))
        queue.submit("t")
        assert len(next(stream)) == 1
    texts = said(caplog)
    assert len([text for text in texts if "unreachable since" in text]) == 1
    assert len([text for text in texts if "is back after" in text]) == 1
    assert not any("hint" in text for text in texts)


def test_what_fails_meanwhile_is_not_logged_as_another_fault(open_store, proxy, lost, caplog):
    """Section 3: one place says it."""
    caplog.set_level(logging.DEBUG)
    backend = open_store(proxy.url, connect_timeout=2)
    with penstock.Queue(backend) as queue, queue.stream_jobs("w") as stream:
        lost()
        for _ in range(2):
            with pytest.raises(BackendError) as caught:
                queue.submit("t")
            assert caught.value.is_logged
            assert retry_level(caught.value) == logging.DEBUG
        until(lambda: any("failed and is retried" in each.getMessage() for each in caplog.records))
        proxy.open()
        queue.submit("t")
        assert len(next(stream)) == 1
    assert [
        text for text in said(caplog) if "unreachable since" not in text and "is back after" not in text
    ] == []


def test_a_connection_that_is_replaced_at_once_is_no_outage(open_store, proxy, caplog):
    """Section 3."""
    backend = open_store(proxy.url)
    backend.enqueue_job(Job(id="a", type="t"))
    proxy.cut_all()
    backend.enqueue_job(Job(id="b", type="t"))
    assert said(caplog) == []


def test_a_store_that_was_never_reached_is_an_error_and_nothing_in_the_log(proxy, caplog):
    """Section 3: whoever opens it is told."""
    proxy.close()
    with pytest.raises(BackendError, match="cannot be reached"):
        penstock.open_backend(f"postgresql://127.0.0.1:{proxy._port}/x", connect_timeout=0.2)
    assert said(caplog) == []


def test_a_store_that_was_reached_once_is_waited_for(open_store, proxy, lost, monkeypatch):
    """Section 3: for as long as the call may take, not only for the time of the first connection."""
    backend = open_store(proxy.url)
    monkeypatch.setattr(connection, "_FIRST_CONNECT_SECONDS", 0.0)
    lost()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(backend.enqueue_job, Job(id="a", type="t"))
        until(lambda: backend._store.outage.is_logged or waiting.done())
        proxy.open()
        waiting.result(30)
    assert backend.get_job("a").id == "a"
