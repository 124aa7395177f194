"""Submissions that are answered with a job that is there: by idempotency keys, for a day or while it is unfinished."""

import logging
from datetime import timedelta

import pytest
from tests.app import jobs

import penstock
from penstock import InvalidArgumentError, Worker
from penstock.testing import ManualClock, drain, in_memory


@pytest.fixture
def warnings(caplog):
    """What was logged as a warning, as texts."""
    caplog.set_level(logging.WARNING, logger="penstock")
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.fixture
def charge(app):
    @app.job
    def charge(customer: str, cents: int = 0) -> None: ...

    return charge


def test_a_handle_says_whether_its_job_was_there_before(app, charge):
    once = charge.options(idempotency_key="order-1")
    with in_memory(app):
        first, again = once.submit("ada", 1), once.submit("ada", 1)
        assert (first.is_duplicate, again.is_duplicate) == (False, True)
        assert again.id == first.id
        assert not charge.submit("ada").is_duplicate
        assert not app.handle(first.id).is_duplicate
        many = once.submit_many([{"customer": "ada"}, {"customer": "bob"}])
        assert [handle.is_duplicate for handle in many] == [True, True]
        fresh = charge.options(idempotency_key="order-2").submit_many([{"customer": "x"}, {"customer": "x"}])
        assert [handle.is_duplicate for handle in fresh] == [False, True]


def test_an_idempotency_key_names_arguments_as_a_key_does(app):
    @app.job(key="k-{n}", idempotency_key="n-{n}")
    def work(n: int, m: int = 0) -> None: ...

    with in_memory(app):
        first, second = work.submit_many([{"n": 1}, {"n": 2}])
        assert [each.job().idempotency_key for each in (first, second)] == ["n-1", "n-2"]
        assert work.submit(n=1).id == first.id
        assert work.options(idempotency_key="{n}-{m}").submit(3).job().idempotency_key == "3-0"
        assert work.options(idempotency_key="{{n}}").submit(3).job().idempotency_key == "{n}"


@pytest.mark.parametrize("text", ["{who}", "{", "{0}", "{n.x}"])
def test_an_idempotency_key_that_cannot_be_filled_is_refused(app, charge, text):
    with in_memory(app) as queue:
        with pytest.raises(InvalidArgumentError, match="idempotency_key") as caught:
            charge.options(idempotency_key=text).submit("ada")
        assert caught.value.field == "idempotency_key"
        assert queue.get_job_stats().total_jobs == 0


def test_the_same_key_with_other_arguments_is_a_warning_that_names_both_jobs(app, charge, warnings):
    once = charge.options(idempotency_key="order-1")
    with in_memory(app) as queue:
        first = once.submit("ada", 995)
        once.submit("ada", 995)
        assert warnings() == []
        assert once.submit("ada", 996).id == first.id
        (said,) = warnings()
        assert first.id in said
        assert "'order-1'" in said
        assert "charge" in said
        assert "996" not in said  # payloads are not logged
        assert queue.get_job_stats().total_jobs == 1


def test_a_warning_is_logged_for_each_job_of_a_batch_and_for_queues(warnings):
    with penstock.connect("memory:") as queue:
        first = queue.submit("task", {"n": 1}, idempotency_key="k")
        queue.submit("task", {"n": 1}, idempotency_key="k")
        assert queue.submit("task", {"n": 2}, idempotency_key="k").id == first.id
        queue.submit_many([{"type": "task", "payload": {"n": n}, "idempotency_key": "k"} for n in (1, 2, 3)])
        assert len(warnings()) == 3
        job = queue.new_job("task", {"n": 4}, idempotency_key="k")
        assert queue.enqueue_job(job) != job.id
        assert job.id in warnings()[-1]
        assert first.id in warnings()[-1]


def test_the_same_arguments_in_another_order_are_the_same(warnings):
    with penstock.connect("memory:") as queue:
        queue.submit("task", {"a": 1, "b": 2}, idempotency_key="k")
        queue.submit("task", {"b": 2, "a": 1}, idempotency_key="k")
        queue.submit("task", b"\xff", idempotency_key="raw")
        assert warnings() == []
        queue.submit("task", b"\xfe", idempotency_key="raw")
        assert len(warnings()) == 1


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_a_job_that_submits_or_spawns_knows_duplicates(tmp_path, isolation):
    jobs.app.url = f"sqlite:///{tmp_path}/jobs.db"
    try:
        handle = jobs.submit_twice.submit()
        Worker(jobs.app, isolation=isolation, types=["submit_twice"]).run(until_idle=True)
        assert handle.result(timeout=10) == [False, True, [True, True], False, True]
    finally:
        jobs.app.close()
        jobs.app.url = None


def test_a_unique_key_is_free_once_its_job_has_ended(make_app):
    clock = ManualClock()
    app = make_app()

    @app.job(idempotency_key=lambda month, **_: f"report-{month}", unique="while_unfinished")
    def report(month: str, pages: int = 1) -> None: ...

    with in_memory(app, clock=clock) as queue:
        first = report.submit("november")
        clock.advance(timedelta(hours=30))
        assert report.submit("november").is_duplicate
        assert not report.submit("december").is_duplicate
        assert drain(app).completed == 2
        second = report.submit("november")
        assert not second.is_duplicate
        assert second.id != first.id
        assert queue.get_job(second.id).unique == "while_unfinished"
        second.cancel()
        assert not report.submit("november").is_duplicate


def test_a_decorator_with_one_key_allows_one_job_at_a_time(app):
    @app.job(idempotency_key="only", unique="while_unfinished")
    def tidy() -> None: ...

    with in_memory(app):
        assert [tidy.submit().is_duplicate for _ in range(3)] == [False, True, True]
        drain(app)
        assert not tidy.submit().is_duplicate


def test_options_and_queues_take_the_rule(app, charge):
    with in_memory(app) as queue:
        task = charge.options(idempotency_key="k", unique="while_unfinished")
        assert [task.submit("ada").is_duplicate for _ in range(2)] == [False, True]
        drain(app)
        assert not task.submit("ada").is_duplicate
        one = queue.submit("other", idempotency_key="k", unique="while_unfinished")
        assert queue.submit("other", idempotency_key="k", unique="while_unfinished").id == one.id
        queue.cancel_jobs(job_ids=[one.id])
        (two,) = queue.submit_many([{"type": "other", "idempotency_key": "k", "unique": "while_unfinished"}])
        assert two.id != one.id


@pytest.mark.parametrize("rule", ["window", "", 5, ["while_unfinished"], True])
def test_another_rule_is_refused_where_it_is_given(app, charge, rule):
    with pytest.raises(InvalidArgumentError, match="unique"):
        app.job(unique=rule)
    with pytest.raises(InvalidArgumentError, match="unique"):
        charge.options(unique=rule)


def test_a_rule_without_a_key_is_refused_at_submission(app, charge):
    with in_memory(app) as queue:
        with pytest.raises(InvalidArgumentError, match="needs an idempotency_key"):
            charge.options(unique="while_unfinished").submit("ada")
        with pytest.raises(InvalidArgumentError, match="needs an idempotency_key"):
            queue.submit("task", unique="while_unfinished")
        assert queue.get_job_stats().total_jobs == 0


def test_an_idempotency_key_that_cannot_be_made_is_refused(app):
    @app.job(idempotency_key=lambda customer: customer + 1)
    def bill(customer: str) -> None: ...

    with in_memory(app), pytest.raises(InvalidArgumentError, match="idempotency_key of bill cannot be made"):
        bill.submit("ada")
