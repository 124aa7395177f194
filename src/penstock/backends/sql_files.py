"""SQL that stands in files: one statement, or one part of several, per `sql/<name>.sql` of a store's package.

A file begins with a comment that says what the statement must guarantee. `{name}` is a part that the store fills in:
a list of columns, another file, a schema; values are always parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

__all__ = ["fill", "list_sql", "read_sql"]


@cache
def read_sql(package: str, name: str) -> str:
    """Return the text of `sql/<name>.sql` of a package, without comments."""
    text = resources.files(package).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    return re.sub(r"^ *--.*\n", "", text, flags=re.MULTILINE).strip()


def list_sql(package: str) -> list[str]:
    """Return the names of a package's files, sorted."""
    folder = resources.files(package).joinpath("sql")
    return sorted(
        entry.name.removesuffix(".sql") for entry in folder.iterdir() if entry.name.endswith(".sql")
    )


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Return a template with its parts filled in, on one line.

    psycopg keeps its work on a statement of up to 4,096 characters; indentation must not cost that.
    """
    filled = re.sub(r"\{(\w+)\}", lambda match: parts[match[1]], template)
    return re.sub(r"\s+", " ", filled)
