import pytest
from examples.bulk_from_dataframe import bulk_from_dataframe
from examples.replay_failed import replay_failed

import penstock
from penstock import JobStatus


@pytest.mark.deep
def test_what_failed_for_one_reason_is_submitted_again_once(spark, sqlite_url, tmp_path):
    replay_failed.a_bad_day(sqlite_url)
    assert replay_failed.replay(spark, sqlite_url, tmp_path / "lake") == 3
    assert replay_failed.replay(spark, sqlite_url, tmp_path / "lake") == 0
    with penstock.connect(sqlite_url) as queue:
        new = queue.list_jobs(status=JobStatus.INITIAL_PENDING)
        assert sorted(job.payload for job in new) == [b'{"order":2}', b'{"order":3}', b'{"order":4}']
        assert {job.tags for job in new} == {("partner=north",)}


def test_the_rows_of_a_dataframe_become_jobs_once_and_run(spark, sqlite_url):
    assert bulk_from_dataframe.submit(spark, sqlite_url) == 1996
    assert bulk_from_dataframe.submit(spark, sqlite_url) == 0
    assert bulk_from_dataframe.work() == "customer 7 owes 2.59"
    assert bulk_from_dataframe.app.queue.get_job_stats().completed_jobs == 1996
    bulk_from_dataframe.app.close()
