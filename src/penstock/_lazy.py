"""Modules that most processes never use, imported when something of them is.

A process that is forked once a job pays for everything it has imported, at every fork: asyncio and what it brings along
are a quarter of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["asyncio", "random", "subprocess"]


class LazyModule:
    """Stands for a module until one of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


if TYPE_CHECKING:
    import asyncio
    import random
    import subprocess
else:
    asyncio = LazyModule("asyncio")
    random = LazyModule("random")  # seeds itself anew after every fork
    subprocess = LazyModule("subprocess")
