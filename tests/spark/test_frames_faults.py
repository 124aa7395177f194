"""What `run_frames` takes for the fault of rows, and what not."""

import os
import threading

import pytest
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkTypeError
from pyspark.sql import functions as F

import penstock
from penstock import Job, JobStatus, RetryPolicy
from penstock import spark as ps
from penstock.errors import InvalidArgumentError
from penstock.spark._faults import is_of_tasks, short

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def texts(sqlite_url):
    """The address of a store with three jobs, the last of which is bad."""
    with penstock.open_backend(sqlite_url) as backend:
        backend.enqueue_jobs(
            [
                Job(id=text, type="score", payload=b'{"text": "%s"}' % text.encode(), retry=ONCE)
                for text in ("a", "b", "bad")
            ]
        )
    return sqlite_url


def run(spark, url, transform):
    return ps.run_frames(spark, url, transform, type="score", schema="text string")


def statuses(url):
    with penstock.open_backend(url) as backend:
        return {job.id: (job.status, job.failures) for job in backend.list_jobs()}


RELEASED = dict.fromkeys(("a", "b", "bad"), (JobStatus.FAILED_RETRY, 0))
ALONE = {
    "a": (JobStatus.COMPLETED, 0),
    "b": (JobStatus.COMPLETED, 0),
    "bad": (JobStatus.DEAD_LETTER, 1),
}


@pytest.mark.deep
def test_a_row_that_ends_its_python_process_is_named_as_such(spark, texts):
    @F.udf("int")
    def length(text):
        if text == "bad":
            os._exit(1)
        return len(text)

    report = run(spark, texts, lambda frame: frame.select("id", "attempt", length("text").alias("score")))
    assert (report.completed, report.failed) == (2, 1)
    assert statuses(texts) == ALONE
    with penstock.open_backend(texts) as backend:
        assert backend.get_job("bad").error_message.startswith("Python worker exited unexpectedly")


def test_a_transform_may_run_spark_jobs_that_fail_over_a_row(spark, texts):
    def check_first(frame):
        frame.select(F.expr("assert_true(text <> 'bad', 'not this one')")).collect()
        return frame.select("id", "attempt")

    report = run(spark, texts, check_first)
    assert (report.completed, report.failed, report.waves) == (2, 1, 1)
    assert statuses(texts) == ALONE


def test_a_job_that_is_cancelled_releases_the_wave(spark, texts):
    """A cancelled wave is not run again in halves."""
    context = spark.sparkContext
    tracker, cancelled = context.statusTracker(), threading.Event()

    def cancel():
        while not cancelled.wait(0.05):
            if tracker.getActiveJobsIds():
                context.cancelAllJobs()
                cancelled.set()

    @F.udf("int")
    def endless(_text):
        threading.Event().wait(60)

    canceller = threading.Thread(target=cancel)
    canceller.start()
    try:
        with pytest.raises(Py4JJavaError, match="cancelled"):
            run(spark, texts, lambda frame: frame.select("id", "attempt", endless("text").alias("score")))
    finally:
        cancelled.set()
        canceller.join()
    assert statuses(texts) == RELEASED


def test_a_column_that_is_there_twice_is_refused(spark, texts):
    """JSON readers do not agree on an object with the same name twice."""
    with pytest.raises(InvalidArgumentError, match="each column once; text is there more than once"):
        run(spark, texts, lambda frame: frame.select("id", "attempt", "text", "text"))
    assert statuses(texts) == RELEASED


def test_errors_of_python_and_of_the_jvm_itself_are_no_errors_of_rows():
    assert not is_of_tasks(PySparkTypeError("a wrong argument of a function"))
    assert not is_of_tasks(Py4JError("An error occurred while calling o1.getResult"))  # the JVM has died
    assert not is_of_tasks(ConnectionRefusedError())


def test_what_connect_says_is_cut_down_to_its_message():
    error = RuntimeError(
        "[USER_RAISED_EXCEPTION] no good SQLSTATE: P0001\n\n"
        "JVM stacktrace:\norg.apache.spark.SparkRuntimeException\n\tat org.apache.spark.Errors.raise(Errors.scala:1)"
    )
    assert short(error) == "[USER_RAISED_EXCEPTION] no good SQLSTATE: P0001"


def test_what_the_bridge_to_java_says_is_not_what_happened():
    error = RuntimeError(
        "An error occurred while calling o420.collectToPython.\n"
        ": org.apache.spark.SparkException: Job 95 cancelled as part of cancellation of all jobs\n"
        "\tat org.apache.spark.Errors.cancelled(Errors.scala:1)"
    )
    assert short(error) == "Job 95 cancelled as part of cancellation of all jobs"


@pytest.mark.parametrize("url", [None, 5, ["sqlite:///a.db"]])
def test_what_is_no_url_is_refused(spark, url):
    with pytest.raises(InvalidArgumentError, match="url must be a string"):
        run(spark, url, lambda frame: frame)
