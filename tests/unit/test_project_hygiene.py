"""What a reviewer would ask for every time."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# Sleeping makes a suite slow and still flaky: move the clock, or wait for what another thread or process does.
# The second file is part of the suite that others run on their stores.
WAITING = {"tests/waiting.py", "src/penstock/testing/conformance/queue_support.py"}
# The few places that let time pass, beside the long proofs of tests/soak; one more says why and raises this.
MOST_PAUSES = 7


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


def calls_in_tests(*functions: str) -> list[str]:
    return [
        f"{file.relative_to(ROOT).as_posix()}:{node.lineno}"
        for file in python_files("tests", "src/penstock/testing")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in functions
    ]


def test_tests_wait_in_one_place():
    sleeps = calls_in_tests("time.sleep", "sleep")
    assert [each for each in sleeps if each.partition(":")[0] not in WAITING] == []


def test_few_tests_let_time_pass():
    pauses = [each for each in calls_in_tests("pass_time") if not each.startswith("tests/soak/")]
    assert len(pauses) <= MOST_PAUSES, pauses


def test_every_public_error_is_documented():
    errors = pytest.importorskip("penstock.errors")
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    public = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and not name.startswith("_")
    ]
    assert [name for name in public if f"`{name}`" not in page] == []


def test_ci_runs_every_tier_and_the_test_command_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert script[-3:] == ["make check", "make test", "make test-deep"]
    assert "\nmake test\n" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_changelog_knows_this_version():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in changelog or f"## [{PROJECT['project']['version']}]" in changelog


def imported_modules(file: Path) -> set[str]:
    """Return the modules of ours that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("penstock.")}


def foreign_private(file: Path, name: str) -> bool:
    """Whether a module belongs to another package's inside: `a.b._c` is there for the modules below `a.b` alone."""
    parts = name.split(".")
    private = next((place for place, part in enumerate(parts) if part.startswith("_")), None)
    if private is None:
        return False
    return not file.is_relative_to(ROOT / "src" / Path(*parts[:private]))


def test_no_package_imports_the_private_modules_of_another():
    found = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in python_files("src/penstock")
        for name in sorted(imported_modules(file))
        if foreign_private(file, name)
    ]
    assert found == []


def test_a_plain_pytest_runs_what_make_test_runs():
    options = PROJECT["tool"]["pytest"]["ini_options"]["addopts"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-m not deep and not soak" in options
    assert "-m pytest $(PYTEST_ARGS)\n" in makefile.partition("\ntest:")[2].partition("\n\n")[0] + "\n"
    assert "-m pytest -m deep $(PYTEST_ARGS)\n" in makefile


def test_the_tests_that_run_on_both_stores_exist():
    conftest = ast.parse((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    (names,) = [
        ast.literal_eval(node.value)
        for node in conftest.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ON_BOTH"
    ]
    text = "".join(file.read_text(encoding="utf-8") for file in python_files("tests"))
    assert [name for name in sorted(names) if f"def {name}(" not in text] == []


def test_a_page_for_contributors_names_every_tier():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [name for name in ("check", "test", "test-deep", "soak") if f"\nmake {name} " not in page] == []
