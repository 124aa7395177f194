"""Drivers: one object per kind of store answers what differs between them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock._extras import how_to_install
from penstock.backends.drivers import SCHEMES, driver_for, example_urls, shared_driver_for
from penstock.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("url", "name", "is_shared", "is_server"),
    [
        ("memory:", "memory", False, False),
        ("MEMORY:", "memory", False, False),
        ("sqlite:///jobs.db", "sqlite", True, False),
        ("postgresql://host/db", "postgresql", True, True),
        ("Postgres://host/db", "postgresql", True, True),
    ],
)
def test_the_scheme_selects_the_driver(url, name, is_shared, is_server):
    driver = driver_for(url)
    assert (driver.name, driver.is_shared, driver.is_server) == (name, is_shared, is_server)


def test_every_scheme_has_a_driver():
    assert {driver_for(f"{scheme}://x").name for scheme in SCHEMES} == {"memory", "sqlite", "postgresql"}


@pytest.mark.parametrize("url", ["mysql://host/db", "jobs.db", ""])
def test_an_unknown_scheme_is_refused_with_the_known_ones(url):
    with pytest.raises(InvalidArgumentError, match="memory:, sqlite:/// or postgresql://"):
        driver_for(url)
    with pytest.raises(InvalidArgumentError, match="begin with sqlite:/// or postgresql://"):
        shared_driver_for(url)


def test_a_store_of_one_process_is_not_shared():
    with pytest.raises(InvalidArgumentError, match="belongs to one process") as caught:
        shared_driver_for("memory:")
    assert example_urls() in str(caught.value)


@pytest.mark.parametrize("query", ["", "?durability=normal"])
def test_the_absolute_url_names_the_same_file_from_elsewhere(tmp_path, monkeypatch, query):
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///a%20b%3F.db{query}"
    absolute = driver_for(url).absolute_url(url)
    assert absolute == f"sqlite:///{tmp_path}/a%20b%3F.db{query}"
    with penstock.open_backend(absolute):
        monkeypatch.chdir("/")
    assert (tmp_path / "a b?.db").exists()
    assert driver_for(absolute).absolute_url(absolute) == absolute


@pytest.mark.parametrize("url", ["memory:", "sqlite:///jobs.db?durability=normal"])
def test_the_location_is_that_of_the_open_store(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    with penstock.open_backend(url) as backend:
        assert driver_for(url).location(url) == backend.location


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("postgresql://app:hush@db:6432/shop?schema=s&sslmode=require", "postgresql://app@db:6432/shop?schema=s"),
        ("postgres://db/shop?user=app&password=hush&port=1", "postgresql://app@db:1/shop?schema=penstock"),
        ("postgresql://app:hush@a:1,b:2/shop", "postgresql://app@a:1,b:2/shop?schema=penstock"),
        ("postgresql://[::1]:5/shop", "postgresql://[::1]:5/shop?schema=penstock"),
        ("postgresql:///shop?host=/tmp/run", "postgresql:///shop?host=/tmp/run&schema=penstock"),
        ("postgresql://%2Ftmp%2Frun/shop", "postgresql:///shop?host=/tmp/run&schema=penstock"),
        ("postgresql://", "postgresql://localhost/?schema=penstock"),
    ],
)  # fmt: skip
def test_the_location_of_a_server_has_no_password(url, location):
    assert driver_for(url).location(url) == location


def test_options_in_the_url():
    url = "postgresql://db/shop?schema=s&pgbouncer=true&connect_timeout=2&sslmode=require"
    assert driver_for(url).options_in(url) == {"schema": "s", "pgbouncer": True, "connect_timeout": 2.0}
    assert driver_for("sqlite:///a.db").options_in("sqlite:///a.db?durability=full") == {"durability": "full"}


def test_a_scratch_store_is_beside_the_named_one_and_removed(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    with driver_for(url).scratch(url) as (own, options):
        with penstock.open_backend(own, **options) as backend:
            assert Path(backend.path).parent.parent == tmp_path
        assert not (tmp_path / "jobs.db").exists()
    assert list(tmp_path.iterdir()) == []


WITHOUT_PSYCOPG = """
import sys
from pathlib import Path
sys.modules["psycopg"] = None
import penstock
from penstock.backends.drivers import driver_for, list_migrations
url = "postgresql://app:hush@db/shop"
print(driver_for(url).location(url))
for use in (penstock.open_backend, list_migrations):
    try:
        use(url)
    except penstock.InvalidArgumentError as error:
        print(error)
"""


@pytest.mark.process
def test_a_missing_library_names_the_extra():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PSYCOPG], capture_output=True, text=True, check=True, timeout=60
    )
    location, *errors = done.stdout.splitlines()
    assert location == "postgresql://app@db/shop?schema=penstock"
    assert len(errors) == 2
    assert all(how_to_install("postgres") in error for error in errors)


SOURCES = Path(penstock.__file__).parent


def compares_a_kind(node):
    """Whether a piece of code branches on the kind of a store: a comparison, or startswith, with the name of one."""
    if isinstance(node, ast.Compare):
        values = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".startswith"):
        values = node.args
    else:
        return False
    texts = [each.value for value in values for each in ast.walk(value) if isinstance(each, ast.Constant)]
    return any(isinstance(text, str) and text.rstrip(":/") in {*SCHEMES, "postgres"} for text in texts)


def test_only_the_backends_know_which_kinds_of_stores_exist():
    found = [
        f"{file.relative_to(SOURCES)}:{node.lineno}"
        for file in sorted(SOURCES.rglob("*.py"))
        if "backends" not in file.parts
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if compares_a_kind(node)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("kind == 'sqlite'", True),
        ("scheme in ('postgresql', 'postgres')", True),
        ("url.startswith('sqlite:')", True),
        ("name == 'events'", False),
        ("{'sqlite': 1}[name]", False),
    ],
)
def test_a_branch_on_the_kind_of_a_store_is_recognised(code, expected):
    assert any(map(compares_a_kind, ast.walk(ast.parse(code)))) is expected
