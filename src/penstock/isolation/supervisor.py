"""The supervisor: starts wardens and jobs, and settles the ending of each.

Only the warden waits for processes and knows whether one has ended. The supervisor assumes that a spare process is alive
until a write to it fails. A process has exactly one ending: it is settled by the thread that removes it from its warden's
link, under the lock.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
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

from penstock.errors import ProcessControlError
from penstock.isolation import system
from penstock.isolation.channel import Channel
from penstock.isolation.control import (
    MAX_PACKET,
    MAX_PER_PACKET,
    Close,
    Ended,
    FromWarden,
    Launch,
    Located,
    NotStarted,
    Order,
    Overdue,
)
from penstock.isolation.endings import Ending, describe, out_of_memory_kills
from penstock.isolation.handle import JobProcess, WardenLink, Watcher, first_frames
from penstock.isolation.keeper import keep
from penstock.isolation.limits import Grace, Limits
from penstock.isolation.messages import Cancel
from penstock.isolation.pipes import JobPipes
from penstock.isolation.reactor import Reactor
from penstock.isolation.setup import Setup
from penstock.isolation.starting import StartedTemplate, start_template

__all__ = ["JobProcess", "Supervisor", "Task", "Watcher"]

logger = logging.getLogger("penstock")

SWEEP_SECONDS: Final = 5.0

_decoder: msgspec.msgpack.Decoder[FromWarden] = msgspec.msgpack.Decoder(FromWarden)


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
        #: Threads and sockets that the import left in the template; if there are any, each job imports for itself.
        self.hazards: tuple[str, ...] = ()
        self._spares = spares
        self._on_hazards = on_hazards
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._template: WardenLink | None = None
        self._wardens: set[WardenLink] = set()
        self._is_closed = False
        self._memory_kills = out_of_memory_kills()
        self._reactor = Reactor(lambda: self._is_closed and not self._wardens)
        self._pipes = JobPipes(self._reactor)
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
            watcher: receives the messages and the end of the job.
            limits: what the process may use.
            grace: how it is ended when its time is over.
        """
        return self.launch_many([Task(payload, watcher, limits or Limits(), grace or Grace())])[0]

    def launch_many(self, tasks: Sequence[Task]) -> list[JobProcess]:
        """Start jobs, many with one message; cheaper than one by one.

        Raises:
            ProcessControlError: there is no template, or none can be started; nothing was started.
        """
        template = self._ready_template()
        processes: list[JobProcess] = []
        for begin in range(0, len(tasks), MAX_PER_PACKET):
            processes += self._launch(template, tasks[begin : begin + MAX_PER_PACKET])
        return processes

    def _launch(self, template: WardenLink, tasks: Sequence[Task]) -> list[JobProcess]:
        """Assign jobs to spare processes and to new ones, and start other spares in their place."""
        frames = [
            first_frames(task.payload, task.limits) for task in tasks
        ]  # one may be too large: before anything is done
        with self._lock:
            # One that has died is there until its warden reports it.
            waiting = [process for process in template.spares.values() if not process.is_dead]
            taken = waiting[: len(tasks)]
            for process, task in zip(taken, tasks, strict=False):
                template.assign(process, task.watcher, task.limits)
            missing = len(tasks) - len(taken)
            wanted = self._spares - template.starting - (len(waiting) - len(taken))
            replacements = max(0, min(wanted, MAX_PER_PACKET - missing))
            template.starting += replacements
        fresh: list[JobProcess] = []
        handed: list[int] = []
        try:
            try:
                self._open_some(template, missing, replacements, fresh, handed)
            except BaseException:
                with self._lock:
                    for process in taken:
                        template.unassign(process)
                raise
            with self._lock:
                is_gone = template.is_lost
                for process, task in zip(fresh, tasks[len(taken) :], strict=False):
                    template.assign(process, task.watcher, task.limits)
                template.spares.update((process.number, process) for process in fresh[missing:])
                # Here and not later: a concurrent launch would count them twice, and start too few spares.
                template.starting -= replacements
                replacements = 0
            processes = taken + fresh[:missing]
            dead = [
                place
                for place, (process, data) in enumerate(zip(processes, frames, strict=True))
                if not is_gone and not process.post(data)
            ]
            orders = [
                Order.of(process.number, task.limits, task.grace)
                for process, task in zip(processes, tasks, strict=True)
            ]
            if is_gone or not template.send(Launch([process.number for process in fresh], orders), handed):
                # The warden has just ended. Its other jobs are settled when the reactor sees that; these were never started.
                for process in processes + fresh[missing:]:
                    if self._forget(template, process):
                        self._finish(
                            process, None, "", cause="its template ended before the job could be started"
                        )
                return processes
        finally:
            with self._lock:
                template.starting -= replacements
            for descriptor in handed:
                os.close(descriptor)
        for place in dead:
            with self._lock:
                is_ours = template.unassign(processes[place])
            if is_ours:  # it had died unnoticed, and its job has not begun
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
        """Make the processes that are needed now, and the replacements if there are descriptors for them."""
        try:
            for _ in range(missing + replacements):
                process = JobProcess(next(self._numbers), template)
                handed += self._pipes.open(process)
                fresh.append(process)
        except OSError:
            if len(fresh) >= missing:
                return
            for process in fresh:
                self._pipes.close(process)
            raise

    def _forget(self, warden: WardenLink, process: JobProcess) -> bool:
        """Remove a process from its warden's link; return False if another thread has, which settles its ending."""
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
        self._reactor.start()
        limits, grace = limits or Limits(), grace or Grace()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        warden = WardenLink(ours, self._reactor.want_write, self._reactor.is_own_thread, lambda: None)
        process = JobProcess(next(self._numbers), warden, watcher, limits)
        channel, output = self._pipes.open(process)
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
                self._reactor.start()
                template = self._start_template(self.setup)
                self._template = template
                self._attend(template)
        return template

    def _start_template(self, setup: Setup) -> WardenLink:
        """Start a template; one that imports nothing itself if the import leaves what must not be forked."""
        started = start_template(setup, imports_per_job=bool(self.hazards))
        if not isinstance(started, StartedTemplate):
            self.hazards = started
            if self._on_hazards is not None:
                self._on_hazards(self.hazards)
            started = start_template(setup, imports_per_job=True)
            assert isinstance(started, StartedTemplate)  # noqa: S101 - it imported nothing
        return WardenLink(
            started.control, self._reactor.want_write, self._reactor.is_own_thread, started.wait, started.mark
        )

    def _attend(self, warden: WardenLink) -> None:
        with self._lock:
            self._wardens.add(warden)
        self._reactor.register(warden.control.fileno(), lambda _mask: self._on_packet(warden))

    def _check(self) -> None:
        if self._is_closed:
            raise ProcessControlError("the supervisor of the child processes is closed")
        if self._pid != os.getpid():
            raise ProcessControlError(
                "this supervisor belongs to the process that made it; make a new one after a fork"
            )

    def descriptors(self) -> list[int]:
        """Return all descriptors that must not live on in a process forked from this one."""
        return self._reactor.descriptors()

    # -- the thread ---------------------------------------------------------------------------------------------

    def _on_packet(self, warden: WardenLink) -> None:
        """Act on a packet of a warden."""
        try:
            data = warden.control.recv(MAX_PACKET, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end_warden(warden)
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

    def _finish(
        self, process: JobProcess, status: int | None, reason: str, *, cause: str = "", **facts: Any
    ) -> None:
        """Read what the job has left in its channel and its output, close both, and settle its ending."""
        self._pipes.drain(process)
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

    def _end_warden(self, warden: WardenLink) -> None:
        """Remove a warden that has ended, and kill what outlives it."""
        with warden.sending:
            warden.is_lost = True
        self._reactor.unregister(warden.control.fileno())
        warden.control.close()
        warden.wait()
        # Its jobs die with it, but not at the same instant; what they had in other sessions is found by its mark.
        leaders = {process.known_pid for process in warden.jobs.values() if process.known_pid is not None}
        until = time.monotonic() + SWEEP_SECONDS
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
            warden.send(Close())
        self._reactor.close(timeout)


_supervisors: weakref.WeakSet[Supervisor] = weakref.WeakSet()


def _wait(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
