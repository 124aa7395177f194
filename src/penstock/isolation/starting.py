"""Starting a template process: a fresh interpreter that imports what jobs need."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from penstock._lazy import subprocess
from penstock.errors import ProcessControlError, shown
from penstock.isolation.control import MAX_PACKET, Broken, FromWarden, Ready
from penstock.isolation.hooks import PUT_OFF
from penstock.isolation.setup import Setup
from penstock.isolation.template import Start

__all__ = ["StartedTemplate", "start_template"]

START_SECONDS: Final = 60.0
#: Suffixes of our variables that child processes do not get: the store's url and the secrets that sign callbacks. A
#: child process reaches the store through its worker alone.
HIDDEN: Final = ("_URL", "_SECRET")
MARK: Final = "PENSTOCK_WARDEN"
#: Settings that keep libraries from starting threads when they are imported, unless the user has set them otherwise.
#: pyarrow's allocator starts one, and with it no job could be forked from the template.
FORKABLE: Final = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
# The path comes first, since the rest is found by it; then the hooks, before anything is imported that has some.
_BOOT: Final = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]);"
    " exec(sys.argv[3]);"
    " from penstock.isolation.template import main; main(int(sys.argv[1]))"
)

_decoder: msgspec.msgpack.Decoder[FromWarden] = msgspec.msgpack.Decoder(FromWarden)
_encode = msgspec.msgpack.Encoder().encode


class StartedTemplate(NamedTuple):
    """A template process that is ready.

    Attributes:
        control: our end of its control socket.
        wait: waits for the process, once the socket is closed.
        mark: what stands in the environment of everything below it.
    """

    control: socket.socket
    wait: Callable[[], None]
    mark: str


def start_template(setup: Setup, *, imports_per_job: bool) -> StartedTemplate | tuple[str, ...]:
    """Start a template process; return its hazards instead if its import left what must not be forked.

    Raises:
        ProcessControlError: it cannot import the setup, or did not come up in time.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mark = f"{MARK}={os.urandom(16).hex()}"
    hidden = {name: value for name, value in os.environ.items() if _is_hidden(name)}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment = {**FORKABLE, **environment}
    environment[MARK] = mark.partition("=")[2]
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - multiprocessing uses it too
    child = subprocess.Popen(
        [
            sys.executable,
            *flags,
            "-c",
            _BOOT,
            str(theirs.fileno()),
            msgspec.json.encode(sys.path).decode(),
            PUT_OFF,
        ],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        env=environment,
        start_new_session=True,  # what is typed at the terminal is for the supervisor alone
    )
    theirs.close()
    start = Start(setup, os.getpid(), sys.argv, imports_per_job, hidden)
    answer: FromWarden | None = None
    try:
        ours.send(_encode(start))
        ours.settimeout(START_SECONDS)
        data = ours.recv(MAX_PACKET)
        answer = _decoder.decode(data) if data else None
    except TimeoutError:
        child.kill()
    except OSError:
        pass
    if isinstance(answer, Ready) and not answer.hazards:
        ours.settimeout(None)
        return StartedTemplate(ours, lambda: _quietly(child.wait), mark)
    ours.close()
    if isinstance(answer, Ready):
        child.wait()
        return tuple(answer.hazards)
    code = child.wait()
    if isinstance(answer, Broken):
        raise ProcessControlError(f"the template process cannot import {shown(setup.target)}:\n{answer.text}")
    raise ProcessControlError(
        f"the template process did not come up"
        f" (importing {shown(setup.target)}; exit code {code}, at most {START_SECONDS:g} s)"
    )


def _is_hidden(name: str) -> bool:
    return name.startswith("PENSTOCK_") and name.endswith(HIDDEN)


def _quietly(wait: Callable[[], object]) -> None:
    with contextlib.suppress(OSError):
        wait()
