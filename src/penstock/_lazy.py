"""Modules that most processes never use, imported on first access.

A process that forks once per job pays for its imported modules at every fork: asyncio and its imports are a quarter of
that.
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
