"""The side of the process that wants jobs run: starts wardens, hears from jobs, tells watchers."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import selectors
import signal
import socket
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from penstock._lazy import subprocess
from penstock._process import system
from penstock._process.channel import Channel
from penstock._process.control import (
    MAX_PACKET,
    MOST_A_PACKET,
    Broken,
    Close,
    Ended,
    FromWarden,
    Launch,
    Located,
    NotStarted,
    Order,
    Overdue,
    Ready,
)
from penstock._process.endings import Ending, describe, out_of_memory_kills
from penstock._process.handle import JobProcess, WardenLink, Watcher, letter
from penstock._process.hooks import PUT_OFF
from penstock._process.keeper import keep
from penstock._process.limits import Grace, Limits
from penstock._process.messages import Cancel, Failure, Result, decode
from penstock._process.setup import Setup
from penstock._process.template import Start
from penstock.errors import ProcessControlError, shown

__all__ = ["JobProcess", "Supervisor", "Task", "Watcher"]

logger = logging.getLogger("penstock")

PIECE: Final = 65536
START_SECONDS: Final = 60.0
LOSE_SECONDS: Final = 5.0
#: How those of our variables end that no process of a job gets to see: where the store is, and what signs callbacks.
#: It reaches the store through its worker alone.
HIDDEN: Final = ("_URL", "_SECRET")
MARK: Final = "PENSTOCK_WARDEN"
# The path comes first, since the rest is found by it; then the hooks, before anything is imported that has some.
_BOOT: Final = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]);"
    " exec(sys.argv[3]);"
    " from penstock._process.template import main; main(int(sys.argv[1]))"
)

_decoder: msgspec.msgpack.Decoder[FromWarden] = msgspec.msgpack.Decoder(FromWarden)
_encode = msgspec.msgpack.Encoder().encode


class Task(NamedTuple):
    """One job for `launch_many`."""

    payload: bytes
    watcher: Watcher
    limits: Limits = Limits()
    grace: Grace = Grace()


class Supervisor:
    """Runs jobs in processes of their own. Thread-safe.

    Args:
        setup: what the template imports; None if only `fork` is used.
        spares: how many processes to keep ready for jobs to come; each waits, with all that the template has in memory.
        on_hazards: called with what the import left behind that must not be forked, if anything. Each job then imports
            for itself, which is slower.
    """

    def __init__(
        self,
        setup: Setup | None = None,
        *,
        spares: int = 0,
        on_hazards: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        if sys.platform == "win32":
            raise ProcessControlError(
                "a process for each job needs fork, which Windows does not have; use isolation='thread'"
            )
        self.setup = setup
        #: What the import left in the template; each job imports for itself if there is anything.
        self.hazards: tuple[str, ...] = ()
        self._spares = spares
        self._on_hazards = on_hazards
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._template: WardenLink | None = None
        self._wardens: set[WardenLink] = set()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._memory_kills = out_of_memory_kills()
        self._wake, self._wake_end = socket.socketpair()
        self._wake.setblocking(False)
        self._open: set[int] = {self._wake_end.fileno()}
        self._register(self._wake.fileno(), self._woken)
        _supervisors.add(self)

    # -- starting -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the template now, instead of at the first launch.

        Raises:
            ProcessControlError: it cannot import the setup; the text has the traceback.
        """
        self._launch(self._ready_template(), [])

    def launch(
        self, payload: bytes, watcher: Watcher, *, limits: Limits | None = None, grace: Grace | None = None
    ) -> JobProcess:
        """Start a job in a process of its own, forked from the template: now, or in advance.

        Args:
            payload: what the setup's entry is called with.
            watcher: hears from the job.
            limits: what the process may use.
            grace: how it is ended when its time is over.
        """
        return self.launch_many([Task(payload, watcher, limits or Limits(), grace or Grace())])[0]

    def launch_many(self, tasks: Sequence[Task]) -> list[JobProcess]:
        """Start jobs, many with one message; cheaper than one by one.

        Raises:
            ProcessControlError: there is no template, or none can be started; nothing was started then.
        """
        template = self._ready_template()
        processes: list[JobProcess] = []
        for begin in range(0, len(tasks), MOST_A_PACKET):
            processes += self._launch(template, tasks[begin : begin + MOST_A_PACKET])
        return processes

    def _launch(self, template: WardenLink, tasks: Sequence[Task]) -> list[JobProcess]:
        """Give jobs to processes that wait for one, and to new ones; have new ones wait in their places."""
        letters = [
            letter(task.payload, task.limits) for task in tasks
        ]  # one may be too large: before anything is done
        with self._lock:
            # One that has died is there until its warden says so.
            waiting = [process for process in template.spares.values() if not process.is_dead]
            taken = waiting[: len(tasks)]
            for process, task in zip(taken, tasks, strict=False):
                template.give(process, task.watcher, task.limits)
            missing = len(tasks) - len(taken)
            wanted = self._spares - template.coming - (len(waiting) - len(taken))
            replacements = max(0, min(wanted, MOST_A_PACKET - missing))
            template.coming += replacements
        fresh: list[JobProcess] = []
        handed: list[int] = []
        try:
            try:
                self._open_some(template, missing, replacements, fresh, handed)
            except BaseException:
                with self._lock:
                    for process in taken:
                        template.take_back(process)
                raise
            with self._lock:
                is_gone = template.is_lost
                for process, task in zip(fresh, tasks[len(taken) :], strict=False):
                    template.give(process, task.watcher, task.limits)
                template.spares.update((process.number, process) for process in fresh[missing:])
                # Here and not later: whoever launches meanwhile would count them twice, and too few would wait.
                template.coming -= replacements
                replacements = 0
            processes = taken + fresh[:missing]
            dead = [
                place
                for place, (process, data) in enumerate(zip(processes, letters, strict=True))
                if not is_gone and not process.post(data)
            ]
            orders = [
                Order.of(process.number, task.limits, task.grace)
                for process, task in zip(processes, tasks, strict=True)
            ]
            if is_gone or not template.tell(Launch([process.number for process in fresh], orders), handed):
                # The warden has just ended. Its jobs are told so by whoever notices; these were never started.
                for process in processes + fresh[missing:]:
                    if self._forget(template, process):
                        self._finish(
                            process, None, "", cause="its template ended before the job could be started"
                        )
                return processes
        finally:
            with self._lock:
                template.coming -= replacements
            for descriptor in handed:
                os.close(descriptor)
        for place in dead:
            with self._lock:
                is_ours = template.take_back(processes[place])
            if is_ours:  # it had died, which nobody knew yet, and its job has not begun
                (processes[place],) = self._launch(template, [tasks[place]])
        return processes

    def _open_some(
        self,
        template: WardenLink,
        missing: int,
        replacements: int,
        fresh: list[JobProcess],
        handed: list[int],
    ) -> None:
        """Make so many processes that are needed now, and so many for later, if there are descriptors for them."""
        try:
            for _ in range(missing + replacements):
                process = JobProcess(next(self._numbers), template)
                handed += self._open_job(process)
                fresh.append(process)
        except OSError:
            if len(fresh) >= missing:
                return
            for process in fresh:
                self._close_channel(process)
                self._close_output(process)
            raise

    def _forget(self, warden: WardenLink, process: JobProcess) -> bool:
        """Take a process from its warden's; False if somebody else has done so, and tells of its end."""
        with self._lock:
            return warden.pop(process.number) is not None

    def fork(
        self,
        run: Callable[[Channel], object],
        watcher: Watcher,
        *,
        limits: Limits | None = None,
        grace: Grace | None = None,
    ) -> JobProcess:
        """Run a function that exists only in this process, in a process forked from it.

        Connections and listeners of this process are closed there; files, pipes and memory are as they are. Threads
        are not there, and a lock that one of them holds stays locked: what the function uses should not need any.
        """
        self._check()
        self._run_thread()
        limits, grace = limits or Limits(), grace or Grace()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        warden = WardenLink(ours, self._want_write, self._is_own_thread, lambda: None)
        process = JobProcess(next(self._numbers), warden, watcher, limits)
        channel, output = self._open_job(process)
        order = Order.of(process.number, limits, grace)
        others = [descriptor for each in list(_supervisors) for descriptor in each.descriptors()]
        others += [ours.fileno(), process.channel_end, process.output_end]
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads: see above
            pid = os.fork()
        if pid == 0:
            keep(theirs, parent, order, channel, output, run, others)
        theirs.close()
        os.close(channel)
        os.close(output)
        warden.wait = lambda: _wait(pid)
        with self._lock:
            warden.jobs[process.number] = process
        self._attend(warden)
        return process

    def _open_job(self, process: JobProcess) -> tuple[int, int]:
        """Make channel and output of a process; returns the ends for it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        readable, writable = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(readable, False)
        process.channel_end, process.output_end = ours.detach(), readable
        self._register(process.channel_end, lambda mask: self._hear(process, mask))
        self._register(readable, lambda _mask: self._read_output(process))
        return theirs.detach(), writable

    def _is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _register(self, descriptor: int, callback: Callable[[int], object]) -> None:
        self._open.add(descriptor)
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def _unregister(self, descriptor: int) -> None:
        self._open.discard(descriptor)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(descriptor)

    def _want_write(self, descriptor: int) -> None:
        """Watch for room in a channel."""
        with contextlib.suppress(KeyError):
            key = self._selector.get_key(descriptor)
            self._selector.modify(descriptor, selectors.EVENT_READ | selectors.EVENT_WRITE, key.data)

    def _ready_template(self) -> WardenLink:
        self._check()
        template = self._template
        if template is not None and not template.is_lost:
            return template
        if self.setup is None:
            raise ProcessControlError(
                "this supervisor has no setup, so it has no template to launch jobs from"
            )
        with self._starting:
            template = self._template
            if template is None or template.is_lost:
                self._run_thread()
                template = self._start_template(imports_per_job=bool(self.hazards))
                if template is None:
                    if self._on_hazards is not None:
                        self._on_hazards(self.hazards)
                    template = self._start_template(imports_per_job=True)
                    assert template is not None  # noqa: S101 - it imported nothing
                self._template = template
                self._attend(template)
        return template

    def _start_template(self, *, imports_per_job: bool) -> WardenLink | None:
        """Start a template; None if its import left what must not be forked."""
        assert self.setup is not None  # noqa: S101 - by the caller
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mark = f"{MARK}={os.urandom(16).hex()}"
        hidden = {name: value for name, value in os.environ.items() if _is_hidden(name)}
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
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
            start_new_session=True,  # what is typed at the terminal is for the supervisor, from the first moment
        )
        theirs.close()
        start = Start(self.setup, os.getpid(), sys.argv, imports_per_job, hidden)
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
            return WardenLink(ours, self._want_write, self._is_own_thread, lambda: _quietly(child.wait), mark)
        ours.close()
        if isinstance(answer, Ready):
            child.wait()
            self.hazards = tuple(answer.hazards)
            return None
        code = child.wait()
        if isinstance(answer, Broken):
            raise ProcessControlError(
                f"the template of the jobs' processes cannot import {shown(self.setup.target)}:\n{answer.text}"
            )
        raise ProcessControlError(
            f"the template of the jobs' processes did not come up"
            f" (importing {shown(self.setup.target)}; exit code {code}, at most {START_SECONDS:g} s)"
        )

    def _attend(self, warden: WardenLink) -> None:
        with self._lock:
            self._wardens.add(warden)
        self._register(warden.control.fileno(), lambda _mask: self._obey(warden))

    def _check(self) -> None:
        if self._is_closed:
            raise ProcessControlError("the supervisor of the jobs' processes is closed")
        if self._pid != os.getpid():
            raise ProcessControlError(
                "this supervisor belongs to the process that made it; make a new one after a fork"
            )

    def descriptors(self) -> list[int]:
        """Return all descriptors that must not live on in a process forked from this one."""
        return list(self._open)

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="penstock-processes", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        while not self._is_closed or self._wardens:
            for key, mask in self._selector.select():
                key.data(mask)

    def _woken(self, _mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096)

    def _obey(self, warden: WardenLink) -> None:
        """Take what a warden says."""
        try:
            data = warden.control.recv(MAX_PACKET, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose(warden)
            return
        packet = _decoder.decode(data)
        if isinstance(packet, Located):
            process = warden.jobs.get(packet.number)
            if process is not None:
                process.locate(packet.pid)
        elif isinstance(packet, Ended):
            with self._lock:
                process = warden.pop(packet.number)
            if process is not None:
                process.locate(packet.pid)
                self._finish(
                    process, packet.status, packet.reason, is_clean=packet.is_clean, left=packet.left,
                    max_rss=packet.max_rss,
                )  # fmt: skip
        elif isinstance(packet, NotStarted):
            with self._lock:
                process = warden.pop(packet.number)
            if process is not None:
                self._finish(process, None, "", cause=f"the process could not be started: {packet.text}")
        elif isinstance(packet, Overdue):
            process = warden.jobs.get(packet.number)
            if process is not None:
                with contextlib.suppress(OSError):
                    process.send(Cancel("the job's time is over"))

    def _hear(self, process: JobProcess, mask: int) -> None:
        """Read from a job's channel, and send what waits for room."""
        if mask & selectors.EVENT_WRITE and process.flush():
            with contextlib.suppress(KeyError):
                key = self._selector.get_key(process.channel_end)
                self._selector.modify(process.channel_end, selectors.EVENT_READ, key.data)
        if mask & selectors.EVENT_READ:
            self._read_channel(process)

    def _read_channel(self, process: JobProcess) -> bool:
        """Take one piece of what a job says; False if there is nothing to read now, or ever again."""
        try:
            data = os.read(process.channel_end, PIECE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            try:
                messages = [decode(body) for body in process.reader.feed(data)]
            except (ValueError, msgspec.DecodeError):
                process.kill()  # it writes what is no message: something in it is broken
            else:
                for message in messages:
                    if isinstance(message, Result | Failure):
                        # What it printed before is in the pipe by now, and whoever hears of the end may ask for it.
                        # Once: what it left running may go on printing for ever.
                        self._read_output(process)
                    process.tell(message)
                return True
        self._close_channel(process)
        return False

    def _read_output(self, process: JobProcess) -> bool:
        if process.output_end < 0:
            return False
        try:
            data = os.read(process.output_end, PIECE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            process.output.add(data)
            return True
        self._close_output(process)
        return False

    def _finish(
        self, process: JobProcess, status: int | None, reason: str, *, cause: str = "", **facts: Any
    ) -> None:
        """Read what the job has left in its channel and its output, let go of both, tell the watcher."""
        while process.channel_end >= 0 and self._read_channel(process):
            continue
        while self._read_output(process):
            continue
        self._close_channel(process)
        self._close_output(process)
        memory_ran_out = False
        if (
            status is not None
            and os.WIFSIGNALED(status)
            and os.WTERMSIG(status) == signal.SIGKILL
            and not reason
        ):
            kills = out_of_memory_kills()
            memory_ran_out, self._memory_kills = kills > self._memory_kills, kills
        words = cause or describe(status, reason, memory_ran_out=memory_ran_out)
        process.settle(
            Ending(status=status, reason=reason, cause=words, memory_ran_out=memory_ran_out, **facts)
        )

    def _close_channel(self, process: JobProcess) -> None:
        process.is_dead = True
        with process.lock:
            descriptor, process.channel_end = process.channel_end, -1
        self._drop(descriptor)

    def _close_output(self, process: JobProcess) -> None:
        with process.lock:
            descriptor, process.output_end = process.output_end, -1
        self._drop(descriptor)

    def _drop(self, descriptor: int) -> None:
        if descriptor >= 0:
            self._unregister(descriptor)
            os.close(descriptor)

    def _lose(self, warden: WardenLink) -> None:
        """Let go of a warden that has ended, and see that nothing outlives it."""
        with warden.sending:
            warden.is_lost = True
        self._unregister(warden.control.fileno())
        warden.control.close()
        warden.wait()
        # Its jobs die with it, but not at the same instant; what they had in other sessions is found by its mark.
        leaders = {process.known_pid for process in warden.jobs.values() if process.known_pid is not None}
        until = time.monotonic() + LOSE_SECONDS
        while (warden.mark or leaders) and time.monotonic() < until:
            left = (system.marked(warden.mark) if warden.mark else set()) | system.sessions(leaders)
            if not left:
                break
            system.kill_all(left)
            time.sleep(0.002)
        for process in [*warden.jobs.values(), *warden.spares.values()]:
            process.drain(until)
        with self._lock:
            self._wardens.discard(warden)
            lost = [*warden.jobs.values(), *warden.spares.values()]
            warden.jobs.clear()
            warden.spares.clear()
        for process in lost:
            self._finish(process, None, "")

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self, timeout: float = 10.0) -> None:
        """Kill what still runs, end the wardens and the thread, close every descriptor. Idempotent."""
        with self._lock:
            if self._is_closed or self._pid != os.getpid():
                return
            self._is_closed = True
            wardens = list(self._wardens)
        for warden in wardens:
            warden.tell(Close())
        with contextlib.suppress(OSError):
            self._wake_end.send(b"x")
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
        if thread is None or not thread.is_alive():
            self._open.clear()
            self._selector.close()
            self._wake.close()
            self._wake_end.close()


_supervisors: weakref.WeakSet[Supervisor] = weakref.WeakSet()


def _wait(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _is_hidden(name: str) -> bool:
    return name.startswith("PENSTOCK_") and name.endswith(HIDDEN)


def _quietly(wait: Callable[[], object]) -> None:
    with contextlib.suppress(OSError):
        wait()
