"""Write docs/llms.txt, the list of pages for programs that read documentation (https://llmstxt.org).

    python tools/llms_txt.py            write it
    python tools/llms_txt.py --check    write nothing; exit 1 if it is out of date

It has every page of the navigation in mkdocs.yml, each with the first sentence of its text.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]  # comes with mkdocs, without types

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
FILE: Final = DOCS / "llms.txt"


def first_sentence(page: Path) -> str:
    """Return the first sentence of a page's text, without links and marks."""
    text = re.sub(r"\A---\n.*?\n---\n", "", page.read_text("utf-8"), flags=re.DOTALL)
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = (
        line
        for line in text.splitlines()
        if re.match(r"[A-Z`\[]", line) and line.rstrip().endswith((".", ":"))
    )
    line = re.sub(r"\[([^\]]+)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", next(prose, ""))
    return re.sub(r"[*`]", "", line).rstrip(":.") + "."


def pages(entries: Sequence[Any], folder: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield section, title and path of every page in the navigation."""
    for entry in entries:
        ((title, below),) = entry.items()
        if isinstance(below, str):
            yield folder or "Start", title, below
        else:
            yield from pages(below, folder or title)


def written() -> str:
    # BaseLoader makes plain text of everything, also of tags such as !!python/name.
    config = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), yaml.BaseLoader)
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}"]
    section = ""
    # Pages that stand alone in the navigation come first.
    for of, title, path in sorted(pages(config["nav"]), key=lambda page: page[0] != "Start"):
        if of != section:
            section = of
            lines += ["", f"## {section}", ""]
        address = config["site_url"] + re.sub(r"(^|/)index\.md$|\.md$", r"\1", path).rstrip("/")
        address += "/" if not address.endswith("/") else ""
        lines.append(f"- [{title}]({address}): {first_sentence(DOCS / path)}")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write docs/llms.txt.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if it is out of date")
    options = parser.parse_args(arguments)
    fresh = written()
    if options.check:
        if FILE.exists() and FILE.read_text("utf-8") == fresh:
            return 0
        print("docs/llms.txt is out of date: run python tools/llms_txt.py", file=sys.stderr)
        return 1
    FILE.write_text(fresh, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
