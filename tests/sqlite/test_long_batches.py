"""enqueue_jobs of an iterator: one transaction, little memory, all or nothing."""

import itertools

import pytest
from tests.sqlite.support import all_jobs, assert_sound, jobs, journal, query, writer_of

from penstock.backends.engine.submission import CHUNK
from penstock.errors import DependencyError, InvalidArgumentError, JobExistsError, QueueFullError
from penstock.job import Job


def stream(count, name="job"):
    return (Job(id=f"{name}-{number}", type="t") for number in range(count))


def commits_of(backend):
    commits = []
    writer_of(backend)._connection.set_commit_hook(lambda: bool(commits.append(1)))
    return commits


def test_an_iterator_is_one_transaction(backend, path):
    """Q11, B17: readers see none of it or all of it."""
    commits = commits_of(backend)
    seen = []

    def watched():
        for number, job in enumerate(stream(3 * CHUNK)):
            if number % CHUNK == CHUNK - 1:
                seen.append(backend.get_job_stats().total_jobs)
            yield job

    names = backend.enqueue_jobs(watched())
    assert names == [f"job-{number}" for number in range(3 * CHUNK)]
    assert seen == [0, 0, 0]
    assert len(commits) == 1
    assert backend.get_job_stats().total_jobs == 3 * CHUNK
    assert [row.seq for row in journal(backend)] == list(range(1, 3 * CHUNK + 1))
    assert_sound(backend, path)


class OwnError(Exception):
    """What a caller's generator may raise."""


def raising(count):
    yield from stream(count)
    raise OwnError


@pytest.mark.parametrize("count", [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 1])
def test_a_generator_that_raises_leaves_nothing(backend, path, count):
    """B17: its own exception comes out, and no number is used up."""
    with pytest.raises(OwnError):
        backend.enqueue_jobs(raising(count))
    assert backend.enqueue_job(Job(id="after", type="t")) == "after"
    assert [(row.seq, row.job_id) for row in journal(backend)] == [(1, "after")]
    assert query(path, "SELECT seq FROM job") == [(1,)]
    assert_sound(backend, path)


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (Job(id="job-3", type="t"), JobExistsError),
        (Job(id="taken", type="t"), JobExistsError),
        (Job(id="x", type="t", after=("nobody",)), DependencyError),
        (Job(id="x", type="t", after=("x",)), DependencyError),
        ("not a job", InvalidArgumentError),
        (None, InvalidArgumentError),
    ],
)
def test_a_wrong_job_at_the_end_leaves_nothing(backend, path, last, error):
    """Q12, B17: however long ago the others were inserted."""
    backend.enqueue_job(Job(id="taken", type="t"))

    def batch():
        yield from stream(2 * CHUNK + 10)
        yield last

    with pytest.raises(error):
        backend.enqueue_jobs(batch())
    assert [job.id for job in all_jobs(backend)] == ["taken"]
    assert backend.get_job_stats().total_jobs == 1
    assert_sound(backend, path)


def test_a_job_may_wait_for_one_in_a_later_chunk(backend, path):
    """R5, G13: the rest of the input is read at once then, and dependencies are inserted first."""

    def batch():
        yield Job(id="first", type="t", after=("last",))
        yield from stream(CHUNK + 50)
        yield Job(id="middle", type="t", after=("job-1", "first"))
        yield Job(id="last", type="t")

    names = backend.enqueue_jobs(batch())
    assert names[0] == "first"
    assert names[-2:] == ["middle", "last"]
    stored = [job.id for job in all_jobs(backend)]
    assert stored.index("last") < stored.index("first") < stored.index("middle")
    assert_sound(backend, path)


def test_a_job_may_wait_for_one_in_an_earlier_chunk(backend, path):
    def batch():
        yield from stream(CHUNK + 5)
        yield Job(id="last", type="t", after=("job-0", f"job-{CHUNK}"))

    backend.enqueue_jobs(batch())
    assert backend.get_job("last").after == ("job-0", f"job-{CHUNK}")
    assert backend.dequeue_jobs("w", job_ids=["last"]) == []
    assert_sound(backend, path)


