"""The environments of the peers: `.venv-peers` and, for those that conflict with the others, one each."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO, Final

from tools.install import run_pip

from benchmarks.peers.product import OURS

ROOT: Final = Path(__file__).resolve().parents[2]
REQUIREMENTS: Final = Path(__file__).parent


class InstallError(Exception):
    """An environment could not be made."""


def interpreter(environment: str) -> Path:
    """Return the Python of an environment."""
    return Path(sys.executable) if environment == OURS else _folder(environment) / "bin" / "python"


def requirements(environment: str) -> Path:
    """Return the pins of an environment: requirements.txt, or requirements-awa.txt of peers-awa."""
    suffix = environment.removeprefix("peers")
    return REQUIREMENTS / f"requirements{suffix}.txt"


def make_environment(environment: str, out: IO[str]) -> None:
    """Create an environment, unless it is there with the same pins.

    Raises:
        InstallError: pip failed; the end of its output was shown.
    """
    if environment == OURS:
        return
    folder, pins = _folder(environment), requirements(environment)
    stamp = folder / f".made-{hashlib.sha256(pins.read_bytes()).hexdigest()[:16]}"
    if stamp.exists():
        return
    print(f"Creating {folder.name} from the package registries", file=out, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    if run_pip(["-r", str(pins)], out, python=str(interpreter(environment))):
        raise InstallError(f"pip could not install {pins.name}")
    stamp.touch()


def _folder(environment: str) -> Path:
    return ROOT / f".venv-{environment}"
