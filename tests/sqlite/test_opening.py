"""Opening: what url and options say, what kind of file it may be, and who may read it."""

import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from tests.sqlite.support import Thread, all_jobs, assert_sound, open_store, query, writer_of

import penstock
from penstock.backends.sqlite import connection as connections
from penstock.errors import BackendError, InvalidArgumentError
from penstock.job import Job

# -- urls and options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("", "url"),
        ("jobs.db", "url"),
        ("sqlite:", "names a file"),
        ("sqlite:///", "names a file"),
        ("sqlite:///:memory:", "memory:"),
        ("sqlite://host/jobs.db", "sqlite:////absolute"),
        ("sqlite://[host/jobs.db", "malformed"),
        ("sqlite:///jobs.db#part", "sqlite:////absolute"),
        ("sqlite:///jobs.db?speed=fast", "speed"),
        ("sqlite:///jobs.db?timeout=5", "timeout"),
        ("sqlite:///jobs.db?durability=off", "durability"),
        ("sqlite:///jobs.db?durability=", "durability"),
        ("sqlite:///jobs.db?durability=full&durability=normal", "twice"),
        ("sqlite:///jo\0bs.db", "url"),
        ("sqlite:///jo%00bs.db", "control characters"),
        ("sqlite:///jo\nbs.db", "control characters"),
        ("sqlite:///jo\ud800bs.db", "surrogates"),
        ("memory:jobs.db", "no path"),
        ("memory:?durability=high", "durability"),
        ("mysql://host/jobs", "mysql"),
        (7, "url"),
        (b"memory:", "url"),
    ],
)
def test_a_wrong_url_is_refused_by_name(url, named, tmp_path, monkeypatch):
    """Q55: an InvalidArgumentError, and no file is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match=named):
        penstock.open_backend(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"durability": "none"}, "durability"),
        ({"durability": True}, "durability"),
        ({"durability": None}, "durability"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"schema": "mine"}, "schema"),
        ({"pool_size": 3}, "pool_size"),
        ({"max_payload": 0}, "max_payload"),
        ({"max_payload": True}, "max_payload"),
        ({"max_pending": -1}, "max_pending"),
        ({"idempotency_window": 0}, "idempotency_window"),
        ({"liveness": -1}, "liveness"),
        ({"retention": "a day"}, "retention"),
        ({"clock": 7}, "clock"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options, named, path):
    """Q55."""
    with pytest.raises(InvalidArgumentError, match=named):
        open_store(path, **options)
    assert not path.exists()


def test_all_wrong_options_are_named_at_once(path):
    """RELIABILITY 3, Config: one start shows all there is to correct."""
    with pytest.raises(InvalidArgumentError) as caught:
        open_store(path, durability="none", timeout=-1, colour="red", max_payload="big")
    for name in ("durability", "timeout", "colour", "max_payload"):
        assert name in str(caught.value)


def test_an_option_in_url_and_call_is_refused(path):
    with pytest.raises(InvalidArgumentError, match="durability"):
        penstock.open_backend(f"sqlite:///{path}?durability=normal", durability="full")


@pytest.mark.parametrize(
    ("url", "options", "synchronous"),
    [
        ("", {}, 2),
        ("?durability=normal", {}, 1),
        ("?durability=full", {}, 2),
        ("", {"durability": "normal"}, 1),
    ],
)
def test_durability_is_said_by_url_or_option(path, url, options, synchronous):
    """FULL unless told otherwise, on the connection that commits."""
    with penstock.open_backend(f"sqlite:///{path}{url}", **options) as backend:
        connection = writer_of(backend)._connection
        assert connection.pragma("synchronous") == synchronous
        assert connection.pragma("journal_mode") == "wal"
        assert connection.pragma("mmap_size") == 0
        assert backend.durability in repr(backend)


def test_every_memory_store_is_private():
    with penstock.open_backend("memory:") as one, penstock.open_backend("memory:") as two:
        one.enqueue_job(Job(id="a", type="t"))
        assert (len(all_jobs(one)), len(all_jobs(two))) == (1, 0)


@pytest.mark.parametrize(
    "name", ["with space.db", "ünïcode-✓.db", "100%25.db", "semi;colon'quote.db", "-dash.db"]
)
def test_a_file_may_have_any_name(tmp_path, name):
    with penstock.open_backend(f"sqlite:///{tmp_path}/{name}") as backend:
        backend.enqueue_job(Job(id="a", type="t"))
    assert (tmp_path / name.replace("%25", "%")).is_file()


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(BackendError, match="none does not exist; create it") as caught:
        open_store(tmp_path / "none" / "jobs.db")
    assert not caught.value.retryable


def test_a_name_that_is_too_long_is_a_store_error(tmp_path):
    with pytest.raises(BackendError, match="too long"):
        open_store(tmp_path / ("x" * 300))


def test_a_folder_is_no_store(tmp_path):
    with pytest.raises(BackendError, match="is a folder"):
        open_store(tmp_path)


def test_what_is_no_regular_file_is_no_store(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(BackendError, match="not a regular file"):
            open_store(place)


# -- other people's files -----------------------------------------------------------------------------------------


def test_a_file_that_is_no_database_is_refused_and_left_alone(path):
    path.write_bytes(b"Dear diary, " * 500)
    with pytest.raises(BackendError, match=f"{path} is damaged or not a Penstock store") as caught:
        open_store(path)
    assert not caught.value.retryable
    assert path.read_bytes() == b"Dear diary, " * 500


def test_a_foreign_database_is_refused_and_left_alone(path):
    with contextlib.closing(apsw.Connection(str(path))) as foreign:
        foreign.execute("CREATE TABLE diary (entry)")
    before = path.read_bytes()
    with pytest.raises(BackendError, match=f"{path} is an SQLite file, but not a Penstock store"):
        open_store(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_an_empty_file_becomes_a_store(path):
    path.touch()
    with open_store(path) as backend:
        assert backend.enqueue_job(Job(id="a", type="t")) == "a"


@pytest.mark.parametrize("left", [50, 1000, 4096, 0.5, 0.9])
def test_a_truncated_store_is_refused_or_says_so(path, left):
    """RELIABILITY F30: never run on a guess: opening or reading fails with a named cause, and nothing is invented."""
    with open_store(path) as backend:
        backend.enqueue_jobs(Job(id=f"job-{n}", type="t", payload=b"x" * 500) for n in range(2_000))
    size = path.stat().st_size
    os.truncate(path, left if isinstance(left, int) else int(size * left))
    with pytest.raises(BackendError, match=f"{path}"), open_store(path) as backend:
        all_jobs(backend)
        backend.dequeue_jobs("w", limit=2_000)


@pytest.mark.deep
@pytest.mark.slow
def test_reading_past_a_flipped_byte_is_a_store_error_or_harmless(path):
    """RELIABILITY F30: what comes out is a Penstock error or a job."""
    import random

    with open_store(path) as backend:
        backend.enqueue_jobs(Job(id=f"job-{n}", type="t", tags=("a",)) for n in range(300))
    whole = path.read_bytes()
    choice = random.Random(7)
    refused = 0
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[choice.randrange(len(whole))] ^= 1 << choice.randrange(8)
        path.write_bytes(damaged)
        for beside in path.parent.glob("jobs.db-*"):
            beside.unlink()
        try:
            with open_store(path) as backend:
                all_jobs(backend)
                backend.list_jobs(tags=["a"], limit=1000)
                backend.get_job_stats(["a"])
                backend.read_journal()
        except BackendError:
            refused += 1
    assert refused > 10


# -- who may read ---------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_all_files_are_private_whatever_the_umask(child, path):
    """RELIABILITY 4: payloads are nobody else's business."""
    process = child("""
os.umask(0)
backend = store()
backend.enqueue_job(Job(id="a", type="t"))
backend.get_job("a")
say("ready")
hear()
""")
    assert process.hear() == "ready"
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(["jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db-lock"], 0o600)


