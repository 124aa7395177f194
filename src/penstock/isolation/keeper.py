"""The warden of one job that exists only in the memory of the process it is forked from."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
import stat
from collections.abc import Callable, Iterable
from typing import NoReturn

from penstock.isolation.channel import Channel
from penstock.isolation.control import Order
from penstock.isolation.warden import Warden

__all__ = ["keep"]


def keep(
    control: socket.socket,
    parent: int,
    order: Order,
    channel: int,
    output: int,
    run: Callable[[Channel], object],
    others: Iterable[int],
) -> NoReturn:
    """Run the keeper of one job, in a process just forked. `others` are descriptors of the supervisor's other jobs."""
    try:
        os.setsid()
        _close_inherited(set(others), kept={control.fileno(), channel, output})
        faulthandler.enable(file=2)
        warden = Warden(control, parent, run, is_for_one=True)
        warden.launch(order.number, channel, output, order)
        warden.serve()
    finally:
        os._exit(1)


def _close_inherited(others: set[int], kept: set[int]) -> None:
    """Close the parent's connections and listeners, and `others`, so that their peers see them close.

    Files, pipes and pairs of sockets stay: the job may have been given them. The numbers stay taken, since the objects
    that will close them are still in memory, and would close what the job has under the same number.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    if os.path.isdir("/proc/self/fd"):
        others |= {int(name) for name in os.listdir("/proc/self/fd") if _is_connection(int(name))}
    for descriptor in others - kept:
        with contextlib.suppress(OSError):
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _is_connection(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode) and not _is_pair(descriptor)
    except OSError:
        return False  # it was the one that listed the others


def _is_pair(descriptor: int) -> bool:
    probe = socket.socket(fileno=os.dup(descriptor))
    try:
        return probe.family == socket.AF_UNIX and not probe.getsockname() and not probe.getpeername()
    except OSError:
        return False  # a listener, or not connected
    finally:
        probe.close()