def test_a_key_given_twice_across_chunks_makes_one_job(backend, path):
    """G2, G3."""

    def batch():
        yield Job(id="one", type="t", idempotency_key="k")
        yield from stream(CHUNK + 5)
        yield Job(id="two", type="t", idempotency_key="k")
        yield Job(id="three", type="t", after=("two",))

    names = backend.enqueue_jobs(batch())
    assert names[-2:] == ["one", "three"]
    assert backend.get_job("three").after == ("one",)
    assert_sound(backend, path)


def test_a_limit_of_waiting_jobs_refuses_the_whole_batch(opened, path):
    backend = opened(max_pending=CHUNK + 10)
    with pytest.raises(QueueFullError):
        backend.enqueue_jobs(stream(CHUNK + 11))
    assert all_jobs(backend) == []
    backend.enqueue_jobs(stream(CHUNK + 10))
    with pytest.raises(QueueFullError):
        backend.enqueue_job(Job(id="more", type="t"))
    assert_sound(backend, path)


def test_a_limit_of_waiting_jobs_does_not_make_long_batches_slow(opened):
    """The waiting jobs are not counted again for each chunk; counted in steps of SQLite's machine."""
    ticks = []
    for number, limit in enumerate([None, 10**9]):
        backend = opened(max_pending=limit)
        count = [0]
        writer_of(backend)._connection.set_progress_handler(lambda count=count: bool(count.append(1)), 1_000)
        backend.enqueue_jobs(stream(12 * CHUNK, f"batch-{number}"))
        ticks.append(len(count))
    assert ticks[1] < 1.3 * ticks[0]


def test_an_empty_iterator_is_nothing(backend):
    assert backend.enqueue_jobs(iter(())) == []
    assert journal(backend) == []


def test_two_long_batches_at_once_do_not_mix(backend, path):
    """Q52: each waits for the other, and insertion order keeps them apart."""
    from tests.sqlite.support import Thread

    threads = [Thread(lambda n=n: backend.enqueue_jobs(stream(CHUNK + 1, f"b{n}"))) for n in range(3)]
    assert not [t for t in threads if isinstance(t.outcome(), BaseException)]
    order = [job.id.split("-")[0] for job in all_jobs(backend)]
    changes = sum(one != two for one, two in itertools.pairwise(order))
    assert (len(order), changes) == (3 * (CHUNK + 1), 2)
    assert_sound(backend, path)


@pytest.mark.deep
@pytest.mark.process
@pytest.mark.slow
def test_two_hundred_thousand_jobs_need_little_memory(child, path):
    """Q11: the ids, SQLite's cache of 64 MB and one chunk; not the jobs."""
    process = child("""
def peak():
    lines = open("/proc/self/status").read().split("\\n")
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
backend = store()
backend.enqueue_jobs(Job(id=f"warm-{n}", type="t", payload=bytes(200)) for n in range(2_000))
before = peak()
names = backend.enqueue_jobs(Job(id=f"job-{n}", type="t", payload=bytes(200)) for n in range(200_000))
say(peak() - before)
say(len(names))
""")
    grown = float(process.hear())
    assert process.hear() == "200000"
    # The jobs themselves would be 250 MB; ids with their places in a dict are about 35 MB.
    assert grown < 64 + 35 + 40, grown
    process.wait()
    assert query(path, "SELECT count(*) FROM payload") == [(202_000,)]


def test_a_batch_in_a_list_may_share_its_transaction(backend):
    """A list can be read again, so it needs no transaction of its own; an iterator cannot."""
    assert backend.enqueue_jobs(jobs(3)) == ["job-0", "job-1", "job-2"]
    assert backend.enqueue_jobs(iter(jobs(3, "iter"))) == ["iter-0", "iter-1", "iter-2"]
