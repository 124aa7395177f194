"""Hooks after a fork that have nothing to do in a process forked from a template.

`threading`, `logging` and Penstock itself make locks anew in the child of a fork, because another thread of the parent may
have held them, and let go of stores. A template has neither another thread nor a store. What these hooks touch is more
than half of the memory that a fork has to copy, so a template puts them off: they are registered in the process of a
job, which may have threads and stores, and fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, TypeAlias

__all__ = ["PUT_OFF", "Hooks", "hooks_put_off"]

Hooks: TypeAlias = dict[str, Callable[[], object]]

#: Run by a template before it imports anything that has hooks, for a hook cannot be taken back.
PUT_OFF: Final = """
import os
def _register(*, _real=os.register_at_fork, _put_off=[], **hooks):
    owners = {str(getattr(hook, "__module__", "")).partition(".")[0] for hook in hooks.values()}
    if owners <= {"threading", "logging", "penstock"}:
        _put_off.append(hooks)
    else:
        _real(**hooks)
os.register_at_fork = _register
"""


def hooks_put_off() -> list[Hooks]:
    """Let hooks be registered as usual from now on; return those that were put off, if this process did so."""
    kept: dict[str, Any] = getattr(os.register_at_fork, "__kwdefaults__", None) or {}
    if "_put_off" not in kept:
        return []
    os.register_at_fork = kept["_real"]
    put_off: list[Hooks] = kept["_put_off"]
    return put_off
