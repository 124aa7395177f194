"""The template of a worker: imports what jobs need, then serves as their warden."""

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

from penstock._process import system
from penstock._process.channel import Channel
from penstock._process.control import Broken, Ready
from penstock._process.hooks import accept_hooks
from penstock._process.setup import Setup, load, resolve
from penstock._process.warden import Warden

__all__ = ["Start", "main"]


class Start(msgspec.Struct, frozen=True):
    """What a new template is told first.

    Attributes:
        hidden: variables that stand in nobody's environment but while the app is imported: a module may make its app
            of them. They are told over the socket, because the environment of a start can be read as long as it lives.
    """

    setup: Setup
    parent: int
    arguments: list[str]
    imports_per_job: bool
    hidden: dict[str, str]


def main(control_descriptor: int) -> NoReturn:
    """Be a template. Called in a fresh interpreter whose `sys.path` is the supervisor's."""
    control = socket.socket(fileno=control_descriptor)
    start = msgspec.msgpack.decode(control.recv(1 << 20), type=Start)
    sys.argv[:] = start.arguments
    os.umask(0o077)  # what jobs write is for their user alone, unless they say otherwise
    try:
        if start.imports_per_job:
            run = _importing(start.setup, start.hidden)
            hazards: system.Hazards = ()
        else:
            with _lent(start.hidden):
                target = load(start.setup)
            run = _ready(start.setup, target)
            sys.stdout.flush()
            hazards = system.find_hazards({0, 1, 2, control_descriptor})
    except BaseException:  # whatever it is, the supervisor must know
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
    control.send(msgspec.msgpack.encode(Ready([])))
    control.setblocking(False)
    warden.serve()


@contextlib.contextmanager
def _lent(variables: dict[str, str]) -> Iterator[None]:
    """Have variables in the environment for a while."""
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
        with _lent(hidden):
            target = load(setup)
        resolve(setup.entry)(target, channel.body(), channel)

    return run
