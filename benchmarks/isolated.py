"""The app of the workload W3p: a handler that notes when it began, and nothing else."""

from __future__ import annotations

import os
import struct
import time
from typing import Any, Final

import penstock
from penstock.isolation import Channel, Result

RECORD: Final = struct.Struct("<dq")
#: The file that handlers append to; given by the environment, since the template imports this module.
FILE: Final = "PENSTOCK_BENCH_FILE"

_file = os.environ.get(FILE, "")

# What follows a # is the schema of a PostgreSQL store. In the process of a job there is no url, and none is needed.
_place, _, _schema = os.environ.get("PENSTOCK_URL", "").partition("#")
_options: dict[str, Any] = {"schema": _schema} if _schema else {}
app = penstock.App(_place or None, **_options)


@app.job(type="bench")
def note(i: int, s: str) -> None:  # noqa: ARG001 - the payload of all workloads
    """Append one record of 16 bytes."""
    write(i)


def write(number: int) -> None:
    descriptor = os.open(_file, os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, RECORD.pack(time.monotonic(), number))
    os.close(descriptor)


def entry(_target: object, payload: bytes, channel: Channel) -> None:
    """Do the same without a worker."""
    write(int(payload))
    channel.send(Result())
