"""The app of the demo: short handlers that succeed, fail, hang or crash."""

import os
import signal
import time

import penstock
from penstock import JobContext, PermanentError, Priority, TemporaryError

app = penstock.App()  # $PENSTOCK_URL says which store


@app.job(tags=["fast"], priority=Priority.BULK)
def fast(number: int) -> int:
    return number * number


@app.job(tags=["slow"], priority=Priority.HIGH)
def slow(context: JobContext, parts: int, seconds: float) -> str:
    """Work in parts, with a checkpoint after each: an attempt continues where the one before was killed."""
    done = int(context.checkpoint or b"0")
    began_at = done
    while done < parts:
        time.sleep(seconds / parts)
        done += 1
        context.save_checkpoint(str(done).encode())
        context.progress(100 * done // parts, f"part {done} of {parts}")
    return f"attempt {context.attempt} did parts {began_at + 1} to {parts}"


@app.job(tags=["flaky"])
def flaky(context: JobContext) -> str:
    if context.attempt <= 2:
        raise TemporaryError(f"the server is busy (attempt {context.attempt})", code="http_503")
    return "the server answered at last"


@app.job(tags=["poison"])
def poison() -> None:
    raise ValueError("this input cannot be parsed")


@app.job(tags=["refused"])
def refused() -> None:
    raise PermanentError("there is no such picture", code="http_404")


@app.job(tags=["orphan"])
def orphan() -> None:
    """Never runs: it waits for a poison job, and shares its fate."""


@app.job(tags=["stuck"])
def stuck() -> None:
    """Hang, and ignore SIGTERM: only SIGKILL ends this."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


@app.job(tags=["crash"])
def crash(context: JobContext) -> str:
    if context.attempt == 1:
        os.kill(os.getpid(), signal.SIGSEGV)  # as a bug in a C library would
    return "the second process did not crash"


@app.job(tags=["step"], key="customer {customer}")
def step(customer: str, number: int, seconds: float) -> str:
    time.sleep(seconds)
    return f"{customer}: {number}"


@app.job(tags=["flow"])
def fetch(picture: str, seconds: float) -> str:
    time.sleep(seconds)
    return picture


@app.job(tags=["flow"])
def resize(picture: str, width: int, seconds: float) -> str:
    time.sleep(seconds)
    return f"{picture} at {width}"


@app.job(tags=["flow"])
def publish(picture: str) -> str:
    return f"all sizes of {picture}"


@app.job(tags=["delayed"])
def delayed() -> None:
    """Runs at its time, not before."""


@app.job(tags=["cancelled"])
def endless(context: JobContext) -> None:
    while not context.is_cancelled:
        time.sleep(0.02)


@app.job(tags=["cancelled"])
def unwanted() -> None:
    """Never runs: it is cancelled while it waits."""
