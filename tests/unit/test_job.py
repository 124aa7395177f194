"""The job, its key, and the two views of its status."""

import pickle
import uuid
from enum import StrEnum

import msgspec
import pytest

from penstock.errors import InvalidArgumentError
from penstock.job import (
    CANCELLED,
    ELIGIBLE,
    FINAL,
    IN_FLIGHT,
    TEXT_LIMITS,
    Job,
    JobState,
    JobStatus,
    Key,
    Priority,
    ProcessStatus,
    state_of,
)

WAITING, READY, LATER = "waiting", "ready", "later"
SITUATIONS = {
    WAITING: {"is_due": True, "is_waiting": True},
    READY: {"is_due": True, "is_waiting": False},
    LATER: {"is_due": False, "is_waiting": False},
}

# Per status: the formal state when it waits for others, when it is ready, and when its time has not come.
STATES = {
    JobStatus.INITIAL_PENDING: (JobState.PENDING, JobState.SCHEDULED, JobState.DELAYED),
    JobStatus.FAILED_RETRY: (JobState.SCHEDULED, JobState.SCHEDULED, JobState.RETRYING),
    JobStatus.UNKNOWN_RETRY: (JobState.SCHEDULED, JobState.SCHEDULED, JobState.RETRYING),
    JobStatus.RUNNING: (JobState.RUNNING,) * 3,
    JobStatus.CANCELLING: (JobState.RUNNING,) * 3,
    JobStatus.COMPLETED: (JobState.COMPLETED,) * 3,
    JobStatus.FAILED: (JobState.FAILED,) * 3,
    JobStatus.DEAD_LETTER: (JobState.DEAD_LETTER,) * 3,
    JobStatus.STOPPED: (JobState.CANCELLED,) * 3,
    JobStatus.UNSCHEDULED: (JobState.CANCELLED,) * 3,
    JobStatus.UNKNOWN_STOPPED: (JobState.CANCELLED,) * 3,
}
PROCESS = {
    JobStatus.INITIAL_PENDING: ProcessStatus.PENDING,
    JobStatus.FAILED_RETRY: ProcessStatus.PENDING,
    JobStatus.UNKNOWN_RETRY: ProcessStatus.PENDING,
    JobStatus.RUNNING: ProcessStatus.RUNNING,
    JobStatus.CANCELLING: ProcessStatus.RUNNING,
    JobStatus.COMPLETED: ProcessStatus.COMPLETED,
    JobStatus.FAILED: ProcessStatus.ERROR,
    JobStatus.DEAD_LETTER: ProcessStatus.ERROR,
    JobStatus.STOPPED: ProcessStatus.INTERRUPTED,
    JobStatus.UNSCHEDULED: ProcessStatus.INTERRUPTED,
    JobStatus.UNKNOWN_STOPPED: ProcessStatus.INTERRUPTED,
}


class TestViews:
    """G3, G4, G6: every other vocabulary is a view of the stored status."""

    @pytest.mark.parametrize("status", JobStatus)
    @pytest.mark.parametrize("situation", SITUATIONS)
    def test_the_formal_state(self, status, situation):
        expected = STATES[status][list(SITUATIONS).index(situation)]
        assert state_of(status, **SITUATIONS[situation]) is expected

    def test_waiting_for_others_counts_more_than_time(self):
        assert state_of(JobStatus.INITIAL_PENDING, is_due=False, is_waiting=True) is JobState.PENDING

    def test_every_state_is_reached(self):
        assert {state for states in STATES.values() for state in states} == set(JobState)

    @pytest.mark.parametrize("status", JobStatus)
    def test_the_process_view(self, status):
        assert Job(id="a", type="t", status=status).process_status is PROCESS[status]

    def test_every_process_status_is_reached_and_has_its_number(self):
        assert set(PROCESS.values()) == set(ProcessStatus)
        assert [int(status) for status in ProcessStatus] == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("status", JobStatus)
    def test_a_status_is_of_exactly_one_kind(self, status):
        kinds = (status.is_eligible, status.holds_slot, status.is_final)
        assert kinds == (status in ELIGIBLE, status in IN_FLIGHT, status in FINAL)
        assert sum(kinds) == 1

    def test_there_are_eleven_statuses_stored_as_their_lower_case_names(self):
        assert len(JobStatus) == 11
        assert [str(status) for status in JobStatus] == [status.name.lower() for status in JobStatus]
        assert CANCELLED < FINAL


