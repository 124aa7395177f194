"""constraints.txt: every target of the Makefile installs from it, on every Python that the project names."""

from importlib import metadata

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from tools import pins

PROJECT = pins.read_project()
PINS = pins.read_constraints()
EXTRAS = ["metrics", "otel", "postgres", "spark"]
# The oldest micro release of each Python that the project names, Debian 12's, and a late one of each.
PYTHONS = [f"3.{minor}.{micro}" for minor in (11, 12, 13, 14) for micro in (0, 2, 20)]
SETS = {
    "demo": pins.direct(PROJECT, ["spark"]),
    "demo on PostgreSQL": pins.direct(PROJECT, ["spark", "postgres"], ["server"]),
    "docs": pins.direct(PROJECT, [], ["docs"]),
    "test": pins.direct(PROJECT, ["all"], ["test"]),
    "check": pins.direct(PROJECT, ["all"], ["dev"]),
}


def installed(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed here")


def is_due(marker: str | Marker | None, **environment: str) -> bool:
    return marker is None or Marker(str(marker)).evaluate({"extra": "", **environment})


def test_every_pin_names_its_hashes():
    assert len(PINS) > 80
    assert [pin.name for pin in PINS.values() if "--hash=sha256:" not in "".join(pin.lines[1:])] == []


def test_everything_that_the_project_asks_for_is_pinned():
    assert pins.direct(PROJECT, EXTRAS, ["dev"]) - set(PINS) == set()


@pytest.mark.parametrize("name", sorted(PINS))
def test_a_pin_admits_every_python_that_the_project_admits(name):
    pin, found = PINS[name], installed(name)
    # What the metadata says must be about the pinned version, or the comparison would prove nothing.
    assert found.version == pin.version, (
        f"{name} {found.version} is installed, {pin.version} is pinned: run make"
    )
    needs = found.metadata["Requires-Python"] or ""
    refused = [
        python
        for python in PYTHONS
        if is_due(pin.marker, python_full_version=python, python_version=python.rpartition(".")[0])
        and python not in SpecifierSet(needs)
    ]
    assert refused == [], f"{name} {pin.version} requires Python {needs}, the project {PROJECT['project']}"


@pytest.mark.parametrize("target", SETS)
def test_the_pins_of_a_target_have_all_that_they_need(target):
    found = {pin.name for pin in pins.needed(SETS[target], PINS)}
    lacking = {
        (name, requirement.name)
        for name in found
        if is_due(PINS[name].marker)
        for requirement in map(Requirement, installed(name).requires or ())
        if is_due(requirement.marker) and pins.normal(requirement.name) not in found
    }
    assert lacking == set()


def test_the_demo_installs_no_tools_of_the_developers():
    found = {pin.name for pin in pins.needed(SETS["demo"], PINS)}
    assert (
        found & {"ruff", "mypy", "pytest", "hypothesis", "mkdocs", "import-linter", "psycopg", "fastapi"}
        == set()
    )


def test_a_pin_that_is_missing_is_named():
    with pytest.raises(LookupError, match="does not pin no-such-package: run `make pins`"):
        pins.needed(["no-such-package"], PINS)
