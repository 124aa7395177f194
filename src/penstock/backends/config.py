"""The file with settings, as far as the library reads it: which store is meant when no url is given.

The order is the same for `App()`, `connect()` and every command: an explicit argument, `$PENSTOCK_URL`, `url` in the
file, sqlite:///penstock.db. The file is the one that `$PENSTOCK_CONFIG` names, else penstock.toml in the working folder,
else [tool.penstock] of the pyproject.toml there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from penstock.errors import InvalidArgumentError, shown

__all__ = ["FILE_NAMES", "configured_url", "find_file", "load_file"]

FILE_NAMES: Final = ("penstock.toml", "pyproject.toml")
FILE_VARIABLE: Final = "PENSTOCK_CONFIG"


def find_file() -> tuple[Path | None, bool]:
    """Return the file with settings, if there is one, and whether `$PENSTOCK_CONFIG` names it."""
    named = os.environ.get(FILE_VARIABLE)
    if named:
        return Path(named), True
    return next((Path(name) for name in FILE_NAMES if Path(name).is_file()), None), False


def load_file(path: Path, *, is_named: bool) -> dict[str, Any] | None:
    """Return the settings in a file; None for a pyproject.toml without [tool.penstock].

    Args:
        path: the file.
        is_named: the file was named explicitly, so its table must be there.

    Raises:
        InvalidArgumentError: it cannot be read, or is not valid TOML.
    """
    import tomllib  # noqa: PLC0415  # most programs have no such file

    try:
        content: Any = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise InvalidArgumentError(
            f"the settings {path} cannot be read: {error.strerror}", field="config", value=str(path)
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgumentError(
            f"{path} is not valid TOML: {error}", field="config", value=str(path)
        ) from error
    if path.name != "pyproject.toml":
        return dict(content)
    tools = content.get("tool")
    found = tools.get("penstock") if isinstance(tools, dict) else None
    if found is None and is_named:
        raise InvalidArgumentError(f"{path} has no table [tool.penstock]", field="config")
    return found


def configured_url() -> str | None:
    """Return `url` of the file with settings; None if there is no file, or it names no store.

    Raises:
        InvalidArgumentError: the file cannot be read, is not valid TOML, or its `url` is not a text.
    """
    path, is_named = find_file()
    if path is None:
        return None
    content = load_file(path, is_named=is_named)
    if content is None:
        return None
    place = "tool.penstock" if path.name == "pyproject.toml" else "the file"
    if not isinstance(content, dict):
        raise InvalidArgumentError(
            f"{path}: {place} must be a table, got {shown(content)}", field="config", value=str(path)
        )
    url = content.get("url")
    if url is None:
        return None
    if not isinstance(url, str) or not url:
        raise InvalidArgumentError(f"{path}: url must be a text, got {shown(url)}", field="url", value=url)
    return url
