"""The conformance suite: what every store must do, as pytest tests.

    # conftest.py
    import pytest
    pytest.register_assert_rewrite("penstock.testing.conformance")

    # test_my_store.py
    from penstock.testing import BackendConformance

    class TestMyStore(BackendConformance):
        @pytest.fixture
        def make_backend(self, tmp_path):
            def make(*, clock=None, **options):
                return MyStore(tmp_path / "jobs", clock=clock, **options)
            make.shares_store = True    # several objects may be open on one store
            return make

`QueueConformance` proves in the same way what a `Queue` does over the store.

`make_backend` opens the same store on every call within one test, and an empty one in every test. What it opened is
closed when the test is over. The families can also be used one by one.
"""

from collections.abc import Iterable

from penstock.testing.conformance._support import MakeBackend, Suite
from penstock.testing.conformance.bad_input import BadArguments, BadJobs, Messages, Options
from penstock.testing.conformance.cancellation import Acknowledging, Cancellation
from penstock.testing.conformance.changing import Notes, Redriving, Updating
from penstock.testing.conformance.claiming import Claiming, Delays, Filters, Held, ManyClaims, ManyDue, Order
from penstock.testing.conformance.closing import Closing, Reopening
from penstock.testing.conformance.concurrency import Concurrency
from penstock.testing.conformance.consumers import Archiving, Consumers
from penstock.testing.conformance.dependencies import (
    After,
    AfterAny,
    BatchOrder,
    DependencyLimits,
    Inheritance,
    Propagation,
    RollingChains,
)
from penstock.testing.conformance.fencing import Fencing, Plurals
from penstock.testing.conformance.holders import Leases, LostWorkers, Owners, UnresponsiveClaims
from penstock.testing.conformance.idempotency import Idempotency
from penstock.testing.conformance.journal import Journal, JournalReading
from penstock.testing.conformance.keys import Keys
from penstock.testing.conformance.late_results import LateResults
from penstock.testing.conformance.listening import Listening
from penstock.testing.conformance.maintenance import (
    CleanUp,
    Deletion,
    DueJobs,
    ExecutionTimes,
    Lifetimes,
    RetentionRules,
)
from penstock.testing.conformance.outbox import Deliveries, Ends, Schedules
from penstock.testing.conformance.overviews import Intakes, Overviews
from penstock.testing.conformance.publishing import Publishing
from penstock.testing.conformance.queue_claims import ClaimsByHand, UnresponsiveAssignees
from penstock.testing.conformance.queue_documents import (
    DocumentBlocking,
    DocumentFlows,
    DocumentJournal,
    DocumentOrder,
    DocumentReports,
    DocumentSizes,
)
from penstock.testing.conformance.queue_spawning import QueueSpawning
from penstock.testing.conformance.queue_streams import (
    StreamCapacity,
    StreamDelivery,
    StreamEnds,
    StreamWakeUps,
)
from penstock.testing.conformance.queue_support import QueueSuite
from penstock.testing.conformance.queue_verbs import Draining, Events, Flows, Submitting
from penstock.testing.conformance.reading import Idleness, Keyed, Listing, Reading
from penstock.testing.conformance.reporting import (
    Completing,
    Failing,
    LateFailures,
    Releasing,
    StatusUpdates,
    Stopping,
)
from penstock.testing.conformance.scope import Scopes
from penstock.testing.conformance.selecting import Prefixes, Selecting
from penstock.testing.conformance.spawning import (
    SpawnedEnds,
    SpawnedKeys,
    SpawnFences,
    Spawning,
    SpawnRaces,
)
from penstock.testing.conformance.stats import Counts, Statistics
from penstock.testing.conformance.submission import BadBatches, Batches, Blocking, Limits, Submission
from penstock.testing.conformance.transitions_matrix import TransitionsMatrix

FAMILIES: tuple[type[Suite], ...] = (
    Submission,
    BadBatches,
    Batches,
    Blocking,
    Limits,
    Claiming,
    Order,
    Filters,
    Delays,
    Held,
    ManyClaims,
    ManyDue,
    Completing,
    Failing,
    LateFailures,
    LateResults,
    Stopping,
    Releasing,
    StatusUpdates,
    Fencing,
    Plurals,
    Cancellation,
    Acknowledging,
    LostWorkers,
    UnresponsiveClaims,
    Leases,
    Owners,
    After,
    AfterAny,
    Propagation,
    RollingChains,
    Inheritance,
    DependencyLimits,
    BatchOrder,
    Spawning,
    SpawnedEnds,
    SpawnedKeys,
    SpawnRaces,
    SpawnFences,
    Keys,
    Idempotency,
    Publishing,
    Lifetimes,
    ExecutionTimes,
    DueJobs,
    RetentionRules,
    CleanUp,
    Deletion,
    Updating,
    Notes,
    Redriving,
    Journal,
    JournalReading,
    Consumers,
    Archiving,
    Ends,
    Deliveries,
    Schedules,
    Statistics,
    Counts,
    Overviews,
    Intakes,
    Reading,
    Keyed,
    Listing,
    Selecting,
    Prefixes,
    Idleness,
    Listening,
    BadJobs,
    BadArguments,
    Messages,
    Options,
    TransitionsMatrix,
    Concurrency,
    Scopes,
    Closing,
    Reopening,
)


QUEUE_FAMILIES: tuple[type[QueueSuite], ...] = (
    StreamDelivery,
    StreamWakeUps,
    StreamCapacity,
    StreamEnds,
    ClaimsByHand,
    UnresponsiveAssignees,
    Events,
    Flows,
    QueueSpawning,
    Submitting,
    Draining,
    DocumentOrder,
    DocumentJournal,
    DocumentSizes,
    DocumentReports,
    DocumentFlows,
    DocumentBlocking,
)


class BackendConformance:
    """Every family as a nested test class: subclass it under a name that pytest collects."""


class QueueConformance:
    """The same for what a `Queue` does over the store: streams, events, flows, document queues.

    Takes the same `make_backend`. Time is real here, because streams wait.
    """


def _nest(suite: type, families: Iterable[type]) -> None:
    for family in families:
        name = f"Test{family.__name__}"
        setattr(suite, name, type(name, (family,), {"__doc__": family.__doc__}))


_nest(BackendConformance, FAMILIES)
_nest(QueueConformance, QUEUE_FAMILIES)

__all__ = [
    "FAMILIES",
    "QUEUE_FAMILIES",
    "BackendConformance",
    "MakeBackend",
    "QueueConformance",
    "QueueSuite",
    "Suite",
]
