"""Hooks around a fork that are not needed when a template forks.

`threading` and `logging` make locks anew in the child of a fork, because another thread of the parent may have held them.
A template has no other thread. What these hooks touch is half of the memory that a fork has to copy, so in a template they
are put off. In the process of a job, which may have threads, and fork, they run as ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final

__all__ = ["PUT_OFF", "accept_hooks", "run_hooks_from_now_on"]

#: What a template runs first: a hook cannot be taken back, so this must come before anything is imported that has one.
PUT_OFF: Final = """
import os
def put_off(register):
    state = {"is_job": False, "before": [], "after_in_parent": [], "after_in_child": []}
    def register_at_fork(**hooks):
        owners = {str(getattr(hook, "__module__", "")).partition(".")[0] for hook in hooks.values()}
        if owners <= {"threading", "logging"}:
            for when, hook in hooks.items():
                state[when].append(hook)
        else:
            register(**hooks)
    def runner(when, step):
        def run():
            if state["is_job"]:
                for hook in state[when][::step]:
                    hook()
        return {when: run}
    register(**runner("before", -1), **runner("after_in_parent", 1), **runner("after_in_child", 1))
    register_at_fork.real, register_at_fork.state = register, state
    os.register_at_fork = register_at_fork
put_off(os.register_at_fork)
"""

_state: dict[str, Any] = {}
# The only thing that a hook of these would have to do in a job.
_renew_native_id: Callable[[], None] = threading.main_thread()._set_native_id  # type: ignore[attr-defined]  # noqa: SLF001 - as the hook of threading does


def accept_hooks() -> None:
    """Let hooks be registered as usual from now on: what is imported later is imported by a job."""
    global _state  # noqa: PLW0603 - one process, one template
    register: Any = os.register_at_fork
    if hasattr(register, "state"):
        os.register_at_fork = register.real
        _state = register.state


def run_hooks_from_now_on() -> None:
    """Run the deferred hooks at the next fork. Called in the process of a job."""
    if _state:
        _state["is_job"] = True
        _renew_native_id()
