from examples import replay_failed

import penstock
from penstock import JobStatus


def test_what_failed_for_one_reason_is_submitted_again_once(spark, sqlite_url, tmp_path):
    replay_failed.a_bad_day(sqlite_url)
    assert replay_failed.replay(spark, sqlite_url, tmp_path / "lake") == 3
    assert replay_failed.replay(spark, sqlite_url, tmp_path / "lake") == 0
    with penstock.connect(sqlite_url) as queue:
        new = queue.list_jobs(status=JobStatus.INITIAL_PENDING)
        assert sorted(job.payload for job in new) == [b'{"order":2}', b'{"order":3}', b'{"order":4}']
        assert {job.tags for job in new} == {("partner=north",)}
