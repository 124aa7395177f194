"""The page about a store of one's own leads to a suite that runs."""

import os
import subprocess
import sys

import pytest
from tests.docs.blocks import ROOT, blocks_of, file_name


@pytest.mark.deep
@pytest.mark.slow
def test_the_files_of_the_page_are_a_suite_that_passes(tmp_path):
    text = (ROOT / "docs" / "guides" / "testing-a-backend.md").read_text("utf-8")
    for block in blocks_of(text):
        (tmp_path / file_name(block)).write_text(block.code, "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "idempotency or flow"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
