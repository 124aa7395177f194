"""Every verb through a connection that is cut at its n-th message, in either direction: once, or not at all."""

import itertools
import os
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.postgres.proxy import CLIENT, SERVER, Proxy
from tests.sqlite import scene
from tests.tiers import some
from tests.verbs import every_verb

from penstock import BackendError, Job, JobStatus
from penstock.backends import Change
from penstock.backends.postgres import open_postgres
from penstock.testing import ManualClock, check_invariants

#: Cut at each message, not only at a few that were chosen: some minutes more.
IS_WHOLE = bool(os.environ.get("PENSTOCK_TEST_EVERY_CUT"))
MOST_MESSAGES = 500
#: Ids that a call issues itself differ from run to run.
_ISSUED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}")
#: What the store keeps, but for numbers that depend on the way there.
_CONTENTS = {
    "job": "to_jsonb(job) - 'seq' - 'token'",
    "job_tag": "jsonb_build_array(tag, (SELECT id FROM {schema}.job WHERE job.seq = job_tag.seq))",
    "ready_tag": "jsonb_build_array(tag, priority, order_at, (SELECT id FROM {schema}.job WHERE job.seq = ready_tag.seq))",
    "payload": "jsonb_build_array((SELECT id FROM {schema}.job WHERE job.seq = payload.seq), md5(data))",
    "result": "jsonb_build_array((SELECT id FROM {schema}.job WHERE job.seq = result.seq), md5(data))",
    "checkpoint": "jsonb_build_array((SELECT id FROM {schema}.job WHERE job.seq = checkpoint.seq), md5(data))",
    "output": "jsonb_build_array((SELECT id FROM {schema}.job WHERE job.seq = output.seq), md5(data))",
    "edge": "jsonb_build_array((SELECT id FROM {schema}.job WHERE job.seq = edge.on_seq),"
    " (SELECT id FROM {schema}.job WHERE job.seq = edge.job_seq), kind)",
    "idempotency": "to_jsonb(idempotency)",
    "owner": "to_jsonb(owner) - 'started'",
    "consumer": "to_jsonb(consumer)",
    "publication": "to_jsonb(publication)",
    "delivery": "to_jsonb(delivery)",
    "schedule": "to_jsonb(schedule)",
    "upkeep": "to_jsonb(upkeep)",
    "archive": "to_jsonb(archive)",
    "control": "to_jsonb(blocked)",
    "journal": "to_jsonb(journal) - 'seq' - 'job_seq'",
}
_RESTORE = """
CREATE FUNCTION {scene}.put_back(target text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    entry record;
    columns text;
BEGIN
    SET LOCAL session_replication_role = replica;
    FOR entry IN SELECT tablename AS name FROM pg_tables WHERE schemaname = '{scene}' LOOP
        SELECT string_agg(quote_ident(attname), ', ') INTO columns FROM pg_attribute
            WHERE attrelid = format('{scene}.%I', entry.name)::regclass AND attnum > 0 AND attgenerated = '';
        EXECUTE format('DELETE FROM %I.%I', target, entry.name);
        EXECUTE format('INSERT INTO %1$I.%2$I (%3$s) OVERRIDING SYSTEM VALUE SELECT %3$s FROM {scene}.%2$I',
            target, entry.name, columns);
    END LOOP;
END $$
"""


class Stage:
    """The scene in a store behind a proxy, with a stream that waits and a listener."""

    def __init__(self, url: str) -> None:
        self.proxy = Proxy(url)
        self.admin = psycopg.connect(url, autocommit=True)
        self._source, self._target = f"scene_{os.getpid()}", f"stage_{os.getpid()}"
        clock = ManualClock()
        with open_postgres(url, clock=clock, options={"schema": self._source}) as backend:
            scene.build(backend, clock)
            backend.owners.open()
            backend.read_journal()  # numbers everything
        self.admin.execute(_RESTORE.replace("{scene}", self._source))
        clock.advance(100)
        self.direct = open_postgres(url, clock=clock, options={"schema": self._target, "listen": False})
        self.backend = open_postgres(
            self.proxy.url, clock=clock, options={"schema": self._target, "listen": False}
        )
        # Identities go on: what a restored scene draws must not be drawn before.
        for sequence in ("job_number", "journal_inbox_id_seq"):
            self.admin.execute(f"SELECT setval('{self._target}.{sequence}', 100000)")
        self.changes: list[Change] = []
        self.backend.runtime.listen(self.changes.extend)
        self.restore()

    def restore(self) -> None:
        self.admin.execute(f"SELECT {self._source}.put_back(%s)", [self._target])
        self.stream = scene.Waiting()
        self._stop_serving = self.backend.runtime.serve(self.stream)
        self.changes.clear()

    def run(self, call: scene.Call, *, served: bool = True) -> Any:
        """Call a verb while the stream waits, or without it."""
        if not served:
            self._stop_serving()
        self.passed = dict(self.proxy.passed)
        try:
            return call(self.backend)
        finally:
            self.passed = {side: self.proxy.passed[side] - count for side, count in self.passed.items()}
            self._stop_serving()

    def contents(self) -> dict[str, list[str]]:
        """Return what is stored; ids that a call issued itself are all the same."""
        self.direct.read_journal()
        selected = " UNION ALL ".join(
            f"SELECT '{table}', ({columns})::text FROM {{schema}}.{table}"
            for table, columns in _CONTENTS.items()
        )
        found: dict[str, list[str]] = {}
        for table, row in self.admin.execute(selected.replace("{schema}", self._target)):
            found.setdefault(table, []).append(_ISSUED.sub("?", row))
        return {table: sorted(rows) for table, rows in found.items()}

    def check_sound(self) -> None:
        """The journal holds, and the stream has exactly what is stored as its own."""
        assert not list(check_invariants(self.direct.read_journal(limit=5000)))
        held = {
            (job.id, job.attempt)
            for job in self.direct.list_jobs(status=JobStatus.RUNNING)
            if job.assignee_id == "stream"
        }
        assert {(job.id, job.attempt) for job in self.stream.got} == held

    def close(self) -> None:
        self.backend.close()
        self.direct.close()
        self.proxy.close()
        for schema in (self._source, self._target):
            self.admin.execute(f"DROP SCHEMA {schema} CASCADE")
        self.admin.close()


