"""What the jobs of the tests do: each function is an entry, imported by the template of a supervisor."""

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time

from penstock.isolation import Interrupted, Progress, Result, raise_when_terminated

TARGET = {"imported by": os.getpid()}


def forever():
    while True:
        signal.pause()


def say(channel, data):
    channel.send(Result(data))


def echo(target, payload, channel):
    say(channel, payload)


def facts(target, payload, channel):
    """Report what the process is like."""
    fds = sorted(os.listdir("/proc/self/fd"))
    report = [
        os.getpid() == os.getsid(0) == os.getpgid(0),
        os.getppid() == target["imported by"],
        "PENSTOCK_URL" in os.environ,
        len(fds),
        signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        len(os.listdir("/proc/self/task")),
    ]
    say(channel, repr(report).encode())


def after_fork(target, payload, channel):
    """Report whether threads, logging and the environment are as in any process, also after a fork with a thread around."""
    logging.getLogger().handlers[:] = [logging.StreamHandler()]
    lock = logging.getLogger().handlers[0].lock
    has_lock, may_go = threading.Event(), threading.Event()

    def hold():
        with lock:
            has_lock.set()
            may_go.wait()

    threading.Thread(target=hold, daemon=True).start()
    has_lock.wait()
    below = os.fork()
    if below == 0:
        # Without their hooks the lock would be held for ever, by a thread that is not here.
        os._exit(0 if lock.acquire(timeout=5) and threading.active_count() == 1 else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(below, 0)[1])
    may_go.set()
    report = [
        code,
        threading.main_thread().native_id == os.getpid(),
        os.register_at_fork.__module__,
    ]
    say(channel, repr(report).encode())


def random_numbers(target, payload, channel):
    import random

    say(channel, str(random.random()).encode())


def segfault(target, payload, channel):
    ctypes.string_at(0)


def exit_three(target, payload, channel):
    os._exit(3)


def kill_itself(target, payload, channel):
    os.kill(os.getpid(), signal.SIGKILL)


def kill_template(target, payload, channel):
    say(channel, str(os.getpid()).encode())
    os.kill(os.getppid(), signal.SIGKILL)
    forever()


def raise_something(target, payload, channel):
    raise RuntimeError("the entry itself is wrong")


def tree(target, payload, channel):
    """Have a child, a grandchild with a session of its own, and an orphan; report their pids; wait."""
    read, write = os.pipe()

    def member(depth):
        os.write(write, f"{os.getpid()} ".encode())
        if depth and os.fork() == 0:
            os.setsid()
            member(depth - 1)
        forever()

    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            member(1)
        os._exit(0)  # what it started is an orphan now
    if os.fork() == 0:
        member(0)
    pids = b""
    while len(pids.split()) < 3 or not pids.endswith(b" "):
        pids += os.read(read, 4096)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(channel, pids)
    if payload == b"leave":
        return
    if payload == b"die":
        os._exit(4)
    forever()


def ignore_terminate(target, payload, channel):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(channel, b"ready")
    forever()


def clean_up(target, payload, channel):
    raise_when_terminated()
    say(channel, b"ready")
    try:
        forever()
    except Interrupted:
        say(channel, b"cleaned up")


def wait_for_notice(target, payload, channel):
    say(channel, b"ready")
    channel.wait_cancelled(None)
    say(channel, (channel.cancel_reason or "").encode())


def ask(target, payload, channel):
    from penstock.isolation.channel import RequestRefusedError

    first = channel.request("double", b"x" * 100_000)
    try:
        channel.request("refuse")
    except RequestRefusedError as error:
        say(channel, str(len(first)).encode() + b" " + str(error).encode())


def report_progress(target, payload, channel):
    for percent in range(100):
        channel.send(Progress(percent, f"step {percent}"))
    say(channel, payload)


def allocate(target, payload, channel):
    try:
        bytearray(int(payload))
    except MemoryError:
        say(channel, b"MemoryError")
    else:
        say(channel, b"allocated")


def allocate_in_children(target, payload, channel):
    for _ in range(4):
        if os.fork() == 0:
            held = bytearray(int(payload))
            held[::4096] = b"x" * len(held[::4096])
            forever()
    say(channel, b"ready")
    forever()


def fork_bomb(target, payload, channel):
    """Fork as fast as it goes, in every child as well; bounded by a deadline, in case it is not ended."""
    say(channel, b"lit")
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            if os.fork() == 0:
                signal.alarm(20)
        except OSError:
            signal.sigtimedwait([], 0.01)


def leak(target, payload, channel):
    opened = []
    try:
        while True:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        say(channel, f"{len(opened)} {error.strerror}".encode())


def flood(target, payload, channel):
    print("the first line", flush=True)
    piece = b"x" * 65535 + b"\n"
    for _ in range(int(payload) // len(piece)):
        os.write(1, piece)
    print("the last line", file=sys.stderr)


def garbage(target, payload, channel):
    os.write(channel.descriptor, b"\xff" * 64)
    forever()


def with_subprocess(target, payload, channel):
    done = subprocess.run([sys.executable, "-c", "print('from below')"], check=True)
    say(channel, str(done.returncode).encode())


def tell_family(target, payload, channel):
    say(channel, f"{os.getpid()} {os.getppid()}".encode())
    forever()


def hang(target, payload, channel):
    say(channel, b"ready")
    forever()
