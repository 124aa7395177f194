"""What the tests of both stores ask about their SQL: which file a statement comes from, and what stands in Python."""

import ast
import re
from pathlib import Path

from penstock.backends import sql_files

BACKENDS = Path(sql_files.__file__).parent
#: A longer statement stands in a file of its own.
MOST_LINES = 4
_SQL = re.compile(r"\b(SELECT|INSERT (OR \w+ )?INTO|UPDATE|DELETE FROM|WITH RECURSIVE|ON CONFLICT|COPY)\b")


def pattern(package, name):
    """Return what matches the statement of a file, whatever is filled in."""
    pieces = re.split(r"\{\w+\}", " ".join(sql_files.read_sql(package, name).split()))
    return re.compile(".*".join(map(re.escape, pieces)))


def unused(package, statements):
    """Return the files of a package that are part of none of the statements."""
    return [
        name
        for name in sql_files.list_sql(package)
        if not any(pattern(package, name).search(each) for each in statements)
    ]


def long_statements(store):
    """Return where the modules of a store hold SQL of more lines than they may."""
    found = []
    for file in sorted((BACKENDS / store).glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documented = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
        }
        found += [
            f"{file.name}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant | ast.JoinedStr)
            and id(node) not in documented
            and node.end_lineno - node.lineno >= MOST_LINES
            and _SQL.search(ast.unparse(node))
        ]
    return found
