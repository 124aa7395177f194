"""Find the app that a command names."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from penstock.app import App
from penstock.connection import default_url
from penstock.errors import InvalidArgumentError, shown

__all__ = ["check_shared", "load_app"]


def load_app(name: str) -> App:
    """Import the app called "module:attribute" ("module" alone means its attribute `app`).

    The working folder is put on the path first.

    Raises:
        InvalidArgumentError: there is no such module or attribute, it is no App, or importing it failed.
    """
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module_name, _, attribute = name.partition(":")
    is_file = module_name.endswith(".py")
    if is_file or not all(part.isidentifier() for part in module_name.split(".")):
        hint = f" (did you mean {_as_module(module_name)}?)" if is_file else ""
        raise _wrong(name, f"an app is named module:attribute, such as shop.jobs:app{hint}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise _wrong(
                name, f"there is no module {error.name!r} in {folder} or among the installed packages"
            ) from None
        raise _wrong(name, f"importing it failed: {_where(error)}") from error
    except Exception as error:
        raise _wrong(name, f"importing it failed: {_where(error)}") from error
    found: object = module
    for part in (attribute or "app").split("."):
        if not hasattr(found, part):
            raise _wrong(name, f"{module_name} has no attribute {part!r}{_apps_of(module)}")
        found = getattr(found, part)
    if not isinstance(found, App):
        raise _wrong(name, f"that is no penstock.App but {shown(found)}{_apps_of(module)}")
    return found


def check_shared(app: App) -> None:
    """Refuse a store that no other process can see."""
    url = app.url if app.url is not None else default_url()
    if url.partition(":")[0].lower() == "memory":
        raise InvalidArgumentError(
            "a worker cannot use memory:, which belongs to the process that submits; "
            "use sqlite:///jobs.db or postgresql://… (App(url), --url or PENSTOCK_URL)",
            field="url",
            value=url,
        )


def _wrong(name: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{shown(name)}: {why}", field="app", value=name)


def _apps_of(module: ModuleType) -> str:
    """Name the apps that are there, for somebody who asked for another one."""
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    return f" (did you mean {' or '.join(f'{module.__name__}:{each}' for each in names)}?)" if names else ""


def _where(error: BaseException) -> str:
    """Return an error with the line of the user's code that it came from."""
    text = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename
    ]
    return f"{text} ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else text


def _as_module(path: str) -> str:
    return f"{path.removesuffix('.py').removeprefix('./').replace('/', '.')}:app"
