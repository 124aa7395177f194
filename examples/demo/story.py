"""What happened, from the journal alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock import Backend, Job, JobStatus
from penstock.job import JournalEntry

ENDS = {
    JobStatus.COMPLETED: "done",
    JobStatus.STOPPED: "cancelled while running",
    JobStatus.UNSCHEDULED: "cancelled while waiting",
    JobStatus.FAILED: "no retry would help",
    JobStatus.DEAD_LETTER: "attempts used up, or it waited for such a job",
}


def words(row: JournalEntry) -> str:
    """Return a journal row as a line of text."""
    move = f"{row.from_status or ''} → {row.status}".strip()
    details = [f"attempt {row.attempt}"] if row.attempt else []
    if row.verb in {"fail", "propagate", "lose"} and row.error_message:
        details.append(row.error_message.partition("\n")[0])
    return f"{row.verb}: {move}" + (f"  ({', '.join(details)})" if details else "")


def tell(console: Console, backend: Backend, survivor: str | None, stuck: str) -> None:
    """Show how the jobs ended, every change of two of them, and the order of the keyed ones."""
    rows, jobs = read_all(backend)
    show_ends(console, jobs)
    if survivor is not None:
        show_life(console, rows, survivor, "The job whose worker was killed")
        result = next(job.result for job in jobs if job.id == survivor)
        console.print(f"  its result: {(result or b'').decode()}", soft_wrap=True)
    show_life(console, rows, stuck, "The job that hung")
    show_order(console, rows, jobs)


def read_all(backend: Backend) -> tuple[list[JournalEntry], list[Job]]:
    """Return the whole journal and all jobs, page by page."""
    rows: list[JournalEntry] = []
    while page := backend.read_journal(after=rows[-1].seq if rows else 0):
        rows += page
    jobs: list[Job] = []
    while listed := backend.list_jobs(after=jobs[-1].id if jobs else None, limit=1000):
        jobs += listed
    return rows, jobs


def show_ends(console: Console, jobs: Sequence[Job]) -> None:
    table = Table("ended as", "jobs", "that is", "which", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.columns[1].justify = "right"
    for status in JobStatus:
        found = Counter(job.type for job in jobs if job.status is status)
        if found:
            which = ", ".join(f"{count} {kind}" for kind, count in sorted(found.items()))
            meaning = Text(ENDS.get(status, ""), style="dim")
            table.add_row(status.name, str(found.total()), meaning, which)
    console.print(table)


def show_life(console: Console, rows: Sequence[JournalEntry], job_id: str, title: str) -> None:
    history = [row for row in rows if row.job_id == job_id]
    console.print(f"\n[italic]{title}[/]  [dim]{job_id}[/]")
    for row in history:
        since = (row.recorded_at - history[0].recorded_at).total_seconds()
        console.print(Text(f"  + {since:5.2f} s   {words(row)}"), soft_wrap=True)


def show_order(console: Console, rows: Sequence[JournalEntry], jobs: Sequence[Job]) -> None:
    console.print("\n[italic]Each customer's steps, in the order they were completed[/]")
    results = {job.id: (job.result or b"").decode().strip('"') for job in jobs if job.type == "step"}
    done = [row for row in rows if row.type == "step" and row.verb == "complete"]
    for key in sorted({row.key for row in done if row.key}):
        order = " ".join(results[row.job_id].rpartition(" ")[2] for row in done if row.key == key)
        console.print(f"  {' '.join(key):<14} {order}")
