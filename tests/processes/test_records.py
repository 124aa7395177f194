"""What `append` accepts, `latest` returns; what it cannot keep, it refuses before anything is written."""

import os
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import penstock
from penstock import BackendError, InvalidArgumentError
from penstock.processes import (
    BackendRegistry,
    InvalidJobStateError,
    JobQueue,
    JobRecord,
    JobStatus,
    JsonlRegistry,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
VERSION_4 = "f490a9ba-c412-4274-84b2-438f8a0c1a12"
VERSION_1 = "d0bf4c18-e186-11f1-8e16-02fc00000001"


def record(status=JobStatus.PENDING, **fields):
    return JobRecord(
        **{
            "job_id": str(uuid.uuid4()), "status": status, "progress": 0, "description": None, "result": None,
            "created_at": NOW, "updated_at": NOW, **fields,
        }
    )  # fmt: skip


WRONG = [
    ("job_id", None),
    ("job_id", 7),
    ("job_id", uuid.UUID(VERSION_4)),
    ("job_id", ""),
    ("job_id", "job-1"),
    ("job_id", VERSION_1),
    ("job_id", "{" + VERSION_4 + "}"),
    ("job_id", "urn:uuid:" + VERSION_4),
    ("job_id", VERSION_4.replace("-", "")),
    ("job_id", VERSION_4 + "\n"),
    ("description", 5),
    ("description", b"text"),
    ("description", "\ud800"),
    ("description", "a\0b"),
    ("result", {1}),
    ("result", "\udfff"),
    ("result", float("inf")),
    ("result", {1: 2}),
    ("result", (1, 2)),
    ("result", {"deep": [(1,)]}),
    ("result", Path("file")),
    ("created_at", None),
    ("created_at", "yesterday"),
    ("created_at", 1.5),
    ("created_at", NOW.date()),
    ("created_at", datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))),
    ("created_at", NOW.replace(tzinfo=None)),
    ("updated_at", datetime.max),
    ("updated_at", None),
    ("updated_at", "2026-01-02T03:04:05Z"),
]


@pytest.mark.requirement("P4", "P7")
def test_a_field_that_could_not_be_read_back_is_refused_and_nothing_is_written(registry):
    for status in JobStatus:
        for field, value in WRONG:
            with pytest.raises(InvalidArgumentError) as caught:
                registry.append(record(status, **{field: value}))
            assert caught.value.field == field, (field, value)
    assert registry.all_latest() == []
    if isinstance(registry, JsonlRegistry):
        assert registry.path.read_bytes() == b""
    else:
        assert registry.backend.read_journal() == []


@pytest.mark.requirement("P7")
def test_a_refused_update_leaves_the_record_before_it(registry):
    job = record(JobStatus.RUNNING, progress=10, description="going", result=[1])
    registry.append(job)
    kept = registry.latest(job.job_id)
    for field, value in [(field, value) for field, value in WRONG if field != "job_id"]:
        with pytest.raises(InvalidArgumentError):
            registry.append(replace(job, **{"status": JobStatus.ERROR, "progress": 50, field: value}))
        assert registry.latest(job.job_id) == kept, (field, value)


def test_a_record_whose_checks_were_bypassed_is_refused_all_the_same(registry):
    for field, value in (
        ("progress", 101),
        ("progress", True),
        ("status", 9),
        ("status", True),
        ("status", "RUNNING"),
    ):
        bypassed = record()
        object.__setattr__(bypassed, field, value)
        with pytest.raises(InvalidArgumentError) as caught:
            registry.append(bypassed)
        assert caught.value.field == field
    assert registry.all_latest() == []


@pytest.mark.requirement("P13")
@pytest.mark.parametrize(
    "status", [JobStatus.PENDING, JobStatus.RUNNING, JobStatus.ERROR, JobStatus.INTERRUPTED]
)
def test_a_progress_of_a_hundred_is_refused_until_the_job_is_completed(registry, status):
    with pytest.raises(InvalidArgumentError, match=rf"\(it is {status.name}\), got 100") as caught:
        registry.append(record(status, progress=100))
    assert caught.value.field == "progress"
    assert registry.all_latest() == []


