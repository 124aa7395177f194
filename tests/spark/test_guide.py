"""What the guide shows is run, and what it lists is what the code has."""

import pytest
from tests.docs.blocks import WITH_SPARK, blocks_of

from penstock.spark._options import _READ, _STREAM
from penstock.spark._selection import SELECTION
from penstock.spark.auditing import INVARIANTS
from penstock.spark.sink import _BATCH_NAMES, _NAMES


@pytest.mark.deep
@pytest.mark.timeout(1200)  # a dozen Spark jobs: minutes where cores are scarce
def test_every_block_of_the_guide_runs(spark, tmp_path, monkeypatch):
    """In one namespace, in a folder of its own, on the session of these tests."""
    monkeypatch.chdir(tmp_path)
    text = WITH_SPARK.read_text("utf-8").replace('"sqlite:///', f'"sqlite:///{tmp_path}/')
    text = text.replace('"look-checkpoint"', repr(str(tmp_path / "checkpoint")))
    text = text.replace('"lake"', repr(str(tmp_path / "lake")))
    namespace: dict[str, object] = {"__name__": "documentation"}
    blocks = [block for block in blocks_of(text) if block.runs]
    assert len(blocks) > 4
    for block in blocks:
        exec(compile("\n" * (block.line - 1) + block.code, str(WITH_SPARK), "exec"), namespace)


def test_every_invariant_is_in_the_guide():
    text = WITH_SPARK.read_text("utf-8")
    assert [name for number, name in INVARIANTS.items() if f"| {number} {name} |" not in text] == []


@pytest.mark.parametrize("option", [*_READ, *SELECTION, *_STREAM, *_NAMES, *_BATCH_NAMES])
def test_every_option_is_in_the_guide(option):
    assert option == "path" or f"| `{option}` |" in WITH_SPARK.read_text("utf-8")
