"""Sending an app to executors: by name if they can import it, else by value.

By value means pickled with cloudpickle, which is part of PySpark: the functions themselves, with the globals that they use.
That is for scripts, notebooks and nested functions. An app in a module is sent by name, because a module is more than its
functions: executors import it from their installed packages, from Spark's artifacts (`addArtifact`), or from the folders on
this process's path, if they have the same ones.

A job's process is forked from a template process that imports the app by name. For an app sent by value that name is the
attribute `app` of this module, which is read from the file that `$PENSTOCK_PARCEL` names.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.app import App
from penstock.errors import InvalidArgumentError, PenstockError
from penstock.isolation.setup import resolve
from penstock.worker.origin import Origin, find_origin

__all__ = ["Parcel", "pack", "shipped_origin"]

VARIABLE: Final = "PENSTOCK_PARCEL"


class Parcel(NamedTuple):
    """An app that another process can open; made by `pack`.

    Attributes:
        name: "module:attribute"; empty if it is sent by value.
        modules: further modules that define tasks.
        value: the pickled app; empty if it is sent by name.
        types: of its tasks.
        paths: `sys.path` of the process that packed it.
    """

    name: str
    modules: tuple[str, ...]
    value: bytes
    types: tuple[str, ...]
    paths: tuple[str, ...]

    def open(self) -> App:
        """Return the app.

        Raises:
            PenstockError: it cannot be imported or unpickled here; says why, and what to do.
        """
        for path in self.paths:
            if path not in sys.path and Path(path).exists():
                sys.path.append(path)  # last: packages installed here take precedence
        try:
            app = pickle.loads(self.value) if self.value else self._imported()  # noqa: S301  # written by the driver of this fleet
        except Exception as error:
            raise PenstockError(self._refusal(error)) from error
        if not isinstance(app, App):
            raise PenstockError(f"{self.name} is not a penstock.App")
        missing = sorted(set(self.types) - set(app.tasks))
        if missing:
            raise PenstockError(
                f"{self.name} as imported on the executor has no handler for {', '.join(missing)}: it is another"
                " version, or they are defined only after the import"
            )
        return app

    def _imported(self) -> Any:
        importlib.invalidate_caches()
        found = resolve(self.name)
        for name in self.modules:
            importlib.import_module(name)
        return found

    def _refusal(self, error: Exception) -> str:
        what = f"import {self.name}" if self.name else "read the app"
        text = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
        return (
            f"the executor cannot {what}: {text}. Install what is missing there, or give Spark the"
            " file: spark.addArtifact('shop.py', pyfile=True), or penstock fleet --py-file shop.py"
        )


def pack(app: App) -> Parcel:
    """Return an app as it is sent to executors.

    Raises:
        InvalidArgumentError: it can neither be imported nor be pickled.
    """
    origin = _importable(app)
    types = tuple(app.tasks)
    if origin is not None:
        paths = tuple(str(Path(path).absolute()) for path in sys.path)
        return Parcel(origin.target, origin.modules, b"", types, paths)
    # Not at the top: template processes import this module, and few of them need cloudpickle.
    cloudpickle = importlib.import_module("pyspark.cloudpickle")
    try:
        value = cloudpickle.dumps(app)
    except Exception as error:
        raise InvalidArgumentError(
            f"the app cannot be sent to executors: {type(error).__name__}: {error}. It is defined in a script, a notebook or"
            " a function, so its handlers go there with all that they name. Make such things inside the handler, or move"
            " the app into a module that executors can import",
            field="app",
        ) from error
    return Parcel("", (), value, types, tuple(str(Path(path).absolute()) for path in sys.path))


def _importable(app: App) -> Origin | None:
    try:
        origin = find_origin(app, app.tasks.values())
    except InvalidArgumentError:
        return None
    return origin if origin.main is None else None


@contextmanager
def shipped_origin(parcel: Parcel) -> Iterator[Origin | None]:
    """Let template processes import an app that was sent by value, inside the block; None if it was sent by name."""
    if not parcel.value:
        yield None
        return
    # Spark removes its local folders even if this process is killed.
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    descriptor, file = tempfile.mkstemp(prefix="penstock-", dir=folder if Path(folder).is_dir() else None)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(pickle.dumps(tuple(parcel)))
        os.environ[VARIABLE] = file
        yield Origin(f"{__name__}:app", None, ())
    finally:
        os.environ.pop(VARIABLE, None)
        Path(file).unlink(missing_ok=True)


def __getattr__(name: str) -> Any:
    if name != "app" or VARIABLE not in os.environ:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    parcel = Parcel(*pickle.loads(Path(os.environ[VARIABLE]).read_bytes()))  # noqa: S301  # written by the parent process
    app = globals()["app"] = parcel.open()
    return app
