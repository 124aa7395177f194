"""Strategies for jobs and arguments: few values of each, so that they meet."""

from datetime import timedelta

from hypothesis import strategies as st

from penstock.job import JobStatus, Key, Priority
from penstock.policy import FailureCategory, RetryPolicy, Timeouts

WORKERS = ("w1", "w2", "w3")
TYPES = ("mail", "report")
TAGS = ("red", "blue")
KEYS = (Key("k"), Key("l", "1"))
MISSING = "missing"

workers = st.sampled_from(WORKERS)
types = st.sampled_from(TYPES)
tags = st.lists(st.sampled_from(TAGS), max_size=2, unique=True).map(tuple)
keys = st.sampled_from(KEYS)
consumers = st.sampled_from(["lake", "callbacks"])
priorities = st.sampled_from(Priority)
statuses = st.sampled_from(JobStatus)
categories = st.sampled_from(FailureCategory)
messages = st.sampled_from(["boom", "broken", "ünï 🦆"])
data = st.sampled_from([None, b"", b"\x00data"])

retry_policies = st.sampled_from(
    [
        RetryPolicy(max_attempts=1),
        RetryPolicy(max_attempts=2, backoff="constant", initial_delay=timedelta(0)),
        RetryPolicy(max_attempts=3, initial_delay=timedelta(seconds=5)),
        RetryPolicy(max_attempts=4, backoff="linear", initial_delay=timedelta(seconds=3)),
        RetryPolicy(max_attempts=3, retry_on=(FailureCategory.TIMEOUT,), initial_delay=timedelta(0)),
    ]
)
timeouts = st.sampled_from(
    [
        Timeouts(visibility=timedelta(seconds=10)),
        Timeouts(execution=timedelta(seconds=5)),
        Timeouts(lifetime=timedelta(seconds=40)),
        Timeouts(
            execution=timedelta(seconds=20), visibility=timedelta(seconds=15), lifetime=timedelta(minutes=2)
        ),
    ]
)
steps = st.sampled_from([timedelta(microseconds=1)] + [timedelta(seconds=s) for s in (1, 5, 10, 15, 30)])
long_steps = st.sampled_from([timedelta(hours=24), timedelta(days=30), timedelta(days=90)])


def sometimes(strategy: st.SearchStrategy) -> st.SearchStrategy:
    """Mostly None, now and then a value."""
    return st.one_of(st.none(), st.none(), strategy)


#: The fields of a new job that do not refer to other jobs.
job_fields = st.fixed_dictionaries(
    {},
    optional={
        "type": types,
        "payload": st.sampled_from([b"", b"work"]),
        "tags": tags,
        "priority": priorities,
        "key": keys,
        "held": st.booleans(),
        "retry": retry_policies,
        "timeouts": timeouts,
        "idempotency_key": st.sampled_from(["x", "y"]),
        "correlation_id": st.just("trace"),
        "trace": st.just("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        "callback_url": st.just("https://example.com/done"),
        "parent_id": st.just("parent"),
        "unique": st.just("while_unfinished"),
    },
).map(lambda fields: fields if "idempotency_key" in fields else {**fields, "unique": None})
