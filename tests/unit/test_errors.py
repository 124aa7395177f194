"""The tree of errors: codes, attributes, and the way through a pickle."""

import pickle
import re

import pytest

from penstock import errors
from penstock.errors import (
    BackendError,
    DependencyError,
    InvalidArgumentError,
    InvalidTransitionError,
    JobExistsError,
    JobFailedError,
    JobNotFoundError,
    OperationCancelledError,
    PayloadTooLargeError,
    PenstockError,
    ProcessControlError,
    QueueBlockedError,
    QueueClosedError,
    QueueFullError,
    ReportErrors,
    StaleAttemptError,
    shown,
)
from penstock.job import Job
from penstock.policy import FailureCategory, PermanentError, TemporaryError

EXAMPLES = {
    PenstockError: PenstockError("something", detail=1),
    InvalidArgumentError: InvalidArgumentError("limit must be …", field="limit", value=0),
    PayloadTooLargeError: PayloadTooLargeError("result", 2_000_000, 1_048_576),
    DependencyError: DependencyError("a cycle", reason="cycle", job_id="a", value="a → b → a"),
    JobNotFoundError: JobNotFoundError("cat"),
    JobExistsError: JobExistsError(
        "cat", [(0, "cat", "it is already stored"), (4, "dog", "it stands twice")]
    ),
    InvalidTransitionError: InvalidTransitionError("no", job_id="cat", status="completed", verb="fail"),
    StaleAttemptError: StaleAttemptError(
        job_id="cat", status="running", verb="complete", attempt=1, current_attempt=2
    ),
    QueueBlockedError: QueueBlockedError(),
    QueueFullError: QueueFullError(limit=10, waiting=11),
    QueueClosedError: QueueClosedError(),
    JobFailedError: JobFailedError("it failed", job=Job(id="cat", type="resize")),
    OperationCancelledError: OperationCancelledError("too late", timed_out=True),
    ProcessControlError: ProcessControlError("it does not stop"),
    BackendError: BackendError("gone", retryable=True, outcome_unknown=True),
}


def test_every_job_that_is_there_already_is_named():
    failed = [(n, f"j{n}", "it is already stored") for n in range(3)] + [(3, "j3", "its id stands twice")]
    error = JobExistsError("j0", failed)
    assert str(error) == (
        "job 'j0' cannot be added: it is already stored (likewise 'j1', 'j2', 'j3': its id stands twice)"
    )
    assert error.failed == tuple(failed)
    many = JobExistsError("j0", [(n, f"j{n}", "it is already stored") for n in range(1_000)])
    assert len(str(many)) < 1_000
    assert len(many.failed) == 1_000


def attributes(error: Exception) -> dict[str, object]:
    return {name: value for name, value in vars(error).items() if not name.startswith("__")}


def test_every_class_has_an_example_here():
    # ReportErrors is a group of them, with tests of its own below.
    assert {cls.__name__ for cls in EXAMPLES} | {"ReportErrors"} == set(errors.__all__)


def test_a_group_of_refused_reports_is_an_error_like_others():
    """B2: caught with the root, taken apart with `except*`, and whole after pickling."""
    group = errors.ReportErrors("1 of 2 reports were refused", [JobNotFoundError("cat")], {"worker": 1})
    assert isinstance(group, PenstockError)
    assert (group.code, group.freed) == ("reports_refused", {"worker": 1})
    again = pickle.loads(pickle.dumps(group))
    assert (str(again), again.freed, again.exceptions[0].job_id) == (str(group), {"worker": 1}, "cat")
    seen = []
    try:
        raise group
    except* JobNotFoundError as part:
        seen += part.exceptions
    assert [error.job_id for error in seen] == ["cat"]


@pytest.mark.parametrize("error", EXAMPLES.values(), ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling_with_all_its_attributes(error, protocol):
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert type(copy) is type(error)
    assert attributes(copy) == attributes(error)
    assert str(copy) == str(error)
    assert copy.code == error.code
    assert pickle.loads(pickle.dumps(copy, protocol)).args == copy.args


@pytest.mark.parametrize("cls", EXAMPLES, ids=lambda cls: cls.__name__)
def test_an_error_has_every_attribute_that_its_class_announces(cls):
    announced = [name for base in cls.__mro__ for name in getattr(base, "__annotations__", {})]
    missing = [name for name in announced if not hasattr(EXAMPLES[cls], name)]
    assert [name for name in missing if name != "__notes__"] == []


def test_codes_are_snake_case_and_unique():
    codes = [cls.code for cls in EXAMPLES]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)


def test_errors_are_also_what_plain_python_would_raise():
    assert issubclass(InvalidArgumentError, ValueError)
    assert issubclass(JobNotFoundError, LookupError)
    assert issubclass(StaleAttemptError, InvalidTransitionError)
    assert issubclass(PayloadTooLargeError, InvalidArgumentError)
    assert issubclass(DependencyError, InvalidArgumentError)
    assert all(issubclass(cls, PenstockError) for cls in EXAMPLES)


