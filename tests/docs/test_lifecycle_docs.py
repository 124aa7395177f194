"""The picture and the table of moves are made from the table in the code."""

import importlib.util
import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from penstock.job import ELIGIBLE, FINAL, IN_FLIGHT, JobStatus
from penstock.lifecycle import LATE_MOVES, MOVES, Move, Verb

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("lifecycle_docs", ROOT / "tools" / "lifecycle_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_picture_and_table_are_up_to_date(tool):
    assert tool.main(["--check"]) == 0, "run python tools/lifecycle_docs.py"


def test_check_fails_and_writes_nothing_when_something_is_stale(tool, tmp_path, monkeypatch, capsys):
    picture, page = tmp_path / "job-life.svg", tmp_path / "job-life.md"
    page.write_text(f"before\n{tool.BEGIN}\nold\n{tool.END}\nafter\n")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "PICTURE", picture)
    monkeypatch.setattr(tool, "PAGE", page)
    assert tool.main(["--check"]) == 1
    assert capsys.readouterr().err.count("is out of date") == 2
    assert not picture.exists()
    assert "old" in page.read_text()
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("after\n")


def test_the_picture_has_one_arrow_for_every_pair_of_statuses(tool):
    arrows = {(move.source, move.target) for move in (*MOVES, *LATE_MOVES)}
    assert tool.lines().keys() == arrows
    drawn = ET.fromstring(tool.picture())
    tips = [node for node in drawn.iter() if node.get("class") == "tip"]
    assert len(tips) == len(arrows)


def test_every_status_stands_in_the_band_of_its_kind(tool):
    kinds = {"eligible": ELIGIBLE, "in flight": IN_FLIGHT, "final": FINAL}
    for name, statuses in kinds.items():
        _, band = tool.BANDS[name]
        for status in statuses:
            box = tool.BOXES[status]
            assert band.x <= box.x < box.right <= band.right
            assert band.y <= box.y < box.bottom <= band.bottom
    assert tool.BOXES.keys() == set(JobStatus)


def test_no_label_lies_on_another_or_on_a_box(tool):
    rooms = [room for _, room in tool.labels().values()] + list(tool.BOXES.values())
    assert [pair for pair in itertools.combinations(rooms, 2) if pair[0].overlaps(pair[1])] == []
    assert all(room.x >= 0 and room.right <= tool.WIDTH and room.bottom <= tool.HEIGHT for room in rooms)


def test_a_move_without_a_line_is_named(tool, monkeypatch):
    odd = Move(Verb.CLAIM, JobStatus.FAILED, JobStatus.RUNNING, "never")
    monkeypatch.setattr(tool, "MOVES", (*MOVES, odd))
    with pytest.raises(LookupError, match="no line for FAILED → RUNNING"):
        tool.picture()


def test_the_table_has_every_verb_with_its_effect(tool):
    table = tool.table()
    for move in MOVES:
        assert f"| `{move.verb}` |" in table
        assert move.effect in table
