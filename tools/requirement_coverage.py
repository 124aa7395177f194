"""List which requirement ids are named by a test and which are not.

    python tools/requirement_coverage.py                        every area, ids covered and not covered
    python tools/requirement_coverage.py --area store           one area
    python tools/requirement_coverage.py --area store --missing only what is missing; exit 1 if anything is
    python tools/requirement_coverage.py --json                 the same as JSON, with the places

An id counts when one of these names it:

- a test's name, where the id stands alone between underscores (``test_q5_...``);
- the docstring of a function or class in a test file;
- a comment in a test file;
- the ``id=`` or ``ids=`` of a parametrised row;
- a mark: ``@pytest.mark.requirement("Q5", "B3")``.

A range is all ids in between: ``Q41-Q43``. A module's docstring does not count: it announces, it does not prove.
A mark with an id that is not in the list is an error, since it is surely a slip.

Exit codes: 0 fine, 1 something is missing (with ``--missing``), 2 wrong use or an unknown id in a mark.
"""

import argparse
import ast
import io
import json
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "tests" / "requirements.toml"
SCANNED = (ROOT / "tests", ROOT / "src" / "penstock" / "testing")

_ID = r"([QBGPRC])(\d{1,2})([a-z]?)"
_IN_TEXT = re.compile(rf"\b{_ID}(?:(?:-|–|\.\.)([QBGPRC]?)(\d{{1,2}}))?\b")  # noqa: RUF001 - people type en dashes
_IN_NAME = re.compile(rf"(?:^|_){_ID}(?=_|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Requirement:
    """One demand: its id, the area that proves it, and a one-line summary."""

    id: str
    area: str
    summary: str


@dataclass(frozen=True)
class Mention:
    """A place in a test file that names an id."""

    id: str
    place: str
    is_mark: bool = False


@dataclass(frozen=True)
class Coverage:
    """Requirements, and for each id the places that name it."""

    requirements: tuple[Requirement, ...]
    places: dict[str, list[str]] = field(default_factory=dict)

    @property
    def areas(self) -> list[str]:
        return list(dict.fromkeys(requirement.area for requirement in self.requirements))

    def of(self, area: str) -> "Coverage":
        return Coverage(tuple(r for r in self.requirements if r.area == area), self.places)

    @property
    def covered(self) -> list[Requirement]:
        return [r for r in self.requirements if r.id in self.places]

    @property
    def missing(self) -> list[Requirement]:
        return [r for r in self.requirements if r.id not in self.places]


def load_requirements(path: Path) -> tuple[Requirement, ...]:
    """Read the list of requirements in the order of the file."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["requirements"]
    return tuple(Requirement(id=name, area=row["area"], summary=row["summary"]) for name, row in rows.items())


def ids_in_text(text: str) -> Iterator[str]:
    """Yield the ids in prose, ranges expanded.

    >>> list(ids_in_text("Q5, B3 and Q41-Q43; not SQ5"))
    ['Q5', 'B3', 'Q41', 'Q42', 'Q43']
    """
    for match in _IN_TEXT.finditer(text):
        letter, first, suffix, last_letter, last = match.groups()
        if last is None:
            yield f"{letter}{first}{suffix}"
        elif last_letter in {"", letter}:
            yield from (f"{letter}{number}" for number in range(int(first), int(last) + 1))
        else:
            # "Q5-B3" is no range: two ids, written close together.
            yield from (f"{letter}{first}{suffix}", f"{last_letter}{last}")


def ids_in_name(name: str) -> Iterator[str]:
    """Yield the ids in a function's name.

    >>> list(ids_in_name("test_q5_and_c36b_hold_for_p99"))
    ['Q5', 'C36b', 'P99']
    """
    for letter, number, suffix in _IN_NAME.findall(name):
        yield f"{letter.upper()}{number}{suffix.lower()}"


def scan_source(source: str, name: str) -> Iterator[Mention]:
    """Yield every mention in one file; `name` is how the file is called in places."""
    tree = ast.parse(source, filename=name)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            place = f"{name}:{node.lineno} {node.name}"
            if node.name.startswith("test"):
                yield from (Mention(found, place) for found in ids_in_name(node.name))
            docstring = ast.get_docstring(node, clean=False) or ""
            yield from (Mention(found, place) for found in ids_in_text(docstring))
        elif isinstance(node, ast.Call):
            yield from _scan_call(node, name)
    for line, comment in _comments(source):
        yield from (Mention(found, f"{name}:{line}") for found in ids_in_text(comment))


def _scan_call(call: ast.Call, name: str) -> Iterator[Mention]:
    place = f"{name}:{call.lineno}"
    if ast.unparse(call.func) in {"pytest.mark.requirement", "mark.requirement"}:
        for text in _strings(call.args):
            for found in list(ids_in_text(text)) or [text]:
                yield Mention(found, place, is_mark=True)
    for keyword in call.keywords:
        if keyword.arg in {"id", "ids"}:
            for text in _strings([keyword.value]):
                yield from (Mention(found, place) for found in ids_in_text(text))


def _strings(nodes: Iterable[ast.expr]) -> Iterator[str]:
    for outer in nodes:
        for node in ast.walk(outer):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def scan(folders: Iterable[Path], root: Path) -> list[Mention]:
    """Collect the mentions of all Python files below the folders."""
    files = sorted({file for folder in folders for file in folder.rglob("*.py")})
    return [
        mention
        for file in files
        for mention in scan_source(file.read_text(encoding="utf-8"), file.relative_to(root).as_posix())
    ]


def unknown_marks(requirements: Iterable[Requirement], mentions: Iterable[Mention]) -> list[Mention]:
    """Find marks that name an id which does not exist."""
    known = {requirement.id for requirement in requirements}
    return [mention for mention in mentions if mention.is_mark and mention.id not in known]


def measure(requirements: tuple[Requirement, ...], mentions: Iterable[Mention]) -> Coverage:
    """Put requirements and mentions together; ids that are not in the list are left out."""
    known = {requirement.id for requirement in requirements}
    places: dict[str, list[str]] = {}
    for mention in mentions:
        if mention.id in known:
            found = places.setdefault(mention.id, [])
            if mention.place not in found:
                found.append(mention.place)
    return Coverage(requirements, places)


def summary_line(coverage: Coverage) -> str:
    """Say in one line how much is covered."""
    total, covered = len(coverage.requirements), len(coverage.covered)
    share = 100 * covered // total if total else 100
    return f"{covered} of {total} requirement ids named by a test ({share} %)"


def as_text(coverage: Coverage, *, missing_only: bool) -> str:
    """Render the report for people."""
    lines: list[str] = []
    for area in coverage.areas:
        part = coverage.of(area)
        lines.append(f"{area}: {len(part.covered)} of {len(part.requirements)}")
        if part.covered and not missing_only:
            lines.append(f"  covered      {' '.join(r.id for r in part.covered)}")
        if part.missing:
            lines.append("  not covered")
            lines.extend(f"    {r.id:<5} {r.summary}" for r in part.missing)
        lines.append("")
    lines.append(summary_line(coverage))
    return "\n".join(lines)


def as_json(coverage: Coverage) -> str:
    """Render the report for programs."""
    areas = {
        area: {
            "covered": {r.id: coverage.places[r.id] for r in part.covered},
            "missing": {r.id: r.summary for r in part.missing},
        }
        for area in coverage.areas
        for part in [coverage.of(area)]
    }
    total = len(coverage.requirements)
    return json.dumps({"areas": areas, "covered": len(coverage.covered), "total": total}, indent=2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="List which requirement ids are named by a test.")
    parser.add_argument("--area", help="only this area")
    parser.add_argument("--missing", action="store_true", help="only what is missing; exit 1 if anything is")
    parser.add_argument("--json", action="store_true", help="as JSON, with the places that name each id")
    options = parser.parse_args(arguments)

    requirements = load_requirements(REQUIREMENTS)
    mentions = scan(SCANNED, ROOT)
    coverage = measure(requirements, mentions)
    if options.area is not None:
        if options.area not in coverage.areas:
            parser.error(f"unknown area {options.area!r}; there are: {', '.join(coverage.areas)}")
        coverage = coverage.of(options.area)

    slips = unknown_marks(requirements, mentions)
    print(as_json(coverage) if options.json else as_text(coverage, missing_only=options.missing))
    for slip in slips:
        print(f"{slip.place}: no such requirement id: {slip.id}", file=sys.stderr)
    if slips:
        return 2
    return 1 if options.missing and coverage.missing else 0


if __name__ == "__main__":
    sys.exit(main())