def test_a_blocked_queue_says_so():
    assert str(QueueBlockedError()) == "Queue is blocked"


def test_a_message_names_the_value_and_the_way_out():
    assert "2000000 bytes" in str(EXAMPLES[PayloadTooLargeError])
    assert "max_payload" in str(EXAMPLES[PayloadTooLargeError])
    assert (
        str(EXAMPLES[JobExistsError])
        == "job 'cat' cannot be added: it is already stored (likewise 'dog': it stands twice)"
    )
    assert "attempt 1" in str(EXAMPLES[StaleAttemptError])
    assert "attempt is 2" in str(EXAMPLES[StaleAttemptError])
    assert "max_pending is 10" in str(EXAMPLES[QueueFullError])


def test_job_exists_lists_all_conflicts_and_nothing_was_stored():
    error = EXAMPLES[JobExistsError]
    assert error.failed == ((0, "cat", "it is already stored"), (4, "dog", "it stands twice"))
    assert error.enqueued_ids == []


class TestReportErrors:
    group = ReportErrors(
        "2 of 3 reports were refused", [JobNotFoundError("a"), EXAMPLES[StaleAttemptError]], {"worker-1": 1}
    )

    def test_it_survives_pickling_with_what_it_freed(self):
        copy = pickle.loads(pickle.dumps(self.group))
        assert type(copy) is ReportErrors
        assert copy.freed == {"worker-1": 1}
        assert [type(error) for error in copy.exceptions] == [JobNotFoundError, StaleAttemptError]
        assert copy.exceptions[1].current_attempt == 2

    def test_splitting_keeps_what_it_freed(self):
        match, rest = self.group.split(JobNotFoundError)
        assert match.freed == rest.freed == {"worker-1": 1}
        assert [type(error) for error in rest.exceptions] == [StaleAttemptError]

    def test_without_a_map_nothing_was_freed(self):
        assert ReportErrors("one", [JobNotFoundError("a")]).freed == {}


class TestHandlerErrors:
    """G28, G29: what a handler raises says the category, and whether and when to try again."""

    def test_a_temporary_error_carries_cause_delay_and_code(self):
        cause = OSError("refused")
        error = TemporaryError("no answer", cause, retry_after=30, code="http_503")
        assert error.category is FailureCategory.TEMPORARY
        assert (error.__cause__, error.retry_after.total_seconds(), error.code) == (cause, 30, "http_503")

    def test_a_permanent_error_carries_cause_and_code(self):
        cause = ValueError("bad")
        error = PermanentError("cannot be read", cause, code="bad_image")
        assert error.category is FailureCategory.PERMANENT
        assert (error.__cause__, error.code) == (cause, "bad_image")

    def test_both_survive_pickling_without_their_cause(self):
        # A cause may hold anything, also what cannot be pickled.
        temporary = pickle.loads(pickle.dumps(TemporaryError("t", OSError(), retry_after=2.5, code="x")))
        permanent = pickle.loads(pickle.dumps(PermanentError("p", OSError(), code="y")))
        assert (temporary.message, temporary.retry_after.total_seconds(), temporary.code) == ("t", 2.5, "x")
        assert (permanent.message, permanent.cause, permanent.code) == ("p", None, "y")

    @pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), True, "soon"])
    def test_a_wrong_delay_is_refused(self, wrong):
        with pytest.raises(InvalidArgumentError) as caught:
            TemporaryError("no answer", retry_after=wrong)
        assert caught.value.field == "retry_after"


class TestShown:
    def test_long_values_are_cut(self):
        assert len(shown("x" * 10_000)) < 200
        assert "10000 characters" in shown("x" * 10_000)

    def test_a_broken_repr_does_not_hide_the_error(self):
        class Broken:
            def __repr__(self):
                raise RuntimeError("no")

        assert shown(Broken()) == "<Broken>"

    def test_what_cannot_be_encoded_is_escaped(self):
        shown("\ud800").encode()


@pytest.mark.parametrize("text", ["x" * 300_000, "a://" * 75_000, "password=" * 30_000, "a:b@" * 75_000])
def test_a_long_value_is_shown_without_searching_all_of_it(text):
    """Searched to its end at every letter, one of these would take hours."""
    assert len(shown([text])) < 300
    assert shown([text]).endswith(f"({len(text) + 4} characters)")


def test_the_usual_error_for_an_argument_names_field_limit_and_value():
    error = errors.invalid("limit", "a whole number from 1 to 10", "many")
    assert str(error) == "limit must be a whole number from 1 to 10, got 'many'"
    assert (error.field, error.value) == ("limit", "many")


def test_the_error_for_unknown_names_lists_them_and_the_known_ones():
    errors.check_known("field", ["type", "tags"], ("type", "tags"))
    with pytest.raises(
        InvalidArgumentError, match=r"^unknown field 'colour', 'size' \(known: type, tags\)$"
    ) as caught:
        errors.check_known("field", ["colour", "tags", "size"], ("type", "tags"), field="fields")
    assert (caught.value.field, caught.value.value) == ("fields", ["colour", "size"])
