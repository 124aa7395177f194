"""Files of the store that vanish while it is open: no write is acknowledged that would be lost (RELIABILITY 2.2)."""

import shutil

import pytest

from penstock import BackendError, Job, open_backend
from penstock.backends.sqlite import files


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LOG_CHECK_SECONDS", 0.0)  # look at the log every time, not every 10 ms
    place = tmp_path / "store"
    place.mkdir()
    with open_backend(f"sqlite:///{place}/jobs.db") as backend:
        backend.enqueue_job(Job(id="before", type="t"))
        yield backend, place


def assert_writes_are_refused(backend):
    for write in (
        lambda: backend.enqueue_job(Job(id="after", type="t")),
        lambda: backend.dequeue_jobs("worker"),
        lambda: backend.cancel_jobs(job_ids=["before"]),
    ):
        with pytest.raises(BackendError, match="deleted or replaced") as caught:
            write()
        assert not caught.value.retryable


@pytest.mark.parametrize("name", ["jobs.db", "jobs.db-wal"])
def test_one_file_is_deleted(store, name):
    backend, place = store
    (place / name).unlink()
    assert_writes_are_refused(backend)


def test_the_whole_folder_is_deleted(store):
    backend, place = store
    shutil.rmtree(place)
    assert_writes_are_refused(backend)


def test_another_file_takes_its_place(store):
    backend, place = store
    with open_backend(f"sqlite:///{place}/other.db") as other:
        other.enqueue_job(Job(id="other", type="t"))
    (place / "other.db").replace(place / "jobs.db")
    assert_writes_are_refused(backend)


def test_the_store_goes_on_when_the_file_is_put_back(store):
    backend, place = store
    (place / "jobs.db").rename(place / "aside.db")
    assert_writes_are_refused(backend)
    (place / "aside.db").rename(place / "jobs.db")
    assert backend.enqueue_job(Job(id="after", type="t")) == "after"
