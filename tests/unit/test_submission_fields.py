"""The fields of a submission are listed once, in `queue/requests.py`; whatever submits jobs offers them or says why not.

A new field there fails these tests until the command line and the Spark sink offer it, or a reason stands here.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping

import pytest

from penstock import Job, Queue
from penstock.app.task import TASK_FIELDS, TaskOptions
from penstock.cli._job_options import _KEYS, JobOptions, submit_arguments
from penstock.queue.requests import SUBMIT_FIELDS

#: Fields that are given by parts: the name there, and the field that it is a part of.
PARTS = {"max_attempts": "retry", "timeout": "timeouts", "execution_timeout": "timeouts"}

NOT_AN_OPTION = {
    "after_any": "lines of JSON have it; one command submits one job, which seldom waits for any of several",
    "parent_id": "ancestry is set by the job that spawns, not by a person",
    "held": "only a claim by id takes the job, and no command claims",
}
NOT_IN_LINES = {name: why for name, why in NOT_AN_OPTION.items() if name != "after_any"}
NOT_A_COLUMN = {
    "after_any": "frames name what must complete; a job that waits for any of several is submitted by hand",
    "delay": "`run_at` says it for each row, and a repeated task stores the same moment",
    "unique": "a repeated task must find the key also after its job has ended, or it would add the job twice",
    "parent_id": "ancestry is set by the job that spawns, not by a frame",
    "held": "only a claim by id takes the job, and rows are claimed by workers",
}


def offered(names: Iterable[str]) -> set[str]:
    return {PARTS.get(name, name) for name in names} - {"type", "payload", "id"}


def check(names: Iterable[str], left_out: Mapping[str, str]) -> None:
    assert offered(names) | left_out.keys() == SUBMIT_FIELDS
    assert not offered(names) & left_out.keys(), "a reason for a field that is offered"


def test_a_job_has_every_field() -> None:
    assert SUBMIT_FIELDS - {"delay"} <= set(Job.__struct_fields__)


def test_submit_shows_and_describes_every_field() -> None:
    for verb in (Queue.submit, Queue.new_job):
        assert offered(inspect.signature(verb).parameters) - {"self"} == SUBMIT_FIELDS
    text = inspect.getdoc(Queue.submit) or ""
    assert [name for name in sorted(SUBMIT_FIELDS) if f"    {name}: " not in text] == []


def test_a_task_takes_every_field_and_a_timeout() -> None:
    assert SUBMIT_FIELDS | {"timeout"} == TASK_FIELDS
    assert TaskOptions.__required_keys__ | TaskOptions.__optional_keys__ == TASK_FIELDS


def test_an_option_of_the_command_line_gives_every_field_that_has_no_reason_against_it() -> None:
    check((each.name for each in dataclasses.fields(JobOptions)), NOT_AN_OPTION)


def test_a_line_of_json_gives_every_field_that_has_no_reason_against_it() -> None:
    check(_KEYS, NOT_IN_LINES)


def test_what_the_command_line_passes_on_are_fields_of_a_submission() -> None:
    given = {
        "max_attempts": 2,
        "timeout": "5s",
        "delay": "1s",
        "run_at": "2026-01-01T00:00Z",
        "priority": "low",
    }
    names = {each.name for each in dataclasses.fields(JobOptions)}
    assert submit_arguments({**dict.fromkeys(names, "x"), **given}).keys() <= SUBMIT_FIELDS


@pytest.mark.slow
def test_a_column_of_the_sink_gives_every_field_that_has_no_reason_against_it() -> None:
    pytest.importorskip("pyspark")
    from penstock.spark._rows import COLUMNS  # needs the extra

    check((column.name for column in COLUMNS), NOT_A_COLUMN)
