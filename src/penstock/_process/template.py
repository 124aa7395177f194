"""The template of a worker: imports what jobs need, then serves as their warden."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import socket
import sys
import traceback
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
    """What a new template is told first."""

    setup: Setup
    parent: int
    arguments: list[str]
    imports_per_job: bool


def main(control_descriptor: int) -> NoReturn:
    """Be a template. Called in a fresh interpreter whose `sys.path` is the supervisor's."""
    control = socket.socket(fileno=control_descriptor)
    start = msgspec.msgpack.decode(control.recv(1 << 20), type=Start)
    sys.argv[:] = start.arguments
    os.umask(os.umask(0) | 0o022)
    try:
        if start.imports_per_job:
            run = _importing(start.setup)
            hazards: system.Hazards = ()
        else:
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


def _ready(setup: Setup, target: Any) -> Any:
    entry = resolve(setup.entry)
    if setup.prepare is not None:
        resolve(setup.prepare)(target)

    def run(channel: Channel) -> None:
        entry(target, channel.body(), channel)

    return run


def _importing(setup: Setup) -> Any:
    def run(channel: Channel) -> None:
        target = load(setup)
        resolve(setup.entry)(target, channel.body(), channel)

    return run
