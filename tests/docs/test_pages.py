"""What the pages say about names, options and limits is compared with the code."""

import inspect
import re
from pathlib import Path

import pytest
import typer.main

import penstock
from penstock import errors
from penstock.backends import options
from penstock.backends.engine import arguments
from penstock.backends.postgres import backend as postgres_backend
from penstock.backends.sqlite import backend as sqlite_backend
from penstock.cli import app
from penstock.job import TEXT_LIMITS, Job, JobStatus, JournalEntry
from penstock.lifecycle import Verb
from penstock.policy import RetryPolicy, Timeouts

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def public_errors() -> list[type[errors.PenstockError]]:
    return [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("error", public_errors(), ids=lambda error: error.__name__)
def test_every_error_is_documented_with_its_code_and_attributes(error):
    name = error.__name__
    begin = rf"^\| \[`{name}`\]\(#penstock\.{name}\) \| `{error.code}` \|"
    (row,) = re.findall(rf"{begin}.*$", page("reference/errors.md"), re.MULTILINE)
    own = [name for name in error.__annotations__ if name != "code"]
    assert [name for name in own if f"`{name}`" not in row and name != "value"] == []


def test_every_status_field_and_verb_is_in_the_life_of_a_job():
    text = page("concepts/job-life.md")
    for status in JobStatus:
        assert f"| {status.name} |" in text
    for field in (*Job.__struct_fields__, *RetryPolicy.__struct_fields__, *Timeouts.__struct_fields__):
        assert f"`{field}`" in text, field
    for verb in Verb:
        assert f"`{verb}`" in text, verb


def test_every_column_is_in_the_page_about_the_journal():
    text = page("concepts/journal.md")
    assert [name for name in JournalEntry.__struct_fields__ if f"`{name}`" not in text] == []


def test_every_option_is_in_the_pages_about_stores():
    both = page("guides/stores.md")
    own = page("guides/postgres.md")
    names = [*options.StoreOptions.__struct_fields__, *sqlite_backend._OWN_OPTIONS]
    assert [name for name in names if f"| `{name}` |" not in both] == []
    assert [name for name in postgres_backend._OWN_OPTIONS if f"| `{name}` |" not in both + own] == []
    named = re.findall(r"`(\w+)(?:=\w+)?`", inspect.getdoc(penstock.open_backend).split("**options:")[1])
    assert [name for name in named if f"| `{name}` |" not in both + own] == []


def test_every_option_of_a_worker_is_in_its_guide():
    text = page("guides/workers.md")
    command = typer.main.get_command(app).commands["worker"]
    options = [each for each in command.params if each.name != "app" and not each.hidden]
    shown = [option.opts[0] for option in options if option.opts[0] != "--help"]
    assert [name for name in shown if f"`{name}`" not in text] == []
    settings = inspect.signature(penstock.Worker).parameters.keys() - {"app", "name"}
    assert [name for name in settings if f"`{name}`" not in text] == []


def test_limits_are_those_of_the_code():
    text = page("concepts/job-life.md")
    for number in (
        *TEXT_LIMITS.values(),
        arguments.MAX_ID,
        arguments.MAX_TYPE,
        arguments.MAX_TAGS,
        arguments.MAX_KEY_BYTES,
        arguments.MAX_DEPENDENCIES,
        options.StoreOptions().max_depth,
        arguments.FIRST_YEAR,
        arguments.LAST_YEAR,
    ):
        assert re.search(rf"\b{number}\b", text), number


def test_every_verb_of_the_contract_has_a_docstring():
    verbs = {
        name: verb
        for name, verb in inspect.getmembers(penstock.Backend, inspect.isfunction)
        if not name.startswith("_")
    }
    assert [name for name, verb in verbs.items() if not verb.__doc__] == []
    assert len(verbs) > 40


def test_g33_handlers_are_shown_to_be_idempotent_and_secrets_kept_out_of_payloads_and_logs():
    text = page("guides/writing-handlers.md")  # its code is run by test_code_blocks
    for heading in ("## Idempotent handlers", "## Secrets in payloads", "## Secrets in logs"):
        assert f"\n{heading}\n" in text


def test_no_line_has_trailing_blanks():
    for file in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            assert line == line.rstrip(), f"{file.name}:{number}"


def test_every_event_of_the_log_is_in_the_page_about_integrations():
    from penstock import logs

    rows = re.findall(r"^\| `([a-z._]+)` \| (.+) \|$", page("guides/integrations.md"), re.MULTILINE)
    assert [row for row in rows if row[0] in logs.EVENTS] == list(logs.EVENTS.items())
