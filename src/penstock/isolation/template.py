"""The template process of a worker: imports what jobs need, then serves as their warden."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from penstock.isolation import system
from penstock.isolation.channel import Channel
from penstock.isolation.control import Broken, Ready
from penstock.isolation.hooks import accept_hooks
from penstock.isolation.setup import Setup, load, resolve
from penstock.isolation.warden import Warden

__all__ = ["Start", "main"]


class Start(msgspec.Struct, frozen=True):
    """The first message to a new template process.

    Attributes:
        hidden: variables that are in the environment only while the app is imported: a module may make its app from
            them. They are sent over the socket, because the environment at its start can be read as long as a process lives.
    """

    setup: Setup
    parent: int
    arguments: list[str]
    imports_per_job: bool
    hidden: dict[str, str]


def main(control_descriptor: int) -> NoReturn:
    """Run a template process. Called in a fresh interpreter whose `sys.path` is the supervisor's."""
    control = socket.socket(fileno=control_descriptor)
    start = _received(control)
    sys.argv[:] = start.arguments
    os.umask(0o077)  # what jobs write is for their user alone, unless they say otherwise
    try:
        if start.imports_per_job:
            run = _importing(start.setup, start.hidden)
            hazards: system.Hazards = ()
        else:
            with _set_variables(start.hidden):
                target = load(start.setup)
            run = _ready(start.setup, target)
            sys.stdout.flush()
            hazards = system.find_hazards({0, 1, 2, control_descriptor})
    except BaseException:  # whatever it is, the supervisor must get it
        with contextlib.suppress(OSError):
            control.send(msgspec.msgpack.encode(Broken(traceback.format_exc()[-30_000:])))
        os._exit(1)
    accept_hooks()
    if hazards:
        with contextlib.suppress(OSError):
            control.send(msgspec.msgpack.encode(Ready(list(hazards))))
        os._exit(0)
    faulthandler.enable(file=2)  # a job that dies of a segmentation fault says where, in its output
    gc.collect()
    warden = Warden(control, start.parent, run)
    control.setblocking(True)
    try:
        control.send(msgspec.msgpack.encode(Ready([])))
    except OSError:
        os._exit(0)  # the supervisor was killed while this process started; it has nothing to leave behind
    control.setblocking(False)
    warden.serve()


def _received(control: socket.socket) -> Start:
    """Return the supervisor's first message; exit without a message if it has ended."""
    try:
        data = control.recv(1 << 20)
    except OSError:
        data = b""
    if not data:
        os._exit(0)
    return msgspec.msgpack.decode(data, type=Start)


@contextlib.contextmanager
def _set_variables(variables: dict[str, str]) -> Iterator[None]:
    """Set variables in the environment while the block runs."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


def _ready(setup: Setup, target: Any) -> Any:
    entry = resolve(setup.entry)
    if setup.prepare is not None:
        resolve(setup.prepare)(target)

    def run(channel: Channel) -> None:
        entry(target, channel.body(), channel)

    return run


def _importing(setup: Setup, hidden: dict[str, str]) -> Any:
    def run(channel: Channel) -> None:
        with _set_variables(hidden):
            target = load(setup)
        resolve(setup.entry)(target, channel.body(), channel)

    return run
