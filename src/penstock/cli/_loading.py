"""The app that a command names."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Annotated, TypeAlias

import typer

from penstock.app import App
from penstock.backends.drivers import default_url, driver_for, example_urls
from penstock.errors import InvalidArgumentError, shown

__all__ = ["AppName", "AppUrl", "load_app", "load_shared_app"]

AppName: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="MODULE:APP", envvar="PENSTOCK_APP", help="The app, such as shop.jobs:app."),
]
AppUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The store, instead of the app's own. PENSTOCK_URL is for apps without one.",
        show_default=False,
    ),
]


def load_app(name: str) -> App:
    """Import an app by "module:attribute"; "module" alone means its attribute `app`.

    The working folder comes first on the import path.

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
        raise _wrong(name, f"that is not a penstock.App but {shown(found)}{_apps_of(module)}")
    return found


def load_shared_app(name: str, url: str | None) -> App:
    """Import an app, replace its store if a url is given, and refuse a store that other processes cannot open."""
    app = load_app(name)
    if url is not None:
        app.url = url
    url = app.url if app.url is not None else default_url()
    driver = driver_for(url)
    if not driver.is_shared:
        raise InvalidArgumentError(
            f"a worker cannot use {driver.prefix}, which belongs to the process that submits; "
            f"use {example_urls()} (App(url), --url or PENSTOCK_URL)",
            field="url",
            value=url,
        )
    return app


def _wrong(name: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{shown(name)}: {why}", field="app", value=name)


def _apps_of(module: ModuleType) -> str:
    """Return a hint that names the apps of a module."""
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    return f" (did you mean {' or '.join(f'{module.__name__}:{each}' for each in names)}?)" if names else ""


def _where(error: BaseException) -> str:
    """Return an error with the file and line that raised it."""
    text = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename
    ]
    return f"{text} ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else text


def _as_module(path: str) -> str:
    return f"{path.removesuffix('.py').removeprefix('./').replace('/', '.')}:app"
