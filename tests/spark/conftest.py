"""One Spark session for all tests of this folder, and stores for it to read.

A JVM takes a gigabyte and ten seconds, so these tests are one group: with xdist's `--dist loadgroup` one process runs them.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.spark.support import FAST, fill
from tests.stores import postgres_database, postgres_databases, postgres_store, postgres_url

import penstock

__all__ = ["postgres_database", "postgres_databases", "postgres_store", "postgres_url"]

# Where Spark is missing, test_presence.py says so.
HAS_SPARK = importlib.util.find_spec("pyspark") is not None
collect_ignore = [] if HAS_SPARK else [file.name for file in Path(__file__).parent.glob("test_[!p]*.py")]
POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


@pytest.hookimpl(tryfirst=True)  # xdist looks at the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/spark/" in item.path.as_posix():
            item.add_marker(pytest.mark.xdist_group("spark"))
            if "spark" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.slow)
                # Minutes where others work too; and one that is cut off while it talks to Java leaves a session that
                # fails all the others.
                if item.get_closest_marker("timeout") is None:
                    item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """The session: two cores, and tasks that fail are tried again."""
    from penstock import spark as ps

    folder = tmp_path_factory.mktemp("spark")
    session = ps.session(
        "local[2,4]",
        **{
            **FAST,
            "spark.local.dir": folder / "local",
            "spark.sql.warehouse.dir": folder / "warehouse",
        },
    )
    yield session
    session.stop()


@pytest.fixture(params=["sqlite", POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_store"))
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def varied(url: str) -> str:
    """The address of a store with jobs of every kind, which is not open."""
    with penstock.connect(url) as queue:
        fill(queue)
    return url


@pytest.fixture
def run_python() -> Callable[..., object]:
    """Run a program in a process of its own, with this checkout, and return the JSON of its last line."""
    import subprocess

    def run(program: str, **environment: str | None) -> object:
        kept = {name: value for name, value in os.environ.items() if environment.get(name, "") is not None}
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=280,
            env={**kept, **{name: value for name, value in environment.items() if value is not None}},
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run
