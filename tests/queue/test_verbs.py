"""The verbs of a queue that are made out of the store's."""

import inspect
import typing

import pytest

from penstock import Backend, Job, Queue
from penstock.queue._verbs import StoreVerbs

ROLE_VERBS = {"overview", "count_jobs", "select_jobs", "find_ids", "get_output", "job_history"}
OWN = {"backend", "iter_jobs", "restart_job"}
VERBS = sorted(name for name in vars(StoreVerbs) if not name.startswith("_") and name not in OWN)
REPORTS = [
    "complete_job",
    "complete_jobs",
    "fail_job",
    "fail_jobs",
    "stop_job",
    "stop_jobs",
    "stop_job_with_retry",
    "stop_jobs_with_retry",
    "mark_job_unknown_stopped",
    "mark_jobs_unknown_stopped",
    "update_job_status",
    "release_jobs",
    "acknowledge_cancellation",
    "acknowledge_cancellations",
]


@pytest.mark.parametrize("name", sorted({*VERBS} - ROLE_VERBS))
def test_a_verb_has_the_parameters_of_the_stores(name: str) -> None:
    made, verb = getattr(Queue, name), getattr(Backend, name)
    assert inspect.signature(made).parameters == inspect.signature(verb).parameters
    assert made.__doc__.startswith(f"See `Backend.{name}`.")
    assert {*typing.get_type_hints(made)} == {*typing.get_type_hints(verb)}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_documented_to_return_nothing(name: str) -> None:
    made = getattr(Queue, name)
    assert inspect.signature(made).return_annotation == "None"
    assert typing.get_type_hints(made)["return"] is type(None)


def test_a_report_returns_nothing_and_other_verbs_what_the_store_returns(queue: Queue) -> None:
    queue.enqueue_jobs([Job(id="a", type="t", priority=0), Job(id="b", type="t")])
    queue.claim_jobs("w", 2)
    assert queue.complete_job("a", b"") is None
    assert queue.fail_jobs({"b": "why"}) is None
    assert [each.id for each in queue.list_jobs()] == ["a", "b"]
    assert queue.find_ids("a") == ["a"]
    assert [entry.verb for entry in queue.job_history("a")] == ["enqueue", "claim", "complete"]
