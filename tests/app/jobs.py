"""An app that the template of a worker can import, with handlers that behave in every way there is.

Its store is chosen by each test: `app.url` is set before the first use, or PENSTOCK_URL says it.
"""

import asyncio
import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import penstock
from penstock import JobContext, PermanentError, RetryPolicy, TemporaryError

app = penstock.App()

ONCE = RetryPolicy(max_attempts=1)
QUICKLY = RetryPolicy(max_attempts=3, initial_delay=0.01)
FOREVER = 600.0


def rest(seconds: float) -> None:
    """What a handler does that takes long."""
    threading.Event().wait(seconds)


def write(note: str, text: str) -> None:
    Path(note).write_text(text)


@app.job(retry=ONCE)
def double(number: int) -> int:
    return 2 * number


@app.job(retry=ONCE)
async def later(number: int) -> int:
    await asyncio.sleep(0.01)
    return number


@app.job(retry=ONCE)
def ask(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    app.handle("nobody").job()


@app.job(retry=ONCE)
def say_and_wait(path: str) -> None:
    sys.stdout.write("so far\n")
    sys.stdout.flush()
    pause = threading.Event()
    while not Path(path).exists():
        pause.wait(0.01)
    sys.stdout.write("and on\n")


@app.job(retry=ONCE)
def facts() -> dict:
    try:
        queue = repr(app.queue)
    except ValueError as error:
        queue = str(error)
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "session": os.getsid(0) == os.getpid(),
        "url": os.environ.get("PENSTOCK_URL"),
        "secret": os.environ.get("PENSTOCK_WEBHOOK_SECRET"),
        "threads": threading.active_count(),
        "umask": re.search(r"Umask:\s*(\d+)", Path("/proc/self/status").read_text())[1],
        "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "files": sorted(int(each.name) for each in Path("/proc/self/fd").iterdir()),
        "queue": queue,
        "main": __name__,
    }


@app.job(retry=QUICKLY)
def end(how: str, number: int = 0) -> str:
    """End in every way a handler can."""
    sys.stdout.write(f"about to {how}\n")
    match how:
        case "segfault":
            ctypes.string_at(0)
        case "_exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            sys.exit(4)
        case "interrupt":
            raise KeyboardInterrupt
        case "abort":
            os.abort()
        case "permanent":
            raise PermanentError("never", code="never")
        case "temporary":
            raise TemporaryError("later", code="later")
        case "object":
            return object()  # type: ignore[return-value]
        case "memory":
            raise MemoryError
        case "kill_parent":
            os.kill(os.getppid(), signal.SIGKILL)
            rest(FOREVER)
        case "error":
            raise ValueError(f"number {number}")
    return how


@app.job(retry=ONCE, timeout=0.5)
def overtime(context: JobContext, how: str, note: str = "") -> str:
    """Take longer than allowed."""
    if how == "polite":
        while not context.is_cancelled:
            rest(0.01)
        return "stopped early"
    if how == "ignores":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how == "family":
        # A grandchild in a session of its own, whose parent is gone: no process group reaches it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        script = f"import os, time; open({note!r}, 'w').write(str(os.getpid())); time.sleep({FOREVER})"
        if os.fork() == 0:
            subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
            os._exit(0)
    if how == "finally":
        try:
            rest(FOREVER)
        finally:
            write(note, "cleaned up")
    rest(FOREVER)
    return "never"


@app.job(retry=ONCE)
def patient(context: JobContext, note: str, polite: bool = True) -> None:
    """Say that it runs, then wait to be cancelled."""
    write(note, str(os.getpid()))
    if not polite:
        rest(FOREVER)
    while not context.is_cancelled:
        rest(0.01)


@app.job(retry=ONCE)
async def patient_async(note: str) -> None:
    write(note, str(os.getpid()))
    try:
        await asyncio.sleep(FOREVER)
    except asyncio.CancelledError:
        write(note, "cancelled")
        raise


@app.job(retry=QUICKLY)
def marked(context: JobContext, folder: str, seconds: float = 0.0) -> int:
    """Leave a file for each attempt; the first one may take long."""
    write(f"{folder}/{context.job.id}-{context.attempt}", str(os.getpid()))
    if context.attempt == 1:
        rest(seconds)
    return context.attempt


@app.job(retry=ONCE, memory=64 * 1024 * 1024)
def hungry(megabytes: int) -> int:
    return len(bytearray(megabytes * 1024 * 1024)) // (1024 * 1024)


@app.job(retry=ONCE)
def devours(group: str, megabytes: int) -> int:
    """Join a group of limited memory, and take more."""
    write(f"{group}/cgroup.procs", str(os.getpid()))
    return len(bytearray(b"x") * (megabytes * 1024 * 1024))


@app.job(retry=ONCE, processes=20)
def breed() -> None:
    """A small fork bomb."""
    for _ in range(10):
        os.fork()
    rest(FOREVER)


@app.job(retry=ONCE, files=64)
def hoard(number: int) -> int:
    """Open files and keep them."""
    kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(number)]
    return len(kept)


@app.job(retry=ONCE, output=10_000)
def shout(megabytes: int) -> None:
    sys.stdout.write("the beginning\n")
    sys.stdout.flush()
    line = b"x" * 1023 + b"\n"
    for _ in range(megabytes * 1024):
        os.write(1, line)
    sys.stderr.write("the end\n")


