"""What a reviewer would ask for every time."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# Sleeping makes a suite slow and still flaky: move the clock, or wait for a named signal.
# The few that are left wait for another process in a loop; a test that needs one more says why and raises this.
MOST_SLEEPS_IN_TESTS = 20


def tracked_files() -> list[Path]:
    """List what git tracks, or every file of an unpacked archive."""
    try:
        done = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    names = done.stdout.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def python_files(*folders: str) -> list[Path]:
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def test_no_lock_file_is_committed():
    locks = {"Pipfile.lock", "pdm.lock", "poetry.lock", "pylock.toml", "uv.lock"}
    assert [file.name for file in tracked_files() if file.name in locks] == []


def test_constraints_are_plain_pins_of_everything_that_is_installed():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", pin)] == []

    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", name)[0]).lower()

    extras = PROJECT["project"]["optional-dependencies"].values()
    wanted = {normal(name) for group in [PROJECT["project"]["dependencies"], *extras] for name in group}
    assert wanted - {normal(pin) for pin in pins} - {"penstock"} == set()


def test_no_unfinished_marks_in_the_sources():
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in python_files("src")
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if marks.search(line)
    ]
    assert found == []


def test_the_package_is_marked_as_typed():
    assert (ROOT / "src" / "penstock" / "py.typed").is_file()


def test_few_tests_sleep():
    sleeps = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in python_files("tests", "src/penstock/testing")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"time.sleep", "sleep"}
    ]
    assert len(sleeps) <= MOST_SLEEPS_IN_TESTS, sleeps


def test_every_public_error_is_documented():
    errors = pytest.importorskip("penstock.errors")
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    public = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and not name.startswith("_")
    ]
    assert [name for name in public if f"`{name}`" not in page] == []


def test_ci_runs_the_test_command_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert script[-1] == "exec make test"
    assert "\nmake test\n" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_changelog_knows_this_version():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in changelog or f"## [{PROJECT['project']['version']}]" in changelog
