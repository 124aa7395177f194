"""What tests of an app have: assertions about what was submitted, and fixtures."""

import os
import subprocess
import sys
import textwrap
from datetime import timedelta

import pytest

import penstock
from penstock import InvalidArgumentError, Priority
from penstock.testing import all_enqueued, assert_enqueued, assert_not_enqueued, drain, in_memory, inline


@pytest.fixture
def resize(app):
    @app.job
    def resize(image: str, width: int = 100) -> str:
        return f"{image}@{width}"

    return resize


def test_a_submitted_job_is_found_by_its_arguments_and_fields(app, resize):
    with in_memory(app) as queue:
        first = resize.options(tags=["red", "blue"], priority=1, key="k").submit(image="cat.png", width=5)
        resize.submit(image="dog.png")
        assert assert_enqueued(resize, {"image": "cat.png"}).id == first.id
        assert assert_enqueued(resize, {"image": "cat.png", "width": 5}, tags=["red"], priority=Priority.HIGH)
        assert assert_enqueued(resize, key="k").id == first.id
        assert_enqueued(resize, count=2)
        assert_enqueued("resize", {"image": "dog.png"}, queue=queue)
        assert_enqueued("resize", {"image": "dog.png"}, queue=app)
        assert all_enqueued(resize)[0].id == first.id
        assert_not_enqueued(resize, {"image": "cow.png"})
        assert_not_enqueued(resize, {"image": "cat.png", "width": 6})
        assert_not_enqueued(resize, {"image": "dog.png"}, tags=["red"])
        assert_not_enqueued(resize, {"absent": None})
        assert_not_enqueued("other", queue=queue)


def test_jobs_count_whatever_became_of_them(app, resize):
    with in_memory(app):
        resize.submit("cat.png")
        drain(app)
        assert assert_enqueued(resize, status="completed").result == b'"cat.png@100"'
        assert_not_enqueued(resize, status="failed")
    with inline(app):
        resize.submit("cat.png")
        assert_enqueued(resize, count=1)


def test_a_failed_assertion_shows_what_there_is(app, resize):
    with in_memory(app) as queue:
        with pytest.raises(AssertionError, match=r"a job of resize.*none; nothing was submitted"):
            assert_enqueued(resize)
        resize.submit("cat.png")
        queue.submit("raw", b"\xff")
        with pytest.raises(
            AssertionError,
            match=r"resize with \{'image': 'dog.png'\}, tags=\['red'\], found none(.|\n)*resize \{'image': 'cat.png'",
        ):
            assert_enqueued(resize, {"image": "dog.png"}, tags=["red"])
        with pytest.raises(AssertionError, match="expected 2 jobs of resize, found 1"):
            assert_enqueued(resize, count=2)
        with pytest.raises(AssertionError, match=r"expected no job of resize, found 1(.|\n)*raw"):
            assert_not_enqueued(resize)


def test_what_makes_no_sense_is_refused(app, resize):
    with in_memory(app):
        for call in (
            lambda: assert_enqueued(resize, image="cat.png"),
            lambda: assert_enqueued("resize"),
            lambda: assert_enqueued(3, queue=app),
            lambda: assert_enqueued(resize, count=0),
            lambda: assert_not_enqueued(resize, colour="red"),
        ):
            with pytest.raises(InvalidArgumentError):
                call()


def test_more_jobs_than_a_page_are_counted(app, resize, monkeypatch):
    monkeypatch.setattr("penstock.testing.assertions.PAGE", 3)
    with in_memory(app):
        resize.submit_many([{"image": f"{number}.png"} for number in range(7)])
        assert_enqueued(resize, count=7)
        assert assert_enqueued(resize).payload == b'{"image":"6.png"}'


# -- fixtures ---------------------------------------------------------------------------------------------------

SHOP = """
import penstock

app = penstock.App("sqlite:////nowhere/at/all/jobs.db")


@app.job
def resize(image: str) -> str:
    return image.upper()


@app.job(retry=penstock.RetryPolicy(max_attempts=2, initial_delay=3600))
def flaky(context: penstock.JobContext) -> int:
    if context.attempt == 1:
        raise OSError("not yet")
    return context.attempt
"""

TESTS = """
import shop
from penstock.testing import assert_enqueued, assert_not_enqueued, drain


def test_inline(penstock_inline):
    assert shop.resize.submit("cat").result() == "CAT"
    assert shop.flaky.submit().result() == 2


def test_drained(penstock_queue, penstock_clock, penstock_app):
    handle = shop.flaky.submit()
    assert_enqueued(shop.flaky, count=1)
    assert_not_enqueued(shop.resize)
    drain(penstock_app, advance=False)
    assert handle.job().state == "retrying"
    penstock_clock.advance(3600)
    assert drain(penstock_app).completed == 1


def test_every_test_has_a_store_of_its_own(penstock_queue):
    assert penstock_queue.list_jobs() == []
"""


@pytest.fixture
def run_pytest(tmp_path):
    """Runs pytest in a folder with these files."""

    def run(*options, **files):
        for name, text in files.items():
            (tmp_path / name.replace("_dot_", ".")).write_text(textwrap.dedent(text))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *options],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


CONFTEST = 'pytest_plugins = ["penstock.testing.pytest_plugin"]\n'


@pytest.mark.slow
def test_the_fixtures_run_jobs_of_the_app_that_the_settings_name(run_pytest):
    code, output = run_pytest(
        conftest_dot_py=CONFTEST,
        pytest_dot_ini="[pytest]\npenstock_app = shop:app\npythonpath = .\n",
        shop_dot_py=SHOP,
        test_shop_dot_py=TESTS,
    )
    assert code == 0, output
    assert "3 passed" in output


@pytest.mark.slow
def test_the_app_may_come_from_a_fixture_and_a_missing_one_is_named(run_pytest):
    own = CONFTEST + "import pytest, shop\n@pytest.fixture\ndef penstock_app():\n    return shop.app\n"
    files = {"shop_dot_py": SHOP, "test_shop_dot_py": TESTS, "pytest_dot_ini": "[pytest]\npythonpath = .\n"}
    code, output = run_pytest(conftest_dot_py=own, **files)
    assert (code, "3 passed" in output) == (0, True), output
    code, output = run_pytest(conftest_dot_py=CONFTEST, **files)
    assert code != 0
    assert "define a fixture penstock_app" in output


@pytest.mark.slow
def test_who_does_not_ask_for_the_plugin_does_not_import_it(run_pytest):
    test = """
        import sys

        def test_nothing_of_ours_is_here():
            assert not [name for name in sys.modules if name.startswith("penstock")]
    """
    code, output = run_pytest(test_other_dot_py=test)
    assert code == 0, output


def test_a_delay_is_a_field_too(app, resize):
    with in_memory(app) as queue:
        resize.options(delay=60).submit("cat.png")
        assert_enqueued(resize, run_at=queue.backend.now() + timedelta(seconds=60))
    assert penstock.testing.assert_enqueued is assert_enqueued
