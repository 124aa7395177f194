"""The site builds without a warning, and holds what the pages say."""

import re
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
    assert (site / "llms.txt").exists()


@pytest.mark.slow
def test_the_site_loads_nothing_from_other_hosts(site):
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


def test_the_home_page_shows_the_navigation_and_begins_with_what_it_is():
    home = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert not home.startswith("---"), "front matter could hide the navigation"
    assert "hide:" not in home
    assert "job-life.svg" not in home
    assert home.startswith("# Penstock\n\nPenstock is a durable job queue for Python.\n")
    heads = re.findall(r"^## (.+)$", home, re.MULTILINE)
    assert heads == ["Ten lines", "What you get", "Where to go next"]


def test_every_page_is_reached_from_the_home_page_or_one_it_links_to():
    from_home = set(re.findall(r"\]\(([\w/-]+\.md)\)", (ROOT / "docs" / "index.md").read_text("utf-8")))
    assert {f"guides/{page.name}" for page in (ROOT / "docs" / "guides").glob("*.md")} - from_home <= {
        "guides/documents.md",
        "guides/process-queue.md",
        "guides/stores.md",
        "guides/testing-a-backend.md",
    }


def test_every_design_record_is_in_the_index():
    index = (ROOT / "docs" / "design" / "index.md").read_text("utf-8")
    records = sorted((ROOT / "docs" / "design").glob("[0-9]*.md"))
    assert [each.name for each in records if f"({each.name})" not in index] == []