class TestJob:
    def test_g1_a_system_issued_id_is_a_random_uuid(self):
        ids = {Job.new("resize").id for _ in range(100)}
        assert len(ids) == 100
        assert {uuid.UUID(each).version for each in ids} == {4}
        assert {uuid.UUID(each).variant for each in ids} == {uuid.RFC_4122}
        assert {str(uuid.UUID(each)) for each in ids} == ids

    def test_new_takes_every_field_by_name(self):
        job = Job.new("resize", b"{}", tags=["a"], priority=Priority.HIGH, correlation_id="c")
        assert (job.type, job.payload, job.tags, job.priority) == ("resize", b"{}", ("a",), Priority.HIGH)

    def test_every_text_that_may_be_none_has_a_limit(self):
        texts = {each.name for each in msgspec.structs.fields(Job) if each.type == (str | None)}
        assert texts == TEXT_LIMITS.keys()

    def test_g7_defaults(self):
        job = Job(id="a", type="t")
        assert job.priority is Priority.NORMAL
        assert job.status is JobStatus.INITIAL_PENDING
        assert (job.payload, job.tags, job.key, job.retry, job.attempt) == (b"", (), None, None, 0)
        assert [int(priority) for priority in Priority] == [0, 1, 2, 3, 4]
        assert Priority.CRITICAL < Priority.HIGH < Priority.NORMAL < Priority.LOW < Priority.BULK

    def test_it_is_frozen(self):
        job = Job(id="a", type="t")
        with pytest.raises(AttributeError):
            job.status = JobStatus.COMPLETED

    def test_all_fields_are_keywords(self):
        with pytest.raises(TypeError):
            Job("a", "t")

    @pytest.mark.parametrize("field", ["tags", "after", "after_any"])
    def test_lists_become_tuples_without_repeats_in_their_order(self, field):
        job = Job(id="a", type="t", **{field: ["x", "y", "x"]})
        assert getattr(job, field) == ("x", "y")

    @pytest.mark.parametrize("field", ["tags", "after", "after_any"])
    @pytest.mark.parametrize("wrong", ["text", b"bytes", 7, ["a", 1], [None]])
    def test_what_is_no_list_of_texts_is_refused(self, field, wrong):
        with pytest.raises(InvalidArgumentError) as caught:
            Job(id="a", type="t", **{field: wrong})
        assert caught.value.field == field

    def test_no_payload_is_an_empty_one(self):
        assert Job(id="a", type="t", payload=None).payload == b""

    def test_it_survives_pickling_whole(self):
        job = Job.new("t", b"\x00", tags=("a", "b"), key=Key("k", "l"), after=["x"])
        copy = pickle.loads(pickle.dumps(job))
        assert copy == job
        assert type(copy.key) is Key

    def test_plain_means_nothing_special_was_asked_for(self):
        assert Job.new("t", b"data", tags=["a"], priority=0).is_plain
        for special in (
            {"key": "k"},
            {"after": ["x"]},
            {"held": True},
            {"idempotency_key": "i"},
            {"attempt": 1},
        ):
            assert not Job.new("t", **special).is_plain

    def test_completed_at_is_the_formal_name_of_finalized_at(self):
        assert Job(id="a", type="t").completed_at is None
        assert "completed_at" not in Job.__struct_fields__

    def test_a_copy_with_changes_is_checked_again(self):
        job = msgspec.structs.replace(Job(id="a", type="t"), tags=["x", "x"])
        assert job.tags == ("x",)


class TestKey:
    def test_it_is_a_tuple_of_its_parts(self):
        key = Key("document", "scope", "main")
        assert key == ("document", "scope", "main")
        assert repr(key) == "Key('document', 'scope', 'main')"
        assert pickle.loads(pickle.dumps(key)) == key

    @pytest.mark.parametrize("given", ["customer", ("customer",), ["customer"], Key("customer")])
    def test_a_job_takes_a_text_or_a_sequence_for_a_key(self, given):
        key = Job(id="a", type="t", key=given).key
        assert type(key) is Key
        assert key == ("customer",)

    def test_parts_may_be_empty_but_not_all_of_them(self):
        assert Key("", "b") == ("", "b")
        with pytest.raises(InvalidArgumentError):
            Key("", "")

    @pytest.mark.parametrize("parts", [(), (1,), ("a", None), (b"a",), ("",)])
    def test_other_parts_are_refused(self, parts):
        with pytest.raises(InvalidArgumentError) as caught:
            Key(*parts)
        assert caught.value.field == "key"

    @pytest.mark.parametrize("given", [7, b"bytes", {"a": 1}, ""])
    def test_a_job_refuses_what_is_no_key(self, given):
        with pytest.raises(InvalidArgumentError) as caught:
            Job(id="a", type="t", key=given)
        assert caught.value.field == "key"

    def test_keys_with_different_parts_differ(self):
        assert Key("a", "b") != Key("a b") != Key("ab")


def test_tags_of_enumerations_are_plain_text() -> None:
    class Team(StrEnum):
        RED = "red"

    job = Job(id="a", type="t", tags=(Team.RED, "red", "blue"))
    assert job.tags == ("red", "blue")
    assert {type(tag) for tag in job.tags} == {str}
