"""The cells of the notebook run, one after the other, on the session of these tests."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook" / "rows_as_jobs.ipynb"
CELLS = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


def run(cell: str, namespace: dict[str, object]) -> object:
    """Run a cell as a notebook does: what its last line is, if that is an expression, is its output."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), namespace)
    return (
        None if last is None else eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), namespace)
    )


@pytest.mark.deep
@pytest.mark.process
def test_every_cell_of_the_notebook_runs(spark, tmp_path):
    from penstock.spark import WriteReport

    namespace: dict[str, object] = {"__name__": "notebook"}
    there = 'tempfile.mkdtemp(prefix="notebook-")'
    assert there in CODE[0]
    outputs = [run(cell.replace(there, repr(str(tmp_path))), namespace) for cell in CODE]
    assert [output for output in outputs if isinstance(output, int | str)] == ["customer 7 owes 2.59", 4, 0]
    written = [output for output in outputs if isinstance(output, WriteReport)]
    assert [(each.added, each.skipped) for each in written] == [(39, 0), (0, 39)]
    (counted,) = [
        output for output in outputs if hasattr(output, "columns") and "error_code" in output.columns
    ]
    assert dict(zip(counted["status"], counted["count"], strict=True)) == {"completed": 35, "failed": 4}


def test_the_notebook_has_the_shape_of_one():
    notebook = json.loads(NOTEBOOK.read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)
    assert CELLS[0]["source"][0].startswith("# ")
    assert str(Path.home()) not in NOTEBOOK.read_text("utf-8")
