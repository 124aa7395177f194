"""Every command on a store with very many jobs in all statuses, and on an empty one: on SQLite and on PostgreSQL.

PENSTOCK_TEST_CROWD=1000000 says how many; filling them in takes most of the time.
"""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from tests.cli.crowd import KINDS, fill_crowd
from tests.waiting import PATIENCE, read_soon

import penstock as library
from penstock.backends.contract.selection import JobSelection

NUMBERS = {"sqlite": 100_000, "postgres": 20_000}
#: What changes nothing, or little; each may be followed by --json.
READING = [
    ["stats"],
    ["stats", "all", "rare", "all,rare"],
    ["top", "--once"],
    ["doctor"],
    ["list", "--limit", "20"],
    ["list", "--status", "dead", "--limit", "20"],
    ["list", "--status", "retrying,handed_back", "--oldest", "--limit", "20"],
    ["list", "--type", "type-3", "--since", "1d", "--error", "disk", "--limit", "20"],
    ["list", "--tags", "rare"],
    ["journal"],
    ["journal", "--status", "dead", "--type", "type-1", "--limit", "5"],
    ["journal", "--since", "1d", "--limit", "5"],
    ["schedules"],
    ["block", "--status"],
    ["version"],
]
DRY = [
    ["cancel", "--all", "--dry-run"],
    ["redrive", "--error", "disk full", "--dry-run"],
    ["delete", "--status", "completed", "--until", "1d", "--dry-run"],
]


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def crowd(request, tmp_path_factory):
    """A store with very many jobs: its address, and how many there are of each kind."""
    number = int(os.environ.get("PENSTOCK_TEST_CROWD") or NUMBERS[request.param])
    if request.param == "sqlite":
        address = f"sqlite:///{tmp_path_factory.mktemp('crowd')}/jobs.db"
    else:
        url = request.getfixturevalue("postgres_url")
        address = f"{url}{'&' if '?' in url else '?'}schema=crowd_{os.getpid()}"
    with library.connect(address) as queue:
        fill_crowd(queue, number)
    return address, number // len(KINDS)


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.xdist_group("crowd")
def test_every_command_answers_beside_very_many_jobs(penstock, crowd):
    crowd, _ = crowd
    for arguments in [*READING, *DRY]:
        for more in ([], ["--json"]):
            where = [] if arguments[0] == "version" else ["--url", crowd]
            done = penstock(*arguments, *more, *where)
            # The server of the tests does not flush, which the doctor calls a problem.
            assert done.code == (1 if arguments == ["doctor"] and "postgres" in crowd else 0), (
                arguments,
                done.err,
            )
            assert done.out or more == ["--json"]
            if more:
                lines(done.out)


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.xdist_group("crowd")
def test_counts_and_lists_agree_beside_very_many_jobs(penstock, crowd):
    crowd, each = crowd
    (printed,) = lines(penstock("stats", "--json", "--url", crowd).out)
    assert {kind: printed[kind] for kind in KINDS} == dict.fromkeys(KINDS, each)
    assert printed["total"] == each * len(KINDS)
    (seen,) = lines(penstock("top", "--once", "--json", "--url", crowd).out)
    assert {kind: seen[kind] for kind in KINDS} == dict.fromkeys(KINDS, each)
    assert len(lines(penstock("list", "--status", "dead", "--json", "--url", crowd).out)) == each
    with library.connect(crowd) as queue:
        for kind in KINDS:
            found = set()
            after = None
            while True:
                page = queue.select_jobs(JobSelection(statuses=[kind]), after=after, limit=7_000)
                found |= {job.id for job in page.jobs}
                if (after := page.next) is None:
                    break
            assert len(found) == each
            assert all(job_id.startswith(f"{kind}-") for job_id in found)
    counted = penstock("redrive", "--error", "DISK FULL", "--type", "type-2", "--dry-run", "--url", crowd)
    assert counted.out == f"{each // 10 * 2} jobs would be redriven\n"


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.xdist_group("crowd")
def test_many_jobs_are_redriven_and_deleted_exactly(penstock, crowd):
    """Last of its kind in this module: it changes the store."""
    crowd, each = crowd
    made = penstock("redrive", "--status", "dead", "--yes", "--url", crowd)
    assert made.code == 0, made.err
    assert len(set(made.out.split())) == each
    assert f"{each} redriven" in made.err
    (printed,) = lines(
        penstock("delete", "--status", "dead,completed", "--yes", "--json", "--url", crowd).out
    )
    assert (printed["deleted"], printed["matched"], printed["skipped"]) == (2 * each, 2 * each, 0)
    (left,) = lines(penstock("stats", "--json", "--url", crowd).out)
    assert (left["pending"], left["dead"], left["completed"]) == (2 * each, 0, 0)


def test_every_command_answers_on_an_empty_store(penstock, shared_store):
    shared_store.connect().close()
    for arguments in [*READING, *DRY, ["cancel", "--all"], ["redrive", "--all"], ["delete", "--all"]]:
        for more in ([], ["--json"]):
            where = [] if arguments[0] == "version" else ["--url", shared_store.address]
            done = penstock(*arguments, *more, *where)
            is_unwell = arguments == ["doctor"] and shared_store.options
            assert done.code == (1 if is_unwell else 0), (arguments, done.err)
            if more:
                lines(done.out)


# -- at a terminal --------------------------------------------------------------------------------------------------


def at_terminal(arguments, answer=b"", *, rows=24, columns=80):
    """Run a command at a terminal of its own; return its exit code and the lines it shows."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments],
        env={**environment, "TERM": "xterm", "NO_COLOR": "1"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    shown = b""
    try:
        while data := read_soon(master):
            shown += data
            if answer and b"[y/N] " in shown:
                os.write(master, answer)
                answer = b""
        return process.wait(PATIENCE), re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).splitlines()
    finally:
        process.kill()
        process.wait()
        os.close(master)


@pytest.mark.process
def test_a_terminal_of_80_columns_is_wide_enough(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    with library.connect(url) as queue:
        fill_crowd(queue, 80)
    for arguments in (["stats"], ["stats", "all", "rare"], ["top", "--once"], ["list"], ["schedules"]):
        code, shown = at_terminal([*arguments, "--url", url])
        assert code == 0, shown
        assert max(map(len, shown)) <= 80 or arguments == ["list"], (arguments, shown)


@pytest.mark.process
@pytest.mark.parametrize(("answer", "code", "left"), [(b"y\n", 0, 0), (b"n\n", 1, 12), (b"\n", 1, 12)])
def test_a_person_is_asked_before_all_that_match_are_worked_on(tmp_path, answer, code, left):
    url = f"sqlite:///{tmp_path}/jobs.db"
    with library.connect(url) as queue:
        for number in range(12):
            queue.submit("resize", {"n": number})
        ended, shown = at_terminal(["cancel", "--type", "resize", "--url", url], answer)
        text = "\n".join(shown)
        assert "12 jobs of type resize; cancel what can be? [y/N]" in text
        assert ended == code
        assert ("12 cancelled" if not left else "nothing was done") in text
        assert queue.backend.reading.count_jobs().pending == left


@pytest.mark.process
def test_a_terminal_gets_a_screenful_and_the_option_for_more(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    with library.connect(url) as queue:
        queue.submit_many([{"type": "t"} for _ in range(60)])
        last = [job.id for job in queue.iter_jobs(newest=True)][49]
    code, shown = at_terminal(["list", "--url", url], columns=120)
    assert code == 0
    assert sum("initial_pending" in line for line in shown) == 50
    assert f"--after {last} continues the list" in "\n".join(shown)
