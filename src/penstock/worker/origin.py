"""The module from which the template process of a worker can import its app."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from penstock.app import App
from penstock.app.task import Task
from penstock.errors import InvalidArgumentError

__all__ = ["Origin", "find_origin"]

WAY_OUT = (
    "Move it to the top level of a module, or run it on a thread: "
    'Worker(app, isolation="thread"), or @app.job(isolation="thread")'
)

GUARD = "__name__ == '__main__'"
UNDER_GUARD = 'under `if __name__ == "__main__"`, which a process of a job does not run'


class Origin(NamedTuple):
    """The modules to import.

    Attributes:
        target: "module:attribute" of the app.
        main: the script that is the module "__main__", if it is needed.
        modules: more modules that define tasks.
    """

    target: str
    main: str | None
    modules: tuple[str, ...]


def find_origin(app: App, tasks: Iterable[Task[..., Any]]) -> Origin:
    """Return the modules from which an app and some of its tasks can be imported.

    Raises:
        InvalidArgumentError: there are none: they are defined in a notebook, at a prompt, or in a function.
    """
    tasks = list(tasks)
    for task in tasks:
        if "<locals>" in getattr(task.function, "__qualname__", ""):
            raise _refusal(f"{task.type} is defined inside a function, where nothing can import it again")
    modules = list(dict.fromkeys(getattr(task.function, "__module__", "") for task in tasks))
    place = next(_places(app, modules), None)
    if place is None:
        raise _refusal("the app is no attribute of any module, so a process of a job cannot import it again")
    main: str | None = None
    names: list[str] = []
    for name in (place[0], *modules):
        if name == "__main__":
            name, main = _main(main)  # noqa: PLW2901  # the name it can be imported by
        names.append(name)
    if main is not None:
        _check_guard(Path(main), place, tasks)
    return Origin(f"{names[0]}:{place[1]}", main, tuple(dict.fromkeys(names[1:])))


def _places(app: App, first: list[str]) -> Iterator[tuple[str, str]]:
    for name in (*first, *list(sys.modules)):
        module = sys.modules.get(name)
        if isinstance(module, ModuleType):
            for attribute, value in list(vars(module).items()):
                if value is app:
                    yield name, attribute


def _main(known: str | None) -> tuple[str, str | None]:
    """Return the name that "__main__" can be imported by, and its file if it has no other name."""
    module = sys.modules["__main__"]
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return spec.name, known  # python -m package.module
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        raise _refusal("it is defined in a notebook or at a prompt, where nothing can import it again")
    return "__main__", str(Path(file).absolute())


def _check_guard(script: Path, place: tuple[str, str], tasks: list[Task[..., Any]]) -> None:
    """Refuse what a script defines only where it is the program itself: under `if __name__ == "__main__"`."""
    import ast  # noqa: PLC0415  # only the apps of scripts need it

    try:
        body = ast.parse(script.read_bytes()).body
    except (OSError, SyntaxError, ValueError):  # the file is not what runs any more; the import will show it
        return
    guards = [each for each in body if isinstance(each, ast.If) and ast.unparse(each.test) == GUARD]
    # From the guard to the end of what it guards: a function's line is that of its first decorator.
    lines = {line for each in guards for line in range(each.lineno, (each.body[-1].end_lineno or 0) + 1)}
    for task in tasks:
        code = getattr(task.function, "__code__", None)
        if code is not None and code.co_firstlineno in lines and Path(code.co_filename) == script:
            raise _refusal(f"{task.type} is defined {UNDER_GUARD}")
    named = [each for each in ast.walk(ast.Module(body, [])) if isinstance(each, ast.Name)]
    made = {each.lineno for each in named if each.id == place[1] and isinstance(each.ctx, ast.Store)}
    if place[0] == "__main__" and made and made <= lines:
        raise _refusal(f"the app is made {UNDER_GUARD}")


def _refusal(why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{why}. {WAY_OUT}", field="isolation", value="process")
