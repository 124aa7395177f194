"""`penstock doctor`: what it finds, how it says so, and how it exits."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.cli.test_migrate import place
from tests.postgres.proxy import dial
from tests.waiting import until

import penstock as library
from penstock import Job, RetryPolicy
from penstock.backends import CALLBACKS, Delivery
from penstock.backends.contract.overview import Intake
from penstock.backends.postgres import health
from penstock.backends.sqlite import health as file_health

DYING = """
import json, os, sys, penstock
url, options = json.loads(sys.argv[1])
backend = penstock.open_backend(url, **options)
backend.dequeue_jobs("w", owner=backend.owners.open())
print(os.getpid(), flush=True)
os._exit(1)
"""


def examine(penstock, store):
    """Run the doctor; return its findings by check."""
    done = penstock("doctor", *place(store), "--json")
    printed = json.loads(done.out)
    worst = {each["level"] for each in printed["findings"]}
    assert done.code == (1 if "problem" in worst else 0)
    assert printed["status"] == next(each for each in ("problem", "warning", "ok") if each in worst)
    return {each["check"]: each for each in printed["findings"]}


def test_a_healthy_store_is_ok(penstock, shared_store):
    shared_store.connect().close()
    found = examine(penstock, shared_store)
    # The server of the tests does not flush, for speed; the doctor must see that.
    unwell = {name for name, each in found.items() if each["level"] != "ok"}
    assert unwell == (set() if not shared_store.options else {"durability"})
    assert {"penstock", "store", "schema", "workers", "types", "waiting", "callbacks", "durability"} <= set(
        found
    )
    assert found["penstock"]["message"].startswith(library.__version__)
    assert not any(each["advice"] for each in found.values() if each["level"] == "ok")
    if shared_store.options:
        assert found["durability"]["level"] == "problem"
        assert "fsync off" in found["durability"]["message"]
        assert {"server", "pooler", "old snapshots", "autovacuum", "connections", "clock"} <= set(found)
    else:
        assert {"SQLite", "permissions", "file system", "disk", "log"} <= set(found)


def test_people_get_a_line_a_check_with_what_to_do_next(penstock):
    done = penstock("doctor", "--url", "sqlite:///none.db")
    assert done.code == 0
    assert "warning   store" in done.out
    assert "→ submit a job, start a worker, or penstock migrate up" in done.out
    assert "0 problems, 1 warning, " in done.out
    assert not (penstock.folder / "none.db").exists()


def test_a_store_that_cannot_be_reached_is_a_problem(penstock):
    done = penstock("doctor", "--url", "postgresql://127.0.0.1:1/none?connect_timeout=1")
    assert done.code == 1
    assert "problem   store" in done.out
    assert "cannot be reached" in done.out


def test_a_server_that_does_not_answer_is_a_problem(penstock, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CONNECT_TIMEOUT", "0.2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/none"
        done = penstock("doctor", "--url", url)
        assert done.code == 1
        assert "problem   store" in done.out
        assert "no answer within 0.2 s" in done.out
        done = penstock("list", "--url", url)
        assert (done.code, done.out) == (1, "")
        assert "no answer within 0.2 s" in done.err


def test_a_damaged_file_is_a_problem(penstock, tmp_path):
    (tmp_path / "jobs.db").write_bytes(b"not a store at all" * 100)
    done = penstock("doctor", "--url", f"sqlite:///{tmp_path}/jobs.db")
    assert done.code == 1
    assert "problem   store" in done.out


def test_a_url_that_names_no_store_at_all_is_a_mistake(penstock):
    assert penstock("doctor", "--url", "mysql://x").code == 2


def test_a_type_that_no_worker_claims_is_named(penstock, shared_store):
    with shared_store.connect() as queue:
        queue.submit("lonely\x1b[2J")
        queue.submit("handled")
        owner = queue.backend.owners.open()
        queue.backend.owners.beat(owner, intakes=[Intake(types=("handled",), slots=2)])
        found = examine(penstock, shared_store)
        assert found["types"]["level"] == "warning"
        assert found["types"]["message"] == "no living worker claims lonely\x1b[2J"
        assert found["workers"]["message"].startswith("1 living, with 2 slots, 2 of them free")
        assert found["waiting"]["message"].startswith("2 jobs are ready, the oldest for ")
        shown = penstock("doctor", *place(shared_store)).out
        assert r"no living worker claims lonely\x1b[2J" in shown
        assert "\x1b" not in shown


@pytest.mark.process
def test_dead_workers_and_what_they_hold_are_named(penstock, shared_store):
    with shared_store.connect() as queue:
        queue.submit("work")
        child = subprocess.run(
            [sys.executable, "-c", DYING, shared_store.argument()],
            capture_output=True,
            text=True,
            check=False,
        )
        found = examine(penstock, shared_store)["workers"]
        assert found["level"] == "warning"
        assert f":{child.stdout.strip()} (1 job, silent for" in found["message"]


def test_a_worker_whose_slots_all_wait_is_named(penstock, shared_store):
    with shared_store.connect() as queue:
        backend = queue.backend
        owner = backend.owners.open()
        queue.submit("work")
        backend.dequeue_jobs("w", owner=owner)
        backend.owners.beat(owner, intakes=[Intake(slots=1, waiting=0)])
        assert "waiting workers" not in examine(penstock, shared_store)
        backend.owners.beat(owner, intakes=[Intake(slots=1, waiting=1)])
        found = examine(penstock, shared_store)["waiting workers"]
        assert found["level"] == "warning"
        assert f":{os.getpid()} (1 job) waits for another job" in found["message"]
        assert "after=" in found["advice"]


def test_dead_jobs_and_a_store_without_a_worker_are_named(penstock, shared_store):
    with shared_store.connect() as queue:
        queue.enqueue_jobs([Job(id=f"d{n}", type="t", retry=RetryPolicy(max_attempts=1)) for n in range(6)])
        queue.backend.dequeue_jobs("w", limit=6)
        queue.fail_jobs({f"d{n}": "boom" for n in range(6)})
        found = examine(penstock, shared_store)
        assert found["ended"]["level"] == "warning"
        assert "6 dead" in found["ended"]["message"]
        assert "penstock redrive" in found["ended"]["advice"]
        assert found["workers"]["level"] == "warning"
        queue.enqueue_job(Job(id="waits", type="t"))
        found = examine(penstock, shared_store)
        assert found["workers"]["level"] == "warning"
        assert "no worker is alive, and 1 job waits" in found["workers"]["message"]
        assert "penstock worker" in found["workers"]["advice"]
        with queue.stream_jobs("w", types=["t"]):
            until(lambda: bool(queue.overview().owners[0].intakes))
            assert examine(penstock, shared_store)["workers"]["level"] == "ok"


def test_callbacks_and_the_block_are_reported(penstock, shared_store):
    with shared_store.connect() as queue:
        backend = queue.backend
        backend.journal.register_consumer(CALLBACKS)
        backend.journal.hold_consumer(CALLBACKS, "me", 60)

        def delivery(seq, due_at):
            return Delivery(
                seq=seq, event_id=f"e{seq}", url="https://x/", lane="x", body=b"{}", due_at=due_at
            )

        backend.outbox.save_deliveries("me", [delivery(1, backend.now())])
        assert examine(penstock, shared_store)["callbacks"]["advice"] == "workers deliver them: start one"
        backend.outbox.save_deliveries("me", [delivery(2, None)])
        queue.block()
        found = examine(penstock, shared_store)
        assert found["callbacks"]["message"] == "1 to deliver, 1 given up"
        assert found["callbacks"]["level"] == "warning"
        assert found["block"]["level"] == "warning"


# -- SQLite ----------------------------------------------------------------------------------------------------------


def test_a_store_that_may_lose_the_last_changes_is_named(penstock, tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db?durability=normal"
    library.connect(url).close()
    done = penstock("doctor", "--url", url)
    assert done.code == 0
    assert "warning   durability" in done.out
    assert "synchronous=NORMAL" in done.out


def test_a_file_that_others_can_read_is_named(penstock, tmp_path):
    library.connect(f"sqlite:///{tmp_path}/jobs.db").close()
    (tmp_path / "jobs.db").chmod(0o644)
    done = penstock("doctor", "--url", f"sqlite:///{tmp_path}/jobs.db")
    assert "mode 644" in done.out
    assert "chmod 600" in done.out


def test_places_where_a_file_is_not_safe_are_named(tmp_path, monkeypatch):
    path = tmp_path / "jobs.db"
    path.touch(0o600)

    def levels():
        return {each.check: str(each.level) for each in file_health.examine_file(path)}

    assert set(levels().values()) == {"ok"}
    monkeypatch.setattr(file_health, "file_system", lambda _: "nfs4")
    assert levels()["file system"] == "problem"
    monkeypatch.setattr(file_health, "file_system", lambda _: "tmpfs")
    assert levels()["file system"] == "warning"
    for free, level in [(50, "problem"), (500, "warning"), (5000, "ok")]:
        usage = type("Usage", (), {"free": free * file_health.MIB})
        monkeypatch.setattr(file_health.shutil, "disk_usage", lambda _, usage=usage: usage)
        assert levels()["disk"] == level
    with Path(f"{path}-wal").open("wb") as log:
        log.truncate(200 * file_health.MIB)
    assert levels()["log"] == "warning"
    tmp_path.chmod(0o777)
    assert levels()["permissions"] == "warning"
    tmp_path.chmod(0o700)


# -- PostgreSQL ------------------------------------------------------------------------------------------------------


@pytest.fixture
def schema(postgres_url):
    from tests.stores import SharedStore

    store = SharedStore(postgres_url, {"schema": f"doctor_{os.getpid()}"})
    store.connect().close()
    yield store
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"DROP SCHEMA {store.options['schema']} CASCADE")


def findings(store):
    with store.connect() as queue:
        return {each.check: each for each in queue.backend.reading.examine()}


@pytest.mark.postgres
def test_a_transaction_that_is_open_for_long_is_named_with_its_process(schema, monkeypatch):
    monkeypatch.setattr(health, "LONG_SECONDS", 0.0)
    with psycopg.connect(schema.url, application_name="forgotten shell") as idle:
        idle.execute("SELECT 1")
        found = findings(schema)["old snapshots"]
        assert found.level == "warning"
        assert f"process {idle.info.backend_pid} of" in found.message
        assert "forgotten shell" in found.message
        assert f"pg_terminate_backend({idle.info.backend_pid})" in found.advice
        monkeypatch.setattr(health, "VERY_LONG_SECONDS", 0.0)
        assert findings(schema)["old snapshots"].level == "problem"
    assert findings(schema)["old snapshots"].level == "ok"


@pytest.mark.postgres
def test_unlogged_tables_and_tables_without_vacuum_are_problems(schema):
    name = schema.options["schema"]
    with psycopg.connect(schema.url, autocommit=True) as admin:
        admin.execute(f"ALTER TABLE {name}.output SET UNLOGGED")
        admin.execute(f"ALTER TABLE {name}.job SET (autovacuum_enabled = false)")
        found = findings(schema)
        assert (found["durability"].level, found["autovacuum"].level) == ("problem", "problem")
        assert "output" in found["durability"].message
        assert "job" in found["autovacuum"].message


@pytest.mark.postgres
def test_a_clock_that_is_wrong_is_named(schema, monkeypatch):
    assert findings(schema)["clock"].level == "ok"
    real = health.time.time
    monkeypatch.setattr(health.time, "time", lambda: real() - 60)
    found = findings(schema)["clock"]
    assert (found.level, found.message) == ("warning", "the server's clock is 60.0 s ahead")


@pytest.mark.postgres
def test_server_settings_that_lose_data_are_problems():
    wrong = [
        {"fsync": "off"},
        {"fsync": "on", "full_page_writes": "off"},
        {"fsync": "on", "synchronous_commit": "off"},
    ]
    for settings in wrong:
        assert health._durability(settings, []).level == "problem"
    assert health._durability({"fsync": "on", "synchronous_commit": "local"}, []).level == "ok"
    assert health._vacuum({"autovacuum": "off"}, []).level == "problem"
    assert health._vacuum({"autovacuum": "on"}, [("job", "p", False, 10, 200_000)]).level == "warning"


class Pooler(threading.Thread):
    """Passes connections on, and greets in its own name as PgBouncer does: the key for cancelling is its own."""

    def __init__(self, target):
        super().__init__(daemon=True)
        self.target = target
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]

    def run(self):
        while True:
            try:
                client, _ = self.listening.accept()
            except OSError:
                return
            server = dial(self.target)
            threading.Thread(target=self.copy, args=(client, server), daemon=True).start()
            threading.Thread(target=self.answer, args=(server, client), daemon=True).start()

    def copy(self, source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        finally:
            target.close()

    def answer(self, server, client):
        file = server.makefile("rb")
        try:
            while head := file.read(5):
                kind, length = struct.unpack("!cI", head)
                body = file.read(length - 4)
                if kind == b"K":
                    body = struct.pack("!I", 4_000_000) + body[4:]
                client.sendall(head + body)
        except OSError:
            pass
        finally:
            client.close()


@pytest.mark.postgres
def test_a_pooler_in_between_is_seen(schema):
    known = conninfo_to_dict(schema.url)
    assert findings(schema)["pooler"].level == "ok"
    pooler = Pooler(known)
    pooler.start()
    try:
        url = f"postgresql://{known['user']}:{known.get('password') or ''}@127.0.0.1:{pooler.port}/{known['dbname']}"
        through = schema._replace(url=f"{url}?sslmode=disable&gssencmode=disable")
        found = findings(through)["pooler"]
        assert (found.level, "pgbouncer=true" in found.advice) == ("warning", True)
        declared = through._replace(options={**schema.options, "pgbouncer": True})
        assert findings(declared)["pooler"].level == "ok"
    finally:
        pooler.listening.close()
