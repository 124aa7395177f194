"""A real browser, headless, spoken to over a pipe."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page of a running browser, and what it complained about."""

    def __init__(self, reading: int, writing: int) -> None:
        self._in = os.fdopen(reading, "rb", buffering=0)
        self._out = os.fdopen(writing, "wb", buffering=0)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        self._events: list[str] = []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def close(self) -> None:
        self._in.close()
        self._out.close()

    def open(self, page: Path) -> None:
        self("Page.navigate", url=page.as_uri())
        while "Page.loadEventFired" not in self._events:
            self._next()

    def ask(self, script: str) -> Any:
        """Return what a promise of the page comes to."""
        result = self("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wear(self, look: str) -> None:
        self("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": look}])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = self._in.read(1 << 20)
            assert read, "the browser ended"
            self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method", ""), message.get("params", {})
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning"}:
            self.errors.append(json.dumps(params["args"])[:500])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start a browser; without one installed the test is skipped, and says so."""
    if CHROMIUM is None:
        pytest.skip("no chromium: install it (Debian: apt-get install chromium) to have the report looked at")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--remote-debugging-pipe",
        "--disable-dev-shm-usage",
    ]
    redirected = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", redirected, CHROMIUM, *options, f"--user-data-dir={folder}/profile"],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    os.close(theirs_in)
    os.close(theirs_out)
    window = Browser(ours_in, ours_out)
    try:
        yield window
    finally:
        process.kill()
        process.wait(30)
        window.close()
