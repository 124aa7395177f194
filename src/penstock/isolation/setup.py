"""The modules that a worker's template imports before it forks jobs."""

from __future__ import annotations

import importlib
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import invalid

__all__ = ["Setup", "load", "resolve"]


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The entry, target and modules of a job's process, by names that can be imported again.

    Attributes:
        entry: "module:function"; called in the process of a job as `entry(target, payload, channel)`.
        target: "module:attribute" that is imported once, in the template process, and passed to the entry; None is None.
            The module "__main__" is the script `main`.
        prepare: "module:function"; called once with the target, in the template, to import what this target's jobs need.
        main: the path of the script that stands for "__main__". It runs under the name "__mp_main__", so what it does
            only `if __name__ == "__main__"` is not done again.
        modules: more modules to import, after the target.
    """

    entry: str
    target: str | None = None
    prepare: str | None = None
    main: str | None = None
    modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("entry", "target", "prepare"):
            value = getattr(self, field)
            if value is None and field != "entry":
                continue
            module, colon, name = value.partition(":") if isinstance(value, str) else ("", "", "")
            if not module or not colon or not name:
                raise invalid(field, "of the form 'module:attribute'", value)


#: Whether this process is a template, or a job, that imports what it is to run: then nothing may be started.
is_loading = False


def load(setup: Setup) -> Any:
    """Import what the setup names and return the target."""
    global is_loading  # noqa: PLW0603 - one process, one setup
    is_loading = True
    try:
        if setup.main is not None:
            _load_main(setup.main)
        target = None if setup.target is None else resolve(setup.target)
        for name in setup.modules:
            importlib.import_module(name)
    finally:
        is_loading = False
    return target


def resolve(name: str) -> Any:
    """Return the object behind "module:attribute.of.it"."""
    module_name, _, path = name.partition(":")
    found: Any = importlib.import_module(module_name)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _load_main(path: str) -> None:
    """Run a script as multiprocessing does, under a name that its guard against running twice knows."""
    current = sys.modules["__main__"]
    if getattr(current, "__file__", None) == path and current.__name__ == "__mp_main__":
        return
    module = types.ModuleType("__mp_main__")
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    folder = str(Path(path).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module.__dict__.update(runpy.run_path(path, run_name="__mp_main__"))