@app.job(retry=ONCE)
def reports(context: JobContext, note: str) -> None:
    """Tell how far it is, then wait for a file to appear."""
    for percent in range(60):
        context.progress(percent, f"step {percent}")
    context.log("half way")
    while not Path(note).exists():
        rest(0.01)
    context.progress(100)


@app.job(retry=QUICKLY)
def resumes(context: JobContext) -> list[int]:
    done = int(context.checkpoint or b"0")
    context.save_checkpoint(str(done + 1).encode())
    if done < 2:
        os._exit(1)
    return [context.attempt, done]


@app.job(retry=ONCE)
def family(context: JobContext, number: int) -> dict:
    """Do with other jobs all that can be done from inside one."""
    spawned = context.spawn(double, number=number)
    submitted = double.options(tags=["inner"], priority=1).submit(number + 1)
    many = double.submit_many([{"number": each} for each in range(3)])
    waiting = double.options(delay=3600).submit(0)
    found: dict = {
        "spawned": [spawned.id, spawned.result(30)],
        "submitted": submitted.result(30),
        "tags": submitted.job().tags,
        "many": [handle.result(30) for handle in many],
        "cancelled": [waiting.cancel(), str(waiting.status), waiting.cancel()],
        "awaited": asyncio.run(_await(double.submit(7))),
    }
    for name, call in {
        "timeout": lambda: double.options(delay=3600, idempotency_key="late").submit(1).result(0.05),
        "unknown": lambda: app.handle("nobody").job(),
        "failed": lambda: end.submit("permanent").result(30),
        "arguments": lambda: double.submit("two"),
        "checkpoint": lambda: context.save_checkpoint(b"x" * 20_000_000),
    }.items():
        try:
            call()
        except Exception as error:
            found[name] = [type(error).__name__, getattr(error, "code", None)]
    return found


async def _await(handle) -> int:
    return await handle


@app.job(retry=ONCE)
def leaves_a_child(note: str) -> int:
    """Return, and leave a process behind."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"import time; time.sleep({FOREVER})"], start_new_session=True
    )
    write(note, str(child.pid))
    return child.pid


@app.job(retry=ONCE, timeout=30)
def lingers(go: str) -> str:
    """Return, in a process that only goes when a file is there."""

    class Slow:
        def flush(self) -> None:
            while not Path(go).exists():
                rest(0.01)

    sys.stdout = Slow()  # type: ignore[assignment]  # it is flushed last of all
    return "done"


@app.job(retry=ONCE)
def lets_go(go: str, other: str) -> str:
    """Make the file, and say how the other job was before."""
    before = str(app.handle(other).status)
    Path(go).touch()
    return before


@app.job(retry=ONCE)
def splits() -> list[int]:
    """Fork, and let both come out of the handler."""
    before = os.getpid()
    os.fork()
    return [before, os.getpid()]


@app.job(isolation="thread", retry=ONCE)
def here() -> int:
    return os.getpid()


@app.job(retry=RetryPolicy(max_attempts=3, initial_delay=0.05), timeout=20)
def mixed(context: JobContext, how: str, folder: str) -> str:
    """One of many jobs of every kind; leaves a line for each time it has come to its end."""
    if how == "shaky" and context.attempt == 1:
        raise TemporaryError("not yet", retry_after=0.02)
    if how == "crashes once" and context.attempt == 1:
        os._exit(9)
    if how == "poison":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "wrong":
        raise PermanentError("never")
    if how == "leaks":
        for _ in range(50):
            os.open("/dev/null", os.O_RDONLY)
        threading.Thread(target=rest, args=(FOREVER,), daemon=True).start()
    if how == "orphans":
        subprocess.Popen(["sleep", str(int(FOREVER))], start_new_session=True)
    if how == "loud":
        sys.stdout.write("x" * 200_000)
    if how == "spawns":
        context.spawn(double, number=1)
    if how == "reports":
        context.progress(50, "half")
        context.save_checkpoint(b"half")
    descriptor = os.open(f"{folder}/{context.job.id}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, b"done\n")
    os.close(descriptor)
    return how


@app.job(retry=ONCE)
async def submits_async(number: int) -> list[int]:
    first = await double.submit_async(number)
    (second,) = await double.submit_many_async([{"number": number + 1}])
    return [await first, await second]


@app.job(retry=ONCE)
def submit_twice(context: JobContext) -> list[object]:
    once = double.options(idempotency_key="once")
    first, again = once.submit(1), once.submit(1)
    many = [handle.is_duplicate for handle in once.submit_many([{"number": 1}, {"number": 1}])]
    spawned = [
        context.spawn(double.options(idempotency_key="spawned"), number=2).is_duplicate for _ in range(2)
    ]
    return [first.is_duplicate, again.is_duplicate, many, *spawned]


@app.job(retry=ONCE)
def gather_doubles(count: int) -> list[object]:
    handles = double.submit_many([{"number": n} for n in range(count)])
    seen = sum(1 for _ in penstock.as_completed(handles, timeout="60s"))
    late = double.options(delay=3600).submit(number=1)
    try:
        penstock.gather([handles[0], late], timeout=0.05)
        text = ""
    except TimeoutError as error:
        text = str(error)[: len("1 of 2 jobs have not ended")]
    late.cancel()
    return [penstock.gather(handles, timeout=60), seen, text]


@app.job(retry=ONCE)
async def gather_doubles_async(count: int) -> list[int]:
    handles = [await double.submit_async(number=n) for n in range(count)]
    return await penstock.aio.gather(handles, timeout="60s")
