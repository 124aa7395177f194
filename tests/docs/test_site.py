"""The site builds without a warning, and holds what the pages say."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.xdist_group("site")  # it is built once, by the process that runs them


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin", "HOME": str(folder.parent)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_a_warning(site):
    assert (site / "index.html").exists()


@pytest.mark.slow
def test_the_site_asks_nobody_else_for_anything(site):
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert "fonts.googleapis" not in text
        assert '<script src="http' not in text


@pytest.mark.slow
def test_a_name_can_be_looked_up_by_its_anchor(site):
    text = (site / "reference" / "errors" / "index.html").read_text("utf-8")
    assert 'id="penstock.StaleAttemptError"' in text
    assert 'id="penstock.spark.session"' in (site / "reference" / "api-spark" / "index.html").read_text(
        "utf-8"
    )


def test_every_design_record_is_in_the_index():
    index = (ROOT / "docs" / "design" / "index.md").read_text("utf-8")
    records = sorted((ROOT / "docs" / "design").glob("[0-9]*.md"))
    assert [each.name for each in records if f"({each.name})" not in index] == []
