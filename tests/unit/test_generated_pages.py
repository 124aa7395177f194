"""Pages that are made from the code are as the code is now."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_pages_about_the_command_line_are_up_to_date():
    assert load("cli_docs").main(["--check"]) == 0, "run python tools/cli_docs.py"