@pytest.mark.requirement("P13")
@pytest.mark.parametrize(
    "status", [JobStatus.RUNNING, JobStatus.ERROR, JobStatus.INTERRUPTED, JobStatus.COMPLETED]
)
def test_progress_never_decreases_within_a_run(registry, status):
    first = record()
    registry.append(first)
    registry.append(replace(first, status=JobStatus.RUNNING, progress=60))
    with pytest.raises(
        InvalidArgumentError, match="progress must be at least 60, because it never decreases, got 10"
    ) as caught:
        registry.append(replace(first, status=status, progress=10))
    assert caught.value.field == "progress"
    found = registry.latest(first.job_id)
    assert (found.status, found.progress) == (JobStatus.RUNNING, 60)


@pytest.mark.requirement("P13")
def test_a_job_that_never_ran_is_not_begun_by_a_record_that_is_refused(registry):
    first = record(progress=60)
    registry.append(first)
    with pytest.raises(InvalidArgumentError, match="never decreases"):
        registry.append(replace(first, status=JobStatus.RUNNING, progress=10))
    assert registry.latest(first.job_id).status is JobStatus.PENDING


@pytest.mark.requirement("P13")
def test_a_restart_begins_at_no_progress(registry):
    first = record()
    for each in (
        {"status": JobStatus.RUNNING, "progress": 60},
        {"status": JobStatus.INTERRUPTED, "progress": 60},
    ):
        registry.append(replace(first, **each))
    registry.append(replace(first, status=JobStatus.RUNNING, progress=0))
    assert registry.latest(first.job_id).progress == 0


# -- any record ----------------------------------------------------------------------------------------------------

zones = st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23)).map(timezone)
times = st.datetimes(timezones=zones)
texts = st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
records = st.builds(
    JobRecord,
    job_id=st.uuids(version=4).flatmap(lambda one: st.sampled_from([str(one), str(one).upper()])),
    status=st.sampled_from(JobStatus),
    progress=st.integers(0, 99),
    description=st.none() | texts,
    result=values,
    created_at=times,
    updated_at=times,
)
recent = st.builds(
    replace,
    records,
    created_at=st.datetimes(datetime(1971, 1, 1), datetime(2199, 1, 1), timezones=st.just(UTC)),
)
ANY_RECORD = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.requirement("P7", "P5")
@ANY_RECORD
@given(one=records)
@example(one=record(created_at=datetime(1, 1, 1, tzinfo=UTC), updated_at=datetime.max.replace(tzinfo=UTC)))
@example(
    one=record(created_at=datetime(1900, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=53, seconds=28))))
)
def test_any_record_that_is_appended_to_a_file_is_returned_equal_also_after_reopening(tmp_path, one):
    path = tmp_path / "registry.jsonl"
    path.unlink(missing_ok=True)
    registry = JsonlRegistry(path)
    try:
        registry.append(one)
    except InvalidArgumentError:
        assert path.read_bytes() == b""
        return
    assert registry.latest(one.job_id) == one
    assert JsonlRegistry(registry.path).latest(one.job_id.upper()) == one


@pytest.mark.requirement("P7", "P5")
@settings(ANY_RECORD, max_examples=100)
@given(one=recent, later=recent)
@example(one=record(progress=99), later=record(status=JobStatus.COMPLETED, progress=100))
def test_any_record_that_is_appended_to_a_store_is_returned_but_for_what_the_store_decides(one, later):
    with penstock.open_backend("memory:") as backend:
        registry = BackendRegistry(backend)
        try:
            registry.append(one)
        except InvalidArgumentError:
            assert registry.latest(one.job_id) is None
            return
        assert _same(registry.latest(one.job_id), one)
        then = replace(later, job_id=one.job_id, created_at=one.created_at)
        try:
            registry.append(then)
        except (InvalidArgumentError, InvalidJobStateError):
            assert _same(registry.latest(one.job_id), one)
        else:
            assume(one.status is JobStatus.RUNNING or one.status is not later.status)
            assert _same(registry.latest(one.job_id), then)


def _same(found, given_record):
    """Whether a store returned a record: it has its own time of the change, and 100 % belongs to COMPLETED alone."""
    progress = 100 if given_record.status is JobStatus.COMPLETED else min(99, given_record.progress)
    described = given_record.description or None
    if given_record.status is JobStatus.ERROR:
        described = described or "the job failed"
    expected = replace(given_record, progress=progress, description=described, updated_at=found.updated_at)
    assert found == expected
    return True


