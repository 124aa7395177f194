"""The parent of child processes: forks them, waits for them, ends them and all they leave behind.

    poll ──► control socket: Launch, Signal, End, Locate, Close ──► fork, kill, answer
         ──► SIGCHLD (wake-up pipe): reap ──► kill what the job left behind ──► Ended
         ──► parent's pidfd: the supervisor is gone ──► kill everything, exit
         ──► timer: time limits, steps of an end, use of memory and processes

The kernel decides whether a process has ended and which process is its parent. The warden assumes that the supervisor
reads what it sends, and never waits for that. It has one thread and one loop; the package's docstring has the reasons.
It must not use logging or import anything late: a keeper is forked from a process whose other threads may hold any lock.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # has no stubs
import _thread
import contextlib
import gc
import mmap
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Final, NoReturn

import msgspec

from penstock.isolation import system
from penstock.isolation.channel import Channel, SupervisorGoneError
from penstock.isolation.control import (
    MAX_PACKET,
    MAX_PER_PACKET,
    Close,
    End,
    Ended,
    FromWarden,
    Launch,
    Locate,
    Located,
    NotStarted,
    Order,
    Overdue,
    Signal,
    ToWarden,
)
from penstock.isolation.hooks import run_hooks_from_now_on
from penstock.isolation.limits import decode_limits

__all__ = ["Warden"]

SLOTS: Final = 4096
CHECK_SECONDS: Final = 0.2  # between two checks of what limited jobs use
SCAN_SECONDS: Final = (
    1.0  # between two scans of their whole trees, if the machine's process count does not grow
)
SWEEP_SECONDS: Final = (
    5.0  # a process in the middle of a system call that cannot be interrupted outlives its kill
)
NEVER: Final = float("inf")
RETURNED: Final = 1
ALONE: Final = 2

# Every page that a job's process touches is copied for it, which takes longer than most of what it does: so the module
# below `signal`, which does not convert to and from enums, and names that need no lookup in another module.
_set_handler: Callable[[int, object], object] = _signal.signal
_set_wakeup: Callable[[int], object] = _signal.set_wakeup_fd
_raise_interrupt: Final = signal.default_int_handler
_setsid, _dup2, _close = os.setsid, os.dup2, os.close
_DEFAULTS: Final = (int(signal.SIGTERM), int(signal.SIGHUP), int(signal.SIGCHLD))
_DEFAULT: Final = int(signal.SIG_DFL)
_INTERRUPT: Final = int(signal.SIGINT)

_ANCILLARY_SIZE: Final = socket.CMSG_SPACE(2 * MAX_PER_PACKET * 4)

_decoder: msgspec.msgpack.Decoder[ToWarden] = msgspec.msgpack.Decoder(ToWarden)
_encode = msgspec.msgpack.Encoder().encode


class _Job:
    """A process that this warden has started."""

    __slots__ = ("act", "act_at", "number", "order", "pid", "reason", "slot", "term")

    def __init__(self, number: int, pid: int, slot: int) -> None:
        self.order, self.number, self.pid, self.slot = Order.none(number), number, pid, slot
        self.term = 0.0
        self.reason = ""
        self.act: Callable[[_Job], None] | None = None
        self.act_at = 0.0


class Warden:
    """Serves one supervisor.

    Args:
        control: our end of the control socket (packets).
        parent: the pid of the supervisor's process.
        run: what a job's process does, given its channel.
        is_for_one: whether to exit when the first job has ended.
    """

    def __init__(
        self,
        control: socket.socket,
        parent: int,
        run: Callable[[Channel], object],
        *,
        is_for_one: bool = False,
    ) -> None:
        self._pid = os.getpid()
        self._parent = parent
        self._run = run
        self._control = control
        self._control.setblocking(False)
        self._is_for_one = is_for_one
        self._outbox: deque[bytes] = deque()
        #: Descriptors of processes that are about to be started.
        self._descriptors: deque[int] = deque()
        self._jobs: dict[int, _Job] = {}
        self._by_number: dict[int, _Job] = {}
        # A job writes here that it has returned and has no children; then there is nothing to sweep up.
        self._notes = mmap.mmap(-1, SLOTS)
        self._free = list(range(SLOTS))
        #: When the next timed action is due; never too late, perhaps too early.
        self._act_at = NEVER
        self._checked_at = 0.0
        self._scanned_at = 0.0
        self._scanned_running = 0
        # A collection would touch, and so copy, all memory that is shared with the parent or the children.
        gc.disable()
        gc.freeze()
        system.become_subreaper()
        self._wake, self._wake_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # The supervisor decides about the end, and its own end is noticed.
            signal.signal(ignored, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        self._parents_end = system.close_on_parents_death(parent)
        self._own = [self._control.fileno(), self._wake, self._wake_end]
        if self._parents_end is not None:
            self._own.append(self._parents_end)
        self._stdout = sys.stdout = system.unbuffered(1)
        sys.stderr = system.unbuffered(2)
        self._numpy = sys.modules.get("numpy.random")
        self._kept = set() if is_for_one else self._children()
        self._own_data = system.data_size()
        self._own_memory = system.own_memory(self._pid)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))

    # -- the loop -----------------------------------------------------------------------------------------------

    def serve(self) -> NoReturn:
        """Serve the supervisor until it closes this warden, or is gone."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self._parents_end is not None:
            poll.register(self._parents_end, select.POLLIN)
        if os.getppid() != self._parent:
            self._leave()
        control, wake = self._control.fileno(), self._wake
        poll.register(control, select.POLLIN)
        while True:
            if self._outbox:
                poll.modify(control, select.POLLIN | select.POLLOUT)
            patience = None
            if self._act_at != NEVER:
                patience = max(0.0, self._act_at - time.monotonic()) * 1000 + 1
            for descriptor, events in poll.poll(patience):
                if descriptor == control:
                    if events & select.POLLOUT:
                        self._flush()
                        poll.modify(control, select.POLLIN)
                    if events & ~select.POLLOUT:
                        self._receive()
                elif descriptor == wake:
                    os.read(wake, 4096)
                    self._reap()
                else:
                    self._leave()
            if self._act_at != NEVER and time.monotonic() >= self._act_at:
                self._act()
            if self._is_for_one and not self._jobs and not self._outbox:
                os._exit(0)

    def _act_by(self, moment: float) -> None:
        """Make the loop call `_act` at a moment or earlier."""
        self._act_at = min(self._act_at, moment)

    def _receive(self) -> None:
        try:
            data, ancillary, _, _ = self._control.recvmsg(MAX_PACKET, _ANCILLARY_SIZE)
        except BlockingIOError:
            return
        except OSError:
            self._leave()
        if not data:
            self._leave()
        packet = _decoder.decode(data)
        if isinstance(packet, Launch):
            if ancillary:
                self._descriptors.extend(memoryview(ancillary[0][2]).cast("i"))
            for number in packet.fresh:
                self.launch(number, self._descriptors.popleft(), self._descriptors.popleft())
            for order in packet.orders:
                self._assign(order)
        elif isinstance(packet, Signal):
            job = self._by_number.get(packet.number)
            if job is not None:
                _signal_group(job.pid, packet.signal)
        elif isinstance(packet, End):
            job = self._by_number.get(packet.number)
            if job is not None:
                self._begin_end(job, "request", packet.notice, packet.term)
        elif isinstance(packet, Locate):
            job = self._by_number.get(packet.number)
            if job is not None:
                self._send(Located(job.number, job.pid))
        elif isinstance(packet, Close):
            self._leave()

    def _send(self, packet: FromWarden) -> None:
        self._outbox.append(_encode(packet))
        if len(self._outbox) == 1:
            self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox:
                self._control.send(self._outbox[0])
                self._outbox.popleft()
        except BlockingIOError:
            return  # the supervisor is busy or frozen; jobs continue and are watched
        except OSError:
            self._leave()

    # -- starting -----------------------------------------------------------------------------------------------

    def launch(self, number: int, channel: int, output: int, order: Order | None = None) -> None:
        """Start a process, with the descriptors of its channel and its output, which are closed here.

        Without an order it waits until it finds its job in its channel.
        """
        slot = self._free.pop() if self._free else -1
        try:
            pid = os.fork()
        except OSError as error:
            self._free_slot(slot)
            self._send(NotStarted(number, f"fork failed: {error.strerror}"))
        else:
            if pid == 0:
                self._run_child(order, channel, output, slot)
            self._jobs[pid] = self._by_number[number] = _Job(number, pid, slot)
            if self._is_for_one:
                self._send(Located(number, pid))
            if order is not None:
                self._assign(order)
        finally:
            os.close(channel)
            os.close(output)

    def _assign(self, order: Order) -> None:
        """Assign a job to a process and watch it from now on; it may be gone already."""
        job = self._by_number.get(order.number)
        if job is None:
            return
        job.order, job.term = order, order.term
        if order.seconds is not None:
            job.act, job.act_at = self._overdue, time.monotonic() + order.seconds
            self._act_by(job.act_at)
        if order.processes is not None or order.memory is not None:
            self._act_by(time.monotonic() + CHECK_SECONDS)

    def _run_child(self, order: Order | None, descriptor: int, output: int, slot: int) -> NoReturn:
        code = 1
        try:
            _setsid()
            system.die_with_parent(self._pid)
            system.become_subreaper()
            _dup2(output, 1)
            _dup2(output, 2)
            _set_wakeup(-1)
            for number in _DEFAULTS:
                _set_handler(number, _DEFAULT)
            _set_handler(_INTERRUPT, _raise_interrupt)
            _close(output)
            for other in (*self._own, *self._descriptors):
                _close(other)
            run_hooks_from_now_on()
            if self._numpy is not None:
                self._numpy.seed()  # Python's own numbers are other ones after a fork by themselves
            gc.enable()
            channel = Channel(descriptor)
            if order is not None:
                self._limit(order.memory, order.files)
            elif limits := channel.body():
                self._limit(*decode_limits(limits))
            self._run(channel)
            if sys.stdout is not self._stdout:
                sys.stdout.flush()  # the job has put something in its place
            if slot >= 0:
                self._notes[slot] = RETURNED | (ALONE if _is_alone() else 0)
            code = 0
        except SupervisorGoneError:
            code = 0  # a spare process that is not needed any more
        except BaseException:
            # The entry reports what jobs raise; what comes here is a defect of the entry, or a lack of memory.
            with contextlib.suppress(BaseException):
                traceback.print_exc()
                sys.stderr.flush()
        finally:
            os._exit(code)

    def _limit(self, memory: int | None, files: int | None) -> None:
        if memory is not None:
            _lower(resource.RLIMIT_DATA, self._own_data + memory)
        if files is not None:
            _lower(resource.RLIMIT_NOFILE, files)

    # -- watching -----------------------------------------------------------------------------------------------

    def _act(self) -> None:
        """Do what is due by the clock, and set when the next action is."""
        now = time.monotonic()
        for job in list(self._jobs.values()):
            if job.act is not None and job.act_at <= now:
                job.act(job)
        moments = [job.act_at for job in self._jobs.values() if job.act is not None]
        limited = [
            job
            for job in self._jobs.values()
            if job.order.processes is not None or job.order.memory is not None
        ]
        if limited:
            if now >= self._checked_at + CHECK_SECONDS:
                self._checked_at = now
                self._check_usage(limited, now)
            moments.append(self._checked_at + CHECK_SECONDS)
        self._act_at = min(moments, default=NEVER)

    def _check_usage(self, limited: list[_Job], now: float) -> None:
        """End the jobs that use too much. Their trees are scanned when the machine has many more processes, or once a second."""
        fewest = min((job.order.processes for job in limited if job.order.processes), default=1 << 30)
        running = system.running()
        if running - self._scanned_running < fewest / 2 and now < self._scanned_at + SCAN_SECONDS:
            return
        parent_of = system.parents()
        self._scanned_at, self._scanned_running = now, running
        for job in limited:
            tree = system.family({job.pid}, parent_of)
            if job.order.processes is not None and len(tree) > job.order.processes:
                self._kill_for(job, "processes", tree)
            elif job.order.memory is not None:
                used = sum(max(0, system.own_memory(pid) - self._own_memory) for pid in tree)
                if used > job.order.memory:
                    self._kill_for(job, "memory", tree)

    def _kill_for(self, job: _Job, reason: str, tree: set[int]) -> None:
        job.reason = reason
        self._kill(job)
        system.kill_all(tree)

    def _overdue(self, job: _Job) -> None:
        self._send(Overdue(job.number))
        self._begin_end(job, "time", job.order.notice, job.order.term)

    # -- ending -------------------------------------------------------------------------------------------------

    def _begin_end(self, job: _Job, reason: str, notice: float, term: float) -> None:
        """Begin the steps of an end; a second request may shorten the first, never lengthen it."""
        at = time.monotonic() + notice
        is_ending = bool(job.reason)
        if is_ending and (job.act is None or job.act_at <= at):
            return
        job.reason = job.reason or reason
        job.term = term
        job.act, job.act_at = self._terminate, at
        self._act_by(at)
        if notice == 0:
            self._terminate(job)

    def _terminate(self, job: _Job) -> None:
        job.act, job.act_at = self._kill, time.monotonic() + job.term
        self._act_by(job.act_at)
        if job.term == 0:
            self._kill(job)
            return
        _signal_group(job.pid, signal.SIGTERM)
        _signal_group(job.pid, signal.SIGCONT)  # a stopped process would not notice

    def _kill(self, job: _Job) -> None:
        """Kill the job's group; what it has elsewhere becomes ours when it is gone, and is swept up."""
        job.act = None
        _signal_group(job.pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            job = self._jobs.pop(pid, None)
            if job is None:
                continue  # an orphan of a job
            del self._by_number[job.number]
            note = self._notes[job.slot] if job.slot >= 0 else 0
            self._free_slot(job.slot)
            left = 0
            if not note & ALONE:
                _signal_group(pid, signal.SIGKILL)
                left = self._sweep()
            self._send(
                Ended(
                    job.number, pid, status, job.reason, bool(note & RETURNED) and status == 0, left,
                    usage.ru_maxrss * 1024,
                )
            )  # fmt: skip

    def _free_slot(self, slot: int) -> None:
        if slot >= 0:
            self._notes[slot] = 0
            self._free.append(slot)

    def _sweep(self) -> int:
        """Kill whatever is below us and belongs to no job; return how many that were."""
        killed: set[int] = set()
        if not system.IS_LINUX:
            return 0
        until = time.monotonic() + SWEEP_SECONDS
        while time.monotonic() < until:
            parent_of = system.parents()
            strangers = {
                pid
                for pid, parent in parent_of.items()
                if parent == self._pid and pid not in self._jobs and pid not in self._kept
            }
            if not strangers:
                break
            tree = system.family(strangers, parent_of)
            system.kill_all(tree)
            killed |= tree
            time.sleep(0.001)
        for pid in killed:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return len(killed)

    def _children(self) -> set[int]:
        """Return the processes that the import has started, such as multiprocessing's resource tracker; no job's."""
        if not system.IS_LINUX:
            return set()
        return {pid for pid, parent in system.parents().items() if parent == self._pid}

    def _leave(self) -> NoReturn:
        """Kill everything and exit: the supervisor is gone, or has closed this warden."""
        for job in self._jobs.values():
            _signal_group(job.pid, signal.SIGKILL)
        until = time.monotonic() + SWEEP_SECONDS
        while time.monotonic() < until and self._jobs:
            with contextlib.suppress(ChildProcessError):
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if pid:
                    self._jobs.pop(pid, None)
                    continue
                time.sleep(0.001)
        self._kept.clear()
        self._sweep()
        os._exit(0)


def _nothing(*_: object) -> None:
    """Do nothing: without a handler, the wake-up descriptor is not written to."""


def _signal_group(pid: int, number: int) -> None:
    """Signal a job's process group; the job itself if it has not made its group yet."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, number)
            if send is os.killpg:
                return


def _lower(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(kind, (limit, limit))


def _is_alone() -> bool:
    """Whether this process has no children and no other thread that could fork one."""
    if _thread._count():  # noqa: SLF001 - the number that threading.active_count would make a list for
        return False
    return system.has_no_child()
