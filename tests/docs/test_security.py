"""SECURITY.md names everything that listens or connects, and the code has nothing else that does."""

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import typer.main
from tests.waiting import until

from penstock.cli import app

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "penstock"
SECURITY = (ROOT / "SECURITY.md").read_text("utf-8")

#: What listens or connects, by where its code is: the row of SECURITY.md that says so.
KNOWN = {
    "backends/postgres/": "PostgreSQL",
    "backends/sqlite/notifications.py": "Processes that wake each other on SQLite",
    "callbacks/posting.py": "Callbacks",
    "cli/metrics.py": "`penstock metrics`",
    "spark/stores/postgres.py": "PostgreSQL",
    "spark/_session.py": "Spark, started on this machine",
}
#: Calls that listen or connect, whatever they are called on. `listen` of a store is another thing and has arguments.
_NETWORK = {
    "bind",
    "connect_ex",
    "create_connection",
    "create_server",
    "getOrCreate",
    "make_server",
    "serve_forever",
    "start_http_server",
    "start_server",
    "start_unix_server",
    "urlopen",
    "urlretrieve",
}
_DRIVERS = {"asyncpg", "generators", "postgresql", "psycopg"}


def _networks(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in _NETWORK
    if not isinstance(call.func, ast.Attribute):
        return False
    name, owner = call.func.attr, ast.unparse(call.func.value)
    if name == "connect":
        return owner.split(".")[-1] in _DRIVERS or owner.endswith(("Connection", "socket"))
    return name in _NETWORK and "signature" not in owner


def networking(folder: Path) -> set[str]:
    """The modules below a folder that listen or connect."""
    found = set()
    for file in folder.rglob("*.py"):
        name = file.relative_to(folder).as_posix()
        calls = (node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call))
        if not name.startswith("testing/") and any(map(_networks, calls)):
            found.add(name)
    return found


def test_everything_that_listens_or_connects_is_named():
    found = networking(SOURCE)
    unknown = [name for name in found if not name.startswith(tuple(KNOWN))]
    assert unknown == [], "SECURITY.md does not say that these use the network"
    gone = [place for place in KNOWN if not any(name.startswith(place) for name in found)]
    assert gone == [], "these do not use the network"
    rows = re.findall(r"^\| ([^|]+) \|", SECURITY.partition("## What uses")[2], re.MULTILINE)
    assert {*KNOWN.values()} <= {row.strip() for row in rows}


@pytest.mark.parametrize(
    "code",
    [
        "import socketserver\nsocketserver.TCPServer(('', 1), None).serve_forever()",
        "import socket\nsocket.create_server(('', 8000))",
        "import urllib.request\nurllib.request.urlopen('http://example.org')",
        "import psycopg\npsycopg.connect('')",
        "import asyncio\nasyncio.start_server(None, port=1)",
    ],
)
def test_a_module_that_would_use_the_network_is_found(code, tmp_path):
    (tmp_path / "module.py").write_text(code)
    assert networking(tmp_path) == {"module.py"}


def test_no_library_that_talks_http_is_imported():
    forbidden = {"aiohttp", "httpx", "requests", "smtplib", "socketserver", "ftplib", "urllib3", "xmlrpc"}
    for file in SOURCE.rglob("*.py"):
        imported = set()
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
        roots = {name.partition(".")[0] for name in imported}
        assert roots & forbidden == set(), file
        assert "urllib.request" not in imported, file


def test_the_addresses_it_names_are_the_defaults():
    options = {each.name: each.default for each in typer.main.get_command(app).commands["metrics"].params}
    assert f"listens on {options['host']}, port {options['port']}" in SECURITY
    settings = (SOURCE / "spark" / "_session.py").read_text("utf-8")
    assert '"spark.driver.bindAddress": "127.0.0.1"' in settings
    assert '"spark.ui.enabled": "false"' in settings


@pytest.mark.process
def test_a_worker_listens_on_no_port_and_keeps_its_files_to_itself(tmp_path):
    (tmp_path / "jobs.py").write_text(
        "import penstock\napp = penstock.App()\n\n@app.job\ndef nothing() -> None: ...\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PENSTOCK_URL": "sqlite:///jobs.db"}
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "worker", "jobs:app"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        umask=0,
    ) as worker:
        try:
            until((tmp_path / "jobs.db-hints").is_dir)
            everyone = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
            assert [each.net_connections(kind="inet") for each in everyone] == [[]] * len(everyone)
            modes = {path.name: oct(path.stat().st_mode & 0o077) for path in tmp_path.glob("jobs.db*")}
            assert {"jobs.db", "jobs.db-hints", "jobs.db-wal"} <= modes.keys()
            assert set(modes.values()) == {"0o0"}
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=60)