@pytest.fixture(scope="module")
def stage(postgres_url: str) -> Iterator[Stage]:
    stage = Stage(postgres_url)
    yield stage
    stage.close()


def cuts(stage: Stage, passed: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Restore the scene and arm the proxy again and again: at each message, or at those that matter most.

    Args:
        stage: the scene.
        passed: how many messages the call takes from each side when it is not disturbed.
    """
    for side in (CLIENT, SERVER):
        for number in range(1, MOST_MESSAGES) if IS_WHOLE else chosen(passed[side]):
            stage.restore()
            before = stage.proxy.cuts
            stage.proxy.cut_at(side, number)
            yield side, number
            stage.proxy.disarm()
            if stage.proxy.cuts == before:
                break


def chosen(count: int) -> list[int]:
    """Return the first message, the middle, and the last ones, among which is the commit."""
    return sorted({1, *range(max(1, count - 3), count + 1), max(1, count // 2)})


def comparable(value: Any) -> Any:
    """Return an answer without what differs from run to run."""
    return _ISSUED.sub("?", repr(value))


def outcome(stage: Stage, call: scene.Call, *, served: bool = True) -> tuple[Any, BackendError | None]:
    """Return what a call answers, or the error; the server has ended the session that was cut by then."""
    try:
        return stage.run(call, served=served), None
    except BackendError as error:
        return None, error
    finally:
        stage.proxy.disarm()


def test_every_verb_is_here() -> None:
    verbs = set(every_verb())
    known = {*scene.WRITING, *scene.IN_STEPS, *scene.READING, *scene.APART}
    assert verbs - known == set(), "add a call of the new verb to tests/sqlite/scene.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("verb", some(sorted(scene.WRITING)))
def test_a_verb_is_done_once_and_acknowledged_truly(stage: Stage, verb: str) -> None:
    """F5: what is refused for certain left nothing; what is acknowledged is stored, once."""
    call = scene.WRITING[verb]
    stage.restore()
    before = stage.contents()
    answer = comparable(stage.run(call))
    passed, after = stage.passed, stage.contents()
    stage.restore()
    stage.run(call, served=False)
    undelivered = stage.contents()
    assert after != before or verb in {"owners.beat", "heartbeat"}
    for place in cuts(stage, passed):
        found, error = outcome(stage, call)
        if error is not None:
            assert error.retryable
            assert not error.outcome_unknown, "the server could be asked"
            assert stage.contents() == before, place
            assert stage.stream.got == []
        else:
            assert comparable(found) == answer, place
            # If the cut came while the stream was served, the work is done without.
            assert stage.contents() in (after, undelivered), place
        stage.check_sound()
    assert stage.proxy.cuts


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("verb", sorted(scene.IN_STEPS))
def test_a_verb_of_several_transactions_does_each_once(stage: Stage, verb: str) -> None:
    """F5: refused or not, another call completes it."""
    call = scene.IN_STEPS[verb]
    stage.restore()
    stage.run(call, served=False)
    passed, after = stage.passed, stage.contents()
    for place in cuts(stage, passed):
        _, error = outcome(stage, call, served=False)
        if error is not None:
            assert error.retryable
            call(stage.backend)
        assert stage.contents() == after, place
        stage.check_sound()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("verb", some(sorted(scene.READING)))
def test_a_verb_that_reads_answers_the_same(stage: Stage, verb: str) -> None:
    """Q55: on a new connection."""
    call = scene.READING[verb]
    stage.restore()
    before = stage.contents()
    answer = comparable(stage.run(call))
    for place in cuts(stage, {side: min(count, 2) for side, count in stage.passed.items()}):
        found = comparable(stage.run(call))
        if verb not in {"reading.examine", "reading.overview"}:
            assert found == answer, place
    stage.proxy.disarm()
    assert stage.contents() == before


@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_an_iterator_is_stored_wholly_or_refused(stage: Stage, side: str) -> None:
    """Q15: it cannot be read twice, so a connection that is lost meanwhile is an error."""
    refused = 0
    for number in itertools.count(1, 3):
        stage.restore()
        cut = stage.proxy.cuts
        stage.proxy.cut_at(side, number)
        jobs = (Job(id=f"it-{each}", type="r") for each in range(30))
        _, error = outcome(stage, lambda backend, jobs=jobs: backend.enqueue_jobs(jobs))
        assert error is None or (error.retryable and not error.outcome_unknown)
        refused += error is not None
        assert len(stage.direct.reading.find_ids("it-", 100)) == (30 if error is None else 0)
        if stage.proxy.cuts == cut:
            break
    assert refused
