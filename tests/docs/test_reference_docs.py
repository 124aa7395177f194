"""The reference says what the code says: made from it where that can be, and whole."""

import importlib
import importlib.util
import pkgutil
import re
from enum import Enum
from pathlib import Path

import pytest

from penstock import errors
from penstock.events import Event, EventKind

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
MODULES = [
    "penstock",
    "penstock.aio",
    "penstock.callbacks",
    "penstock.documents",
    "penstock.events",
    "penstock.app.schedules",
    "penstock.processes",
    "penstock.spark",
    "penstock.testing",
]


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("reference_docs", ROOT / "tools" / "reference_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_up_to_date(tool):
    assert tool.main(["--check"]) == 0, "run python tools/reference_docs.py"


def test_check_fails_and_writes_nothing_when_a_part_is_stale(tool, tmp_path, monkeypatch, capsys):
    page = tmp_path / "events.md"
    page.write_text("before\n<!-- generated: x -->\nold\n<!-- end: x -->\nafter\n")
    monkeypatch.setattr(tool, "REFERENCE", tmp_path)
    monkeypatch.setattr(tool, "PARTS", {"x": ("events.md", lambda: "new")})
    assert tool.main(["--check"]) == 1
    assert "events.md is out of date" in capsys.readouterr().err
    assert "old" in page.read_text()
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0
    assert page.read_text() == "before\n<!-- generated: x -->\n\nnew\n\n<!-- end: x -->\nafter\n"


def test_a_page_without_a_place_for_its_part_is_named(tool):
    with pytest.raises(LookupError, match="no <!-- generated: x -->"):
        tool.fresh("nothing here", "x", "new")


def test_an_event_without_a_description_is_named(tool, monkeypatch):
    monkeypatch.setattr(EventKind, "__doc__", "Attributes:\n    JOB_STARTED: it began.\n")
    with pytest.raises(LookupError, match="JOB_AVAILABLE"):
        tool.members(EventKind)


def test_every_field_and_kind_of_event_is_described(tool):
    assert tool.attributes(EventKind).keys() == {kind.name for kind in EventKind}
    assert list(tool.attributes(Event)) == sorted(
        Event.__struct_fields__, key=list(tool.attributes(Event)).index
    )


def test_every_error_says_what_its_attributes_mean(tool):
    for name in errors.__all__:
        error = getattr(errors, name)
        own = {each for each in error.__annotations__ if each != "code"}
        assert own <= tool.attributes(error).keys(), name


def described() -> dict[str, object]:
    """What the pages of the reference have mkdocstrings describe, by its path."""
    found = {}
    for page in REFERENCE.glob("*.md"):
        for path in re.findall(r"^::: ([\w.]+)$", page.read_text("utf-8"), re.MULTILINE):
            assert path not in found, f"{path} is described twice"
            found[path] = pkgutil.resolve_name(path)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_reference(module):
    known = described()
    public = importlib.import_module(module)
    things = [*known.values()]
    missing = [
        name
        for name in public.__all__
        if f"{module}.{name}" not in known and not any(getattr(public, name) is each for each in things)
    ]
    assert missing == []


#: Their fields are columns of a table that has a page.
WITH_A_TABLE = {"penstock.Job", "penstock.job.JournalEntry", "penstock.testing.FoldedJob"}


def parts_of(thing: object) -> list[str]:
    """The fields of a struct, tuple or dataclass, or the members of an enum."""
    if isinstance(thing, type) and issubclass(thing, Enum):
        return list(thing.__members__)
    for name in ("__struct_fields__", "_fields", "__dataclass_fields__"):
        if hasattr(thing, name):
            return list(getattr(thing, name))
    return []


@pytest.mark.parametrize("path", sorted(described().keys() - WITH_A_TABLE))
def test_every_field_and_member_is_described(path, tool):
    thing = pkgutil.resolve_name(path)
    parts = parts_of(thing)
    if parts:
        assert [part for part in parts if part not in tool.attributes(thing)] == []
