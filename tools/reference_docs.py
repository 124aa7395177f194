"""Write the parts of the reference that are made from the code: events, errors, tables and columns.

    python tools/reference_docs.py            write docs/reference/{events,errors,tables}.md and docs/guides/spark.md
    python tools/reference_docs.py --check    write nothing; exit 1 if one of them is out of date

A page says by two comments where such a part begins and ends: <!-- generated: events --> and <!-- end: events -->. What
stands around them is written by hand. The words come from docstrings: the first paragraph of a class, and its "Attributes:".
"""

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from penstock import errors
from penstock.errors import PenstockError
from penstock.events import Event, EventKind
from penstock.spark import _rows, schemas, tables

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"


def attributes(cls: type) -> dict[str, str]:
    """Return what the section "Attributes:" of a docstring says, by name."""
    found: dict[str, str] = {}
    _, _, section = (inspect.getdoc(cls) or "").partition("\nAttributes:\n")
    for line in section.split("\n\n", 1)[0].splitlines():
        entry = re.match(r" {4}(\w+): (.*)", line)
        if entry:
            found[entry[1]] = entry[2]
        elif found:
            found[list(found)[-1]] += f" {line.strip()}"
    return found


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def members(kind: type[Enum]) -> str:
    """Return a table of an enum's members and what their class says about each."""
    said = attributes(kind)
    missing = [member.name for member in kind if member.name not in said]
    if missing:
        raise LookupError(f"the docstring of {kind.__name__} says nothing about {', '.join(missing)}")
    return table(
        ["Kind", "Value", "Emitted when"],
        [[f"`{member.name}`", f"`{member.value}`", said[member.name]] for member in kind],
    )


def fields(cls: type) -> str:
    """Return a table of a struct's fields."""
    said = attributes(cls)
    names: Sequence[str] = cls.__struct_fields__  # type: ignore[attr-defined]  # of msgspec
    missing = [name for name in names if name not in said]
    if missing:
        raise LookupError(f"the docstring of {cls.__name__} says nothing about {', '.join(missing)}")
    return table(["Field", "Meaning"], [[f"`{name}`", said[name]] for name in names])


def error_table() -> str:
    """Return a table of all errors: parents before children, as the tree in `penstock.errors` has them."""
    found: list[type[PenstockError]] = []
    add_errors(PenstockError, found)
    return table(["Error", "Code", "Raised when", "Attributes"], [error_row(error) for error in found])


def add_errors(error: type[PenstockError], found: list[type[PenstockError]]) -> None:
    if error.__name__ in errors.__all__:
        found.append(error)
    for child in error.__subclasses__():
        add_errors(child, found)


def error_row(error: type[PenstockError]) -> list[str]:
    said = (inspect.getdoc(error) or "").split("\n\n", 1)[0].replace("\n", " ")
    parents = [f"`{base.__name__}`" for base in error.__bases__ if base not in (PenstockError, Exception)]
    also = f" Also {' and '.join(map(with_article, parents))}." if parents else ""
    known = [name for name in attributes(error) if name != "code"]
    name = error.__name__
    return [
        f"[`{name}`](#penstock.{name})",
        f"`{error.code}`",
        said + also,
        ", ".join(f"`{n}`" for n in known),
    ]


def with_article(name: str) -> str:
    return f"{'an' if name.strip('`')[0] in 'AEIOU' else 'a'} {name}"


PARTS: Final[Mapping[str, tuple[str, Callable[[], str]]]] = {
    "events": ("events.md", lambda: members(EventKind)),
    "event": ("events.md", lambda: fields(Event)),
    "errors": ("errors.md", error_table),
    "store tables": ("tables.md", schemas.reference),
    "lake tables": ("tables.md", tables.reference),
    "sink columns": ("../guides/spark.md", _rows.reference),
}


def fresh(page: str, name: str, part: str) -> str:
    """Return a page with one of its parts as it should be."""
    begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    head, found, rest = page.partition(begin)
    _, ended, tail = rest.partition(end)
    if not (found and ended):
        raise LookupError(f"no {begin} with {end} after it")
    return f"{head}{begin}\n\n{part.strip()}\n\n{end}{tail}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if something is out of date"
    )
    options = parser.parse_args(arguments)
    pages: dict[Path, str] = {}
    for name, (file, make) in PARTS.items():
        path = REFERENCE / file
        before = pages.get(path) or path.read_text("utf-8")
        pages[path] = fresh(before, name, make())
    stale = [path for path, text in pages.items() if path.read_text("utf-8") != text]
    for path in stale:
        if options.check:
            sys.stderr.write(f"{path.name} is out of date: run python tools/reference_docs.py\n")
        else:
            path.write_text(pages[path], "utf-8")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
