"""Registries: lines that are whole, fast to read again, safe for many writers; and the same on the store."""

import json
import multiprocessing
import threading
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.waiting import until

import penstock
from penstock import BackendError, InvalidArgumentError
from penstock.processes import (
    BackendRegistry,
    InvalidJobStateError,
    JobRecord,
    JobStatus,
    JsonlRegistry,
    Registry,
)

S = JobStatus


def record(status=S.PENDING, job_id=None, **fields):
    now = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    blank = JobRecord(job_id or str(uuid.uuid4()), status, 0, None, None, now, now)
    return replace(blank, **fields)


@pytest.mark.requirement("P7")
def test_a_registry_must_write_its_three_methods():
    assert Registry.__abstractmethods__ == {"append", "latest", "all_latest"}
    for method in (Registry.append, Registry.latest):
        with pytest.raises(NotImplementedError):
            method(None, None)
    with pytest.raises(NotImplementedError):
        Registry.all_latest(None)


@pytest.mark.requirement("P7")
def test_the_latest_record_of_a_job_counts(registry):
    first, other = record(), record()
    assert registry.latest(first.job_id) is None
    for each in (first, other, replace(first, status=S.RUNNING, progress=40, description="going")):
        registry.append(each)
    found = registry.latest(first.job_id)
    assert (found.status, found.progress, found.description) == (S.RUNNING, 40, "going")
    assert {each.job_id: each.status for each in registry.all_latest()} == {
        first.job_id: S.RUNNING, other.job_id: S.PENDING,
    }  # fmt: skip
    registry.append(replace(first, status=S.COMPLETED, progress=100, result={"n": 1}))
    found = registry.latest(first.job_id)
    assert (found.status, found.progress, found.result, found.created_at) == (
        S.COMPLETED, 100, {"n": 1}, first.created_at,
    )  # fmt: skip


@pytest.mark.requirement("P5", "P7")
@pytest.mark.parametrize("wrong", [{"result": {1}}, {"result": float("nan")}])
def test_a_result_that_is_no_json_is_refused_and_nothing_is_kept(registry, wrong):
    bad = record(**wrong)
    with pytest.raises(InvalidArgumentError):
        registry.append(bad)
    with pytest.raises(InvalidArgumentError):
        registry.append({"job_id": bad.job_id})
    assert registry.latest(bad.job_id) is None


@pytest.mark.parametrize("wrong", [{"progress": 101}, {"progress": True}, {"status": 9}])
def test_a_record_is_checked(wrong):
    with pytest.raises(InvalidArgumentError):
        record(**wrong)


# -- JSON lines ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("P7", "P8")
def test_every_record_is_a_line_with_the_records_fields(tmp_path):
    registry = JsonlRegistry(str(tmp_path / "deep" / "registry.jsonl"))
    job = record(description="ü\n", result={"a": [1]})
    registry.append(job)
    registry.append(replace(job, status=S.RUNNING))
    lines = [json.loads(line) for line in registry.path.read_text().splitlines()]
    assert [list(line) for line in lines] == [list(JobRecord.__dataclass_fields__)] * 2
    assert [line["status"] for line in lines] == [0, 1]
    assert lines[0]["description"] == "ü\n"
    assert registry.latest(job.job_id) == replace(job, status=S.RUNNING)
    assert registry.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.requirement("P7")
@pytest.mark.parametrize("cut", range(1, 200, 7))
def test_a_line_that_was_cut_off_is_passed_over(tmp_path, cut):
    """A crash in the middle of a write loses that line and no other, whether before or after it."""
    registry = JsonlRegistry(tmp_path / "registry.jsonl")
    whole, torn, later = record(), record(), record()
    registry.append(whole)
    size = registry.path.stat().st_size
    registry.append(torn)
    with registry.path.open("r+b") as file:
        file.truncate(size + min(cut, registry.path.stat().st_size - size - 2))
    again = JsonlRegistry(registry.path)
    assert again.all_latest() == [whole]
    again.append(later)
    assert JsonlRegistry(registry.path).all_latest() == [whole, later]


def test_lines_that_are_no_records_are_passed_over(tmp_path, caplog):
    path = tmp_path / "registry.jsonl"
    good = record()
    JsonlRegistry(path).append(good)
    with path.open("ab") as file:
        file.write(b'{"job_id": 7}\n\n[]\n\xff\xfe\n{"job_id": "x", "status": 9}\n')
    assert JsonlRegistry(path).all_latest() == [good]
    assert "cannot be read and is passed over" in caplog.text


def test_another_object_sees_what_was_appended_and_a_new_file_is_noticed(tmp_path):
    path = tmp_path / "registry.jsonl"
    writer, reader = JsonlRegistry(path), JsonlRegistry(path)
    job = record()
    assert reader.latest(job.job_id) is None
    writer.append(job)
    assert reader.latest(job.job_id) == job
    path.rename(tmp_path / "old.jsonl")
    assert reader.all_latest() == []
    other = record()
    writer.append(other)
    assert reader.all_latest() == [other]


