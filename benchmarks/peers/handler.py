"""What every job of every product does: one write of 16 bytes (clock and job number) to a file that all processes share.

Imports nothing but the standard library: products fork processes from one that has imported it.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Final

RECORD: Final = struct.Struct("<dq")
#: The environment variable that names the file.
FILE: Final = "PENSTOCK_BENCH_FILE"
FILLER: Final = "x" * 80

_opened: list[int] = []


def note(i: int, s: str) -> None:  # noqa: ARG001  # the payload of all workloads
    """Record that job `i` started now."""
    if not _opened:
        _opened.append(os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND))
    os.write(_opened[0], RECORD.pack(time.monotonic(), i))
