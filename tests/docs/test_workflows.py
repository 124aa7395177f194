"""The files that a hosting site reads: workflows, forms for issues, links of the package."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HOSTED = ROOT / ".github"
WORKFLOWS = sorted((HOSTED / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
SCHEMAS = {
    "vendor.dependabot": ["dependabot.yml"],
    "vendor.github-issue-config": ["ISSUE_TEMPLATE/config.yml"],
    "vendor.github-issue-forms": [
        "ISSUE_TEMPLATE/bug.yml",
        "ISSUE_TEMPLATE/idea.yml",
        "ISSUE_TEMPLATE/wrong_page.yml",
    ],
    "vendor.github-workflows": [file.relative_to(HOSTED).as_posix() for file in WORKFLOWS],
}


def linter(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a linter of this environment; at home it may be missing."""
    command = Path(sys.executable).parent / name
    if not command.exists():
        assert not os.environ.get("CI"), f"{name} is not installed"
        pytest.skip(f"{name} is not installed")
    return subprocess.run(
        [command, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def load(file: Path) -> Any:
    return yaml.safe_load(file.read_text("utf-8"))


@pytest.mark.parametrize("schema", sorted(SCHEMAS))
def test_every_file_has_the_shape_that_is_expected_of_it(schema):
    checked = linter(
        "check-jsonschema", "--builtin-schema", schema, *(HOSTED / name for name in SCHEMAS[schema])
    )
    assert checked.returncode == 0, checked.stdout


def test_every_file_is_checked():
    found = {file.relative_to(HOSTED).as_posix() for file in HOSTED.rglob("*.yml")}
    assert found == {name for names in SCHEMAS.values() for name in names}


def test_no_workflow_can_be_abused():
    checked = linter("zizmor", "--offline", "--no-progress", HOSTED)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("check-jsonschema", ("--builtin-schema", "vendor.github-workflows")),
        ("zizmor", ("--offline", "--no-progress")),
    ],
)
def test_a_workflow_that_is_wrong_is_found(name, arguments, tmp_path):
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("on: push\njobs:\n  a:\n    runs-on: x\n    stepps:\n      - run: echo\n")
    assert linter(name, *arguments, wrong).returncode != 0


def test_the_tests_run_on_every_version_that_the_package_names():
    matrix = load(HOSTED / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    named = [each.rpartition(" :: ")[2] for each in PROJECT["classifiers"] if "Python :: 3." in each]
    assert matrix["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_the_tests_run_on_every_postgresql_that_the_guide_names():
    job = load(HOSTED / "workflows" / "ci.yml")["jobs"]["postgres"]
    versions = job["strategy"]["matrix"]["postgres"]
    guide = (ROOT / "docs" / "guides" / "deploying.md").read_text("utf-8")
    assert f"PostgreSQL {versions[0]} to {versions[-1]}" in guide
    assert [int(each) for each in versions] == [*range(int(versions[0]), int(versions[-1]) + 1)]
    assert "PENSTOCK_TEST_POSTGRES" in job["env"]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_call_targets_that_exist_and_pin_what_they_use(file):
    text = re.sub(r"^ *#.*", "", file.read_text("utf-8"), flags=re.MULTILINE)
    assert set(re.findall(r"run: make ([a-z-]+)", text)) <= TARGETS
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    for action, comment in used:
        assert re.search(r"@[0-9a-f]{40}$", action), f"{action} is not pinned to a commit"
        assert re.match(r" # v\d", comment), f"{action} does not say its version"


def test_the_package_says_where_its_pages_are():
    urls = PROJECT["urls"]
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= urls.keys()
    config = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), yaml.BaseLoader)
    assert config["site_url"] == urls["Documentation"]
    assert config["extra"]["social"][0]["link"] == urls["Source"]
    for link in load(HOSTED / "ISSUE_TEMPLATE" / "config.yml")["contact_links"]:
        assert link["url"].startswith(urls["Source"])