def immutable(*places):
    """Make files or folders unchangeable even for root; skip loudly where that is impossible."""
    done = subprocess.run(["chattr", "+i", *map(str, places)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"chattr +i does not work here: {done.stderr.decode().strip()}")


@pytest.fixture
def changeable_again(tmp_path):
    yield
    subprocess.run(["chattr", "-R", "-i", str(tmp_path)], capture_output=True, check=False)


@pytest.mark.usefixtures("changeable_again")
def test_a_file_that_cannot_be_written_is_refused_by_name(path):
    open_store(path).close()
    immutable(path)
    with pytest.raises(BackendError, match=f"{path} cannot be") as caught:
        open_store(path).enqueue_job(Job(id="a", type="t"))
    assert not caught.value.retryable


@pytest.mark.usefixtures("changeable_again")
def test_a_folder_that_cannot_be_written_is_refused_by_name(tmp_path):
    folder = tmp_path / "fixed"
    folder.mkdir()
    immutable(folder)
    with pytest.raises(BackendError, match=f"{folder}/jobs.db cannot be created") as caught:
        open_store(folder / "jobs.db")
    assert not caught.value.retryable


# -- where it lives -------------------------------------------------------------------------------------------------

MOUNTS = """\
22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:30 / /mnt rw - tmpfs none rw
31 30 0:31 / /mnt/shared\\040disk rw shared:1 - nfs4 server:/export rw
32 30 0:32 / /mnt/\u00fcber rw - cifs //server/share rw
33 31 0:33 / /mnt/shared\\040disk/local rw - ext4 /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/home/me", "ext4"),
        ("/mnt", "tmpfs"),
        ("/mntx", "ext4"),
        ("/mnt/shared disk", "nfs4"),
        ("/mnt/shared disk/deep/er", "nfs4"),
        ("/mnt/shared disk/local", "ext4"),
        ("/mnt/\u00fcber/jobs", "cifs"),
    ],
)
def test_the_file_system_of_a_folder_is_the_deepest_mount_above_it(tmp_path, folder, kind):
    mounts = tmp_path / "mountinfo"
    mounts.write_bytes(MOUNTS.encode() + b"40 1 0:40 / /mnt/\xff\xfe rw - nfs server:/odd rw\n")
    assert connections.file_system(Path(folder), mounts) == kind


def test_a_system_that_does_not_tell_its_mounts_is_trusted(tmp_path):
    assert connections.file_system(Path("/"), tmp_path / "none") == ""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"])
def test_a_network_file_system_is_refused(path, monkeypatch, kind):
    """RELIABILITY 5.1: SQLite's locks do not hold there."""
    monkeypatch.setattr(connections, "file_system", lambda _: kind)
    with pytest.raises(BackendError, match=rf"network file system \({kind}\).*PostgreSQL"):
        open_store(path)
    assert not path.exists()


def test_an_old_sqlite_library_is_refused(path, monkeypatch):
    """RELIABILITY 5.1: before 3.51.3 two checkpoints at once can corrupt the file."""
    monkeypatch.setattr(connections, "OLDEST_SQLITE", 9_000_000)
    with pytest.raises(BackendError, match="install apsw"):
        open_store(path)


def test_threads_that_open_one_new_file_at_once(tmp_path):
    """Q52: none drops the locks of another by closing the file it has just made."""
    for number in range(10):
        path = tmp_path / f"jobs-{number}.db"

        def use(name, path=path):
            with open_store(path) as backend:
                backend.enqueue_job(Job(id=f"job-{name}", type="t"))

        threads = [Thread(lambda n=n, use=use: use(n)) for n in range(4)]
        assert [thread.outcome() for thread in threads] == [None] * 4
        with open_store(path) as backend:
            assert len(all_jobs(backend)) == 4
            assert_sound(backend, path)


def test_closing_one_store_object_keeps_the_locks_of_another(opened, path):
    """RELIABILITY 5.1: POSIX locks belong to the process, and any close of the file could drop them all."""
    one, two = opened(), opened()
    two.get_job_stats()

    def slow():
        yield Job(id="a", type="t")
        two.close()
        probe = "import apsw, sys; c = apsw.Connection(sys.argv[1]); c.execute('BEGIN IMMEDIATE')"
        done = subprocess.run(
            [sys.executable, "-c", probe, str(path)], capture_output=True, text=True, check=False
        )
        assert "BusyError" in done.stderr
        yield Job(id="b", type="t")

    one.enqueue_jobs(slow())
    assert query(path, "SELECT count(*) FROM job") == [(2,)]
