"""Child processes of jobs: how they are started, watched, signalled and reaped.

    this process             the warden                      a job
    ────────────             ──────────                      ─────
    Supervisor ── control ── reads requests, forks, waits ── setsid, limits, runs the entry
      one thread             kills trees, sweeps leftovers     │
         └────────── channel (messages) and output ────────────┘

The *warden* is the parent of every child process and the only one that waits for it, so a pid it signals cannot have been
reused. It is a child subreaper: whatever a job leaves behind, also in another session, becomes its child, is killed and
waited for, and only then is the job's end reported. Every child process is a subreaper too, so while the job lives its
orphans stay below it; whatever becomes the warden's child without being a job is a leftover. The warden watches its parent
by a pidfd and takes everything down with itself; jobs die with the warden by PR_SET_PDEATHSIG (the warden has one thread, so
the signal comes when it ends and not before).

There are two kinds of wardens with the same code:

- the *template process* (`Supervisor(setup)`, `launch`): a fresh interpreter that has imported what jobs need and forks one
  child per job. It has no threads, sockets or stores; if the import left some, `hazards` names them, and each job imports
  for itself in a process forked from an interpreter that has not.
- the *keeper* (`Supervisor()`, `fork`): forked from this process for one job that exists only in its memory.

A supervisor may have some processes forked in advance (`spares`): they wait for a job, and each runs one.

Callers give a `Watcher`; its methods are called on the supervisor's thread and must be quick.
"""

from penstock.isolation.channel import Channel, Interrupted, raise_when_terminated
from penstock.isolation.endings import Ending
from penstock.isolation.limits import Grace, Limits
from penstock.isolation.messages import (
    Answer,
    Cancel,
    Changed,
    Checkpoint,
    Description,
    Failure,
    Log,
    Message,
    Progress,
    Request,
    Result,
)
from penstock.isolation.output import Output
from penstock.isolation.setup import Setup
from penstock.isolation.supervisor import JobProcess, Supervisor, Task, Watcher

__all__ = [
    "Answer",
    "Cancel",
    "Changed",
    "Channel",
    "Checkpoint",
    "Description",
    "Ending",
    "Failure",
    "Grace",
    "Interrupted",
    "JobProcess",
    "Limits",
    "Log",
    "Message",
    "Output",
    "Progress",
    "Request",
    "Result",
    "Setup",
    "Supervisor",
    "Task",
    "Watcher",
    "raise_when_terminated",
]