@pytest.mark.requirement("P7")
def test_a_store_keeps_the_variables_of_a_pending_job_and_refuses_later_changes(tmp_path):
    with penstock.open_backend(f"sqlite:///{tmp_path}/jobs.db") as backend:
        registry = BackendRegistry(backend)
        waiting = record(progress=5, description="in line", result={"part": 1})
        registry.append(waiting)
        kept = registry.latest(waiting.job_id)
        assert (kept.progress, kept.description, kept.result) == (5, "in line", {"part": 1})
        registry.append(waiting)
        with pytest.raises(InvalidJobStateError):
            registry.append(replace(waiting, description="further back"))
        ended = record(JobStatus.COMPLETED, result=1)
        registry.append(ended)
        for change in ({"result": 2}, {"description": "otherwise"}):
            with pytest.raises(InvalidJobStateError):
                registry.append(replace(ended, **change))
        assert registry.latest(ended.job_id).result == 1


# -- one UUID is one job -------------------------------------------------------------------------------------------


@pytest.mark.requirement("P4")
def test_an_id_in_upper_case_is_the_same_job(registry):
    job = record(JobStatus.RUNNING, job_id=VERSION_4.upper(), progress=10)
    registry.append(job)
    registry.append(replace(job, job_id=VERSION_4, progress=20))
    assert [found.job_id for found in registry.all_latest()] == [VERSION_4]
    assert registry.latest(VERSION_4) == registry.latest(VERSION_4.upper())
    assert registry.latest(VERSION_4.upper()).progress == 20


@pytest.mark.parametrize("wrong", [None, 5, [], {}, b"x"])
def test_an_id_that_is_no_text_is_refused_where_a_job_is_looked_up(registry, wrong):
    with JobQueue(registry) as queue:
        verbs = [
            registry.latest, queue.get_job_status, queue.get_job_output, queue.wait_for_job, queue.start_job,
            queue.stop_job, queue.delete_job, queue.suspend_job, queue.resume_job,
        ]  # fmt: skip
        for verb in verbs:
            with pytest.raises(InvalidArgumentError) as caught:
                verb(wrong)
            assert caught.value.field == "job_id", verb


def test_a_file_of_an_older_version_with_other_ids_is_still_read(tmp_path):
    """Version 0.1 accepted any id: such a record is found, closed and deleted."""
    path = tmp_path / "registry.jsonl"
    line = (
        '{"job_id":"%s","status":1,"progress":0,"description":null,"result":null,'
        '"created_at":"2026-01-02T03:04:05Z","updated_at":"2026-01-02T03:04:05Z"}\n'
    )
    path.write_text(line % "job-1" + line % VERSION_4.upper())
    with JobQueue(JsonlRegistry(path)) as queue:
        assert queue.get_job_status("job-1").status is JobStatus.ERROR
        assert queue.get_job_status(VERSION_4).status is JobStatus.ERROR
        queue.delete_job("job-1")
        with pytest.raises(penstock.JobNotFoundError):
            queue.get_job_status("job-1")


# -- the path ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("P7")
def test_a_relative_path_stays_where_it_was_when_the_working_folder_changes(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    monkeypatch.chdir(first)
    registry = JsonlRegistry("registry.jsonl")
    one, other = record(JobStatus.COMPLETED), record(JobStatus.COMPLETED)
    registry.append(one)
    monkeypatch.chdir(second)
    registry.append(other)
    assert registry.all_latest() == [one, other]
    with JobQueue(registry) as queue:
        assert queue.get_job_status(other.job_id) == other
    assert os.listdir(second) == []
    assert registry.path == first / "registry.jsonl"


@pytest.mark.parametrize("path", [None, 5, "", b"registry.jsonl", "a\0b"])
def test_a_path_that_is_none_is_refused(path):
    with pytest.raises(InvalidArgumentError) as caught:
        JsonlRegistry(path)
    assert caught.value.field == "path"


def test_a_working_folder_that_is_gone_is_an_error_of_ours(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BackendError, match="cannot be opened"):
        JsonlRegistry("registry.jsonl")
