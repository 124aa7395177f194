"""The command line, run inside this process: quick, and with the same way out as the real one."""

import io
import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.stores import postgres_database, postgres_url  # noqa: F401  # fixtures
from tests.stores import unmade_store as shared_store  # noqa: F401  # a fixture; commands make their store

from penstock import cli


class Done(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


class CommandLine:
    """`penstock …` in a folder of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: object, stdin: str | bytes = b"") -> Done:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
            self._capsys.readouterr()
            code = cli.run([str(each) for each in arguments])
        out, err = self._capsys.readouterr()
        return Done(code, out, err)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path


@pytest.fixture
def penstock(tmp_path, capsys, monkeypatch):
    """Runs the command line in an empty folder, with none of the user's settings."""
    for name in [each for each in os.environ if each.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return CommandLine(tmp_path, capsys, monkeypatch)
