"""One implementation of starting, watching, signalling and reaping the process of a job.

    this process             the warden                      a job
    ────────────             ──────────                      ─────
    Supervisor ── control ── reads requests, forks, waits ── setsid, limits, runs the entry
      one thread             kills trees, sweeps leftovers     │
         └────────── channel (messages) and output ────────────┘

The *warden* is the parent of every job's process and the only one that waits for it, so a pid it signals cannot have
been given to somebody else. It is a child subreaper: whatever a job leaves behind, also in a session of its own, becomes
its child, is killed and waited for, and only then is the end of the job told. Every job's process is a subreaper too, so
while the job lives its orphans stay below it; whatever becomes the warden's child without being a job is a leftover.
The warden watches its parent by a pidfd and takes everything down with itself; jobs die with the warden by
PR_SET_PDEATHSIG (the warden has one thread, so the signal comes when it ends and not before).

There are two kinds of wardens, and one code for both:

- the *template* (`Supervisor(setup)`, `launch`): a fresh interpreter that has imported what jobs need and forks one
  child a job. It has no threads, sockets or stores; if the import left some, `hazards` names them, and each job imports
  for itself in a process forked from an interpreter that has not.
- the *keeper* (`Supervisor()`, `fork`): forked from this process for one job that exists only in its memory.

A supervisor may have some processes forked in advance (`spares`): they wait for a job, and each runs one.

Callers give a `Watcher`; its methods are called on the supervisor's thread and must be quick.
"""

from penstock._output import Output
from penstock._process.channel import Channel, Interrupted, raise_when_terminated
from penstock._process.endings import Ending
from penstock._process.limits import Grace, Limits
from penstock._process.messages import (
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
from penstock._process.setup import Setup
from penstock._process.supervisor import JobProcess, Supervisor, Task, Watcher

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