def _append_many(path, count):
    registry = JsonlRegistry(path)
    threads = [
        threading.Thread(target=lambda: [registry.append(record(result="x" * 5000)) for _ in range(count)])
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.requirement("P8", "P7")
@pytest.mark.process
def test_lines_of_many_threads_and_processes_never_mix(tmp_path):
    path = tmp_path / "registry.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append_many, args=(path, 25)) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    lines = path.read_text().splitlines()
    assert len(lines) == 200
    assert len({json.loads(line)["job_id"] for line in lines}) == len(JsonlRegistry(path).all_latest()) == 200


def test_reading_again_is_fast_and_asking_again_reads_nothing(tmp_path):
    """100,000 lines are read in well under the time that parsing them one by one in Python takes."""
    path = tmp_path / "registry.jsonl"
    registry = JsonlRegistry(path)
    registry.append(record(S.RUNNING, description="going", result=[1]))
    line = path.read_bytes()
    path.write_bytes(line * 100_000)
    began = time.perf_counter()
    JsonlRegistry(path).all_latest()
    whole = time.perf_counter() - began
    began = time.perf_counter()
    for each in line.splitlines() * 100_000:
        json.loads(each)
    assert whole < 3 * (time.perf_counter() - began) + 1
    reader = JsonlRegistry(path)
    reader.all_latest()
    began = time.perf_counter()
    for _ in range(100):
        reader.all_latest()
    assert time.perf_counter() - began < whole


def test_a_full_disk_is_an_error_and_leaves_no_half_line(tmp_path, monkeypatch):
    import os

    registry = JsonlRegistry(tmp_path / "registry.jsonl")
    registry.append(record())
    before = registry.path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
    with pytest.raises(BackendError, match="only 20 of") as caught:
        registry.append(record())
    assert caught.value.retryable
    assert registry.path.read_bytes() == before


# -- the store -----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    with penstock.open_backend(f"sqlite:///{tmp_path}/jobs.db") as backend:
        yield backend


@pytest.mark.requirement("P7", "P12")
@pytest.mark.parametrize("status", [S.RUNNING, S.COMPLETED, S.ERROR, S.INTERRUPTED])
def test_steps_that_were_left_out_are_walked_through(store, status):
    registry = BackendRegistry(store)
    job = record(status, description="why", result=[1])
    registry.append(job)
    found = registry.latest(job.job_id)
    assert (found.status, found.description, found.result) == (status, "why", [1])
    stored = store.get_job(job.job_id)
    assert (stored.held, stored.retry.max_attempts, stored.type) == (True, 1, "process")
    verbs = [entry.verb for entry in store.read_journal() if entry.job_id == job.job_id]
    assert verbs[:2] == ["enqueue", "claim"]
    assert store.dequeue_jobs("some worker") == []


@pytest.mark.requirement("P12", "P15")
@pytest.mark.parametrize(
    ("here", "wanted"),
    [
        (S.COMPLETED, S.RUNNING),
        (S.COMPLETED, S.ERROR),
        (S.ERROR, S.RUNNING),
        (S.RUNNING, S.PENDING),
        (S.INTERRUPTED, S.COMPLETED),
    ],
)
def test_a_step_that_does_not_exist_is_refused(store, here, wanted):
    registry = BackendRegistry(store)
    job = record(here)
    registry.append(job)
    with pytest.raises(InvalidJobStateError):
        registry.append(replace(job, status=wanted))
    assert registry.latest(job.job_id).status is here


def test_a_record_equal_to_the_last_one_is_accepted(store):
    registry = BackendRegistry(store)
    for status in S:
        job = record(status)
        registry.append(job)
        registry.append(job)
        assert registry.latest(job.job_id).status is status


@pytest.mark.requirement("C42")
@pytest.mark.parametrize("status", list(S))
def test_after_a_delete_the_store_has_nothing_but_its_journal(store, status):
    registry = BackendRegistry(store)
    job = record(status)
    registry.append(job)
    registry.delete(job)
    registry.delete(job)
    assert registry.latest(job.job_id) is None
    assert registry.all_latest() == []
    assert store.read_journal()[-1].verb == "delete"


def test_jobs_of_other_types_can_be_read(store):
    store.enqueue_job(penstock.Job(id="other", type="other"))
    store.dequeue_jobs("worker")
    store.complete_job("other", b"\xff\xfe")
    found = BackendRegistry(store).latest("other")
    assert (found.status, found.result) == (S.COMPLETED, "\\xff\\xfe")
    assert BackendRegistry(store).all_latest() == []


def test_many_records_come_in_pages(store):
    registry = BackendRegistry(store)
    store.enqueue_jobs(penstock.Job.new("process", held=True) for _ in range(1001))
    assert len(registry.all_latest()) == 1001


def test_a_store_keeps_what_a_living_registry_has(tmp_path, monkeypatch):
    """The registry beats for its running jobs, and stops when it has none."""
    with penstock.open_backend(f"sqlite:///{tmp_path}/jobs.db", liveness=1.5) as backend:
        beats = []
        beat = backend.owners.beat
        monkeypatch.setattr(backend.owners, "beat", lambda owner: beats.append(owner) or beat(owner))
        registry = BackendRegistry(backend)
        job = record(S.RUNNING)
        registry.append(job)
        # Five thirds of what a process may be silent for.
        until(lambda: backend.maintain() and len(beats) >= 5)
        assert registry.latest(job.job_id).status is S.RUNNING
        registry.append(replace(job, status=S.COMPLETED))
        until(lambda: not registry._heartbeat.is_running)
        assert registry._heartbeat.join(10)
        registry.append(record(S.RUNNING))  # and begins again


def test_a_registry_needs_a_store():
    with pytest.raises(InvalidArgumentError, match="backend"):
        BackendRegistry("sqlite:///jobs.db")
