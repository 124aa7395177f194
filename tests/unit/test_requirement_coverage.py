# The samples below are strings, which the tool does not count: this file proves no requirement by accident.
import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location(
        "requirement_coverage", ROOT / "tools" / "requirement_coverage.py"
    )
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name while it is being loaded.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]


@pytest.fixture
def project(tool, tmp_path, monkeypatch):
    """Make a small project of two areas and return a function that writes a test file into it."""
    listed = tmp_path / "requirements.toml"
    listed.write_text(
        "[requirements]\n"
        'Q1 = { area = "store", summary = "one" }\n'
        'Q2 = { area = "store", summary = "two" }\n'
        'P1 = { area = "worker", summary = "three" }\n'
    )
    tests = tmp_path / "tests"
    tests.mkdir()
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "REQUIREMENTS", listed)
    monkeypatch.setattr(tool, "SCANNED", (tests, tmp_path / "absent"))

    def write(source: str) -> None:
        (tests / "test_sample.py").write_text(source)

    return write


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Q5", ["Q5"]),
        ("proves Q5, B3 (and C36b).", ["Q5", "B3", "C36b"]),
        ("Q41-Q43", ["Q41", "Q42", "Q43"]),
        ("Q41-43", ["Q41", "Q42", "Q43"]),
        ("Q41..Q42", ["Q41", "Q42"]),
        ("Q41\N{EN DASH}Q42", ["Q41", "Q42"]),
        ("Q5-B3", ["Q5", "B3"]),
        ("Q5 - 10 rows", ["Q5"]),
        ("SQ5 Q5x1 q5 Q Q123 fooQ5", []),
    ],
)
def test_ids_are_found_in_text_on_word_boundaries_with_ranges_expanded(tool, text, expected):
    assert list(tool.ids_in_text(text)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("test_q5_eligible_statuses", ["Q5"]),
        ("test_eligible_statuses_q5_b3", ["Q5", "B3"]),
        ("test_C36b", ["C36b"]),
        ("test_sq5_queue5", []),
    ],
)
def test_ids_are_found_in_names_between_underscores(tool, name, expected):
    assert list(tool.ids_in_name(name)) == expected


@pytest.mark.parametrize(
    "source",
    [
        "def test_q1_holds(): pass",
        'def test_it():\n    """Q1: it holds."""',
        'class TestIt:\n    """Q1."""',
        "def test_it():\n    pass  # Q1",
        '@pytest.mark.requirement("Q1", "B3")\ndef test_it(): pass',
        'pytestmark = [pytest.mark.requirement("Q1")]',
        'ROWS = [pytest.param(1, id="Q1 empty")]',
        '@pytest.mark.parametrize("x", [1], ids=["Q1"])\ndef test_it(x): pass',
    ],
)
def test_every_way_to_name_an_id_counts(tool, source):
    assert "Q1" in {mention.id for mention in tool.scan_source(source, "test_sample.py")}


@pytest.mark.parametrize(
    "source",
    [
        '"""This file is about Q1."""',
        'def test_it():\n    print("Q1")',
        "def helper_q1(): pass",
        "Q1 = 1",
    ],
)
def test_what_proves_nothing_does_not_count(tool, source):
    assert list(tool.scan_source(source, "test_sample.py")) == []


def test_the_report_lists_covered_and_missing_ids_by_area(tool, project, capsys):
    project("def test_q1(): pass")
    assert tool.main([]) == 0
    shown = capsys.readouterr().out
    assert "store: 1 of 2\n  covered      Q1\n  not covered\n    Q2    two" in shown
    assert "worker: 0 of 1" in shown
    assert shown.endswith("1 of 3 requirement ids named by a test (33 %)\n")


def test_missing_exits_1_only_while_the_area_has_a_gap(tool, project, capsys):
    project("def test_q1(): pass")
    assert tool.main(["--area", "store", "--missing"]) == 1
    assert "covered      Q1" not in capsys.readouterr().out
    project("def test_q1_q2(): pass")
    assert tool.main(["--area", "store", "--missing"]) == 0
    assert "worker" not in capsys.readouterr().out


def test_json_names_the_places(tool, project, capsys):
    project("\ndef test_q1(): pass")
    assert tool.main(["--json", "--area", "store"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "areas": {
            "store": {"covered": {"Q1": ["tests/test_sample.py:2 test_q1"]}, "missing": {"Q2": "two"}},
        },
        "covered": 1,
        "total": 2,
    }


@pytest.mark.parametrize("wrong", ["Q99", "nonsense"])
def test_an_unknown_id_in_a_mark_is_refused_with_its_place(tool, project, capsys, wrong):
    project(f'@pytest.mark.requirement("Q1", "{wrong}")\ndef test_it(): pass')
    assert tool.main([]) == 2
    assert capsys.readouterr().err == f"tests/test_sample.py:1: no such requirement id: {wrong}\n"


def test_an_unknown_area_is_refused(tool, project, capsys):
    with pytest.raises(SystemExit, match="2"):
        tool.main(["--area", "stor"])
    assert "unknown area 'stor'; there are: store, worker" in capsys.readouterr().err


def test_the_list_has_every_id_once_in_order(tool):
    listed = [requirement.id for requirement in tool.load_requirements(ROOT / "tests" / "requirements.toml")]
    counts = {"Q": 55, "B": 20, "G": 34, "P": 18, "R": 17, "C": 63}
    numbered = [f"{letter}{n}" for letter, last in counts.items() for n in range(1, last + 1)]
    assert [name for name in listed if name[-1].isdigit()] == numbered
    assert [name for name in listed if not name[-1].isdigit()] == ["C36b", "C36c", "C62b"]


def test_every_area_is_known_and_every_summary_is_one_sentence(tool):
    for requirement in tool.load_requirements(ROOT / "tests" / "requirements.toml"):
        assert requirement.area in {"store", "queue", "documents", "worker", "processes", "docs"}
        assert requirement.summary.endswith(".")
        assert len(requirement.summary) < 160


def test_no_mark_in_this_project_names_an_unknown_id(tool):
    requirements = tool.load_requirements(tool.REQUIREMENTS)
    assert tool.unknown_marks(requirements, tool.scan(tool.SCANNED, tool.ROOT)) == []
