"""Read constraints.txt: which version of which package, its hashes, and which packages need it.

`make pins` writes that file with `uv pip compile`, whose `# via` comments name the dependents of every pin. From them
`needed` derives the pins of a part of the project, so that a target of the Makefile installs no more than it uses.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PIN: Final = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[^ ;]+)(?: ; (?P<marker>[^\\]+?))? \\$")
_DEPENDENT: Final = re.compile(r"    # (?:via|  ) ?(?P<name>[a-z0-9-]+)")


@dataclass(frozen=True)
class Pin:
    """One pinned package: the lines of constraints.txt that pip reads, and the packages that need it."""

    name: str
    version: str
    marker: str | None
    lines: tuple[str, ...]
    dependents: frozenset[str]


def normal(requirement: str) -> str:
    """Return the normalised package name of a requirement."""
    found = _NAME.match(requirement)
    if found is None:
        raise ValueError(f"{requirement!r} is not a requirement")
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def read_pins(text: str) -> dict[str, Pin]:
    """Return the pins of a constraints file by name."""
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if _PIN.match(line):
            blocks.append([line])
        elif blocks and line.startswith("    "):
            blocks[-1].append(line)
    return {pin.name: pin for pin in map(_pin, blocks)}


def _pin(block: list[str]) -> Pin:
    found = _PIN.match(block[0])
    assert found is not None  # read_pins begins a block where it matches
    dependents = [_DEPENDENT.match(line) for line in block[1:]]
    return Pin(
        name=found["name"],
        version=found["version"],
        marker=found["marker"],
        lines=tuple(line for line in block if not line.startswith("    #")),
        dependents=frozenset(each["name"] for each in dependents if each),
    )


def needed(names: Iterable[str], pins: Mapping[str, Pin]) -> list[Pin]:
    """Return the pins of the named packages and of everything they need."""
    found: set[str] = set()
    pending = set(names)
    while pending:
        found |= pending
        pending = {pin.name for pin in pins.values() if pin.dependents & pending} - found
    if missing := sorted(found - set(pins)):
        raise LookupError(f"constraints.txt does not pin {', '.join(missing)}: run `make pins`")
    return [pins[name] for name in sorted(found)]


def direct(project: Mapping[str, object], extras: Iterable[str] = (), groups: Iterable[str] = ()) -> set[str]:
    """Return the names that the project, its extras and its dependency groups ask for themselves."""
    table = project["project"]
    assert isinstance(table, dict)  # the standard says so
    requirements: list[str] = list(table["dependencies"])
    for extra in extras:
        requirements += _extra(extra, table)
    for group in groups:
        requirements += _group(group, project["dependency-groups"])
    return {normal(requirement) for requirement in requirements}


def _extra(name: str, table: Mapping[str, object]) -> Iterator[str]:
    for requirement in _entry("extra", name, table["optional-dependencies"]):
        if normal(requirement) == table["name"]:  # `all` names the other extras
            for other in requirement.partition("[")[2].rstrip("]").split(","):
                yield from _extra(other, table)
        else:
            yield requirement


def _group(name: str, groups: object) -> Iterator[str]:
    for entry in _entry("dependency group", name, groups):
        if isinstance(entry, str):
            yield entry
        else:
            yield from _group(entry["include-group"], groups)


def _entry(kind: str, name: str, table: object) -> list[str]:
    assert isinstance(table, dict)  # the standard says so
    if name not in table:
        raise LookupError(f"pyproject.toml has no {kind} {name!r}; it has {', '.join(table)}")
    entries: list[str] = table[name]
    return entries


def read_project() -> dict[str, object]:
    """Return pyproject.toml as a mapping."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def read_constraints() -> dict[str, Pin]:
    """Return the pins of this project."""
    return read_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
