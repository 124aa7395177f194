"""The deliverer: from the journal to an outbox in the store, from there to the urls.

    journal ──read_ends──► outbox (table `delivery`) ──► POST ──► removed, or due again, or failed for good
       └── offset ────────────┘ one transaction

In the database, one process at a time holds the lease of the journal consumer "callbacks". Only the holder reads
ends, posts and records the outcome; the store refuses what any other process records. When the holder dies, another process
takes over after the lease. What was posted but not recorded by then is posted again, with the same id: at least once, never
lost.

The outbox returns what is due, only a few per host at a time, and hosts that failed last time get at most half of the
concurrency: a slow or dead host delays only its own deliveries. Only deliveries in progress are kept in memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Final, Self

import msgspec

from penstock.backends import CALLBACKS, Backend, Delivery
from penstock.callbacks.addresses import Policy, RefusedUrlError, Resolver, check_policy, lane_of, resolve
from penstock.callbacks.events import CONTENT_TYPE, MAX_RESULT, event_id, event_of, read_secrets, signature
from penstock.callbacks.posting import Answer, post
from penstock.callbacks.resolving import TimedResolver
from penstock.durations import Duration, duration
from penstock.errors import InvalidArgumentError, PenstockError, QueueClosedError, invalid
from penstock.policy import RetryPolicy
from penstock.queue import Queue
from penstock.service import Service

__all__ = ["DEFAULT_RETRY", "SECRET_VARIABLE", "CallbackDelivery"]

logger = logging.getLogger("penstock")

SECRET_VARIABLE: Final = "PENSTOCK_WEBHOOK_SECRET"  # noqa: S105  # where it is, not what it is
#: Twelve attempts over about a day: after 5 s, 15 s, 45 s … and then every six hours.
DEFAULT_RETRY: Final = RetryPolicy(
    max_attempts=12,
    initial_delay=timedelta(seconds=5),
    max_delay=timedelta(hours=6),
    multiplier=3.0,
    jitter=0.2,
)
_ENDS_PER_READ: Final = 100
_MAX_DUE: Final = 200
_POLL_SECONDS: Final = 0.5
_FLUSH_POLL_SECONDS: Final = 0.02
#: An offset that moved only over rows without a callback is saved this often: nothing but archiving waits for it.
_OFFSET_SECONDS: Final = 60.0
_GONE: Final = 410
_MAX_FAILING: Final = 10_000


class CallbackDelivery:
    """Delivers callbacks while it is started, and while no other process does.

    Args:
        queue: the queue whose jobs have callbacks.
        policy: "public" lets callbacks go to public addresses only, "any" everywhere, "off" nowhere.
        secret: signs every delivery; text of at least 24 bytes, or "whsec_" and base64. Several, while receivers
            change from one to the next. Unless given, `$PENSTOCK_WEBHOOK_SECRET`; without either nothing is signed.
        retry: how often and when a delivery is retried; twelve times over about a day.
        concurrency: deliveries in progress at a time.
        per_host: deliveries in progress to one host and port.
        timeout: seconds for one attempt, from resolving the name to the head of the response.
        lease: seconds after which another process takes over from one that died.
        resolver: resolves names; `socket.getaddrinfo`.
        tls: what is trusted; the system's authorities.
    """

    def __init__(
        self,
        queue: Queue,
        policy: Policy = "public",
        *,
        secret: str | Sequence[str] | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        concurrency: int = 8,
        per_host: int = 2,
        timeout: Duration = 5.0,
        lease: Duration = 15.0,
        resolver: Resolver = socket.getaddrinfo,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if not isinstance(queue, Queue):
            raise invalid("queue", "a Queue", queue)
        if not callable(resolver):
            raise invalid("resolver", "a function such as socket.getaddrinfo", resolver)
        if tls is not None and not isinstance(tls, ssl.SSLContext):
            raise invalid("tls", "an ssl.SSLContext or None", tls)
        self._backend: Backend = queue.backend
        self._policy = check_policy(policy)
        self._keys = read_secrets(os.environ.get(SECRET_VARIABLE) or None if secret is None else secret)
        if not isinstance(retry, RetryPolicy):
            raise invalid("retry", "a RetryPolicy", retry)
        self._retry = retry
        self._concurrency = _count("concurrency", concurrency)
        self._per_host = _count("per_host", per_host)
        self._timeout = duration(timeout, "timeout", positive=True).total_seconds()
        self._lease = duration(lease, "lease", positive=True).total_seconds()
        self._resolvers = TimedResolver(resolver, self._concurrency)
        self._tls = tls
        self._is_ready = False
        self._reset()
        self._closed = threading.Event()
        self._pool: ThreadPoolExecutor | None = None
        self._service = Service("callbacks", self._run, seconds=_POLL_SECONDS, label="delivering callbacks")

    def _reset(self) -> None:
        """Start without a lease and with a new holder's name: at the beginning, and in the child of a fork."""
        self._holder = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"
        self._store_id = ""
        self._held_until = 0.0  # by the monotonic clock
        self._next_try = 0.0
        self._seq = self._saved_seq = 0
        self._saved_at = 0.0
        self._in_progress: dict[int, str] = {}
        self._failing: set[str] = set()
        self._lock = threading.Lock()

    def start(self) -> Self:
        """Deliver in the background from now on; with policy "off", nothing is delivered."""
        if self._policy == "off" or self._service.is_running:
            return self
        if self._closed.is_set():
            raise QueueClosedError("this CallbackDelivery was closed; make a new one")
        self._reset()
        self._pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="penstock-callback")
        self._service.start()
        return self

    def flush(self, timeout: Duration = 5.0) -> bool:
        """Wait until everything that has ended so far was tried at least once, or the time is over.

        Return whether it was; True also if another process delivers.
        """
        end_at = time.monotonic() + duration(timeout, "timeout").total_seconds()
        _, last = self._backend.journal.span()
        while self._service.is_running:
            is_other = self._next_try > 0 and not self.is_delivering
            if is_other or (self._seq >= last and not self._backend.outbox.due_deliveries(1)):
                return True
            if time.monotonic() >= end_at:
                return False
            self._service.wake()
            self._closed.wait(_FLUSH_POLL_SECONDS)
        return True

    def close(self) -> None:
        """Wait for deliveries in progress (each has its timeout), and release the lease. Idempotent."""
        self._closed.set()
        self._service.stop()
        pool, self._pool = self._pool, None
        if pool is None:
            return
        pool.shutdown()
        with contextlib.suppress(PenstockError):
            if self._held_until:
                self._save_offset()
                self._backend.journal.hold_consumer(CALLBACKS, self._holder, 0)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_delivering(self) -> bool:
        """Whether it is this process that delivers now."""
        return self._pool is not None and time.monotonic() < self._held_until

    # -- the loop -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._hold():
            self._collect()
            self._send_due()

    def _hold(self) -> bool:
        """Acquire or renew the lease; return whether this process delivers."""
        now = time.monotonic()
        if now < self._next_try:
            return now < self._held_until
        had_it = now < self._held_until
        self._next_try = now + self._lease / 3
        if not self._store_id:
            self._backend.journal.register_consumer(CALLBACKS)
            self._store_id = self._backend.journal.store_id()
        try:
            held = self._backend.journal.hold_consumer(CALLBACKS, self._holder, self._lease)
        except InvalidArgumentError:  # the consumer was deleted
            self._store_id = ""
            self._held_until = self._next_try = 0.0
            return False
        self._held_until = 0.0 if held is None else now + self._lease
        if held is not None and not had_it:
            self._seq = self._saved_seq = held.seq
        return held is not None

    def _collect(self) -> None:
        """Write what has ended since into the outbox."""
        while not self._closed.is_set():
            ends, reached = self._backend.outbox.read_ends(self._seq, _ENDS_PER_READ, max_result=MAX_RESULT)
            if ends:
                now = self._backend.now()
                deliveries = [
                    Delivery(
                        seq=end.entry.seq,
                        event_id=event_id(self._store_id, end.entry.seq),
                        url=end.callback_url,
                        lane=lane_of(end.callback_url),
                        body=event_of(end, self._store_id),
                        due_at=now,
                    )
                    for end in ends
                ]
                if not self._backend.outbox.save_deliveries(self._holder, deliveries, seq=reached):
                    self._lose_lease()
                    return
                self._saved_seq, self._saved_at = reached, time.monotonic()
            is_all = reached == self._seq
            self._seq = reached
            if is_all:
                break
        if time.monotonic() >= self._saved_at + _OFFSET_SECONDS:
            self._save_offset()

    def _save_offset(self) -> None:
        self._saved_at = time.monotonic()
        if self._seq > self._saved_seq and self._backend.outbox.save_deliveries(self._holder, seq=self._seq):
            self._saved_seq = self._seq

    def _send_due(self) -> None:
        """Start deliveries that are due, as far as the limits allow."""
        assert self._pool is not None  # noqa: S101  # made by start(), before this thread
        with self._lock:
            busy = dict(self._in_progress)
        if len(busy) >= self._concurrency or self._closed.is_set():
            return
        limits = _Limits(self._concurrency, self._per_host, self._failing, busy)
        # A delivery in progress is still due in the store.
        for each in self._backend.outbox.due_deliveries(_MAX_DUE, per_lane=self._per_host):
            if each.seq not in busy and limits.acquire(each.lane):
                self._prepare()
                with self._lock:
                    self._in_progress[each.seq] = each.lane
                self._pool.submit(self._deliver, each)

    def _prepare(self) -> None:
        """Load the system's authorities before the first delivery: most workers never have one, and start sooner without."""
        if self._is_ready:
            return
        if not self._keys:
            logger.info("callbacks are not signed: set %s to sign them", SECRET_VARIABLE)
        if self._tls is None:
            self._tls = ssl.create_default_context()
        self._is_ready = True

    def _lose_lease(self) -> None:
        self._held_until = 0.0
        logger.warning("another process delivers callbacks now")

    # -- one delivery -------------------------------------------------------------------------------------------

    def _deliver(self, delivery: Delivery) -> None:
        """Try once and record the outcome; runs on a thread of the pool."""
        try:
            try:
                answer = self._post(delivery)
            except RefusedUrlError as error:
                self._record(delivery, str(error), is_final=True)
            except OSError as error:
                self._record(delivery, f"{type(error).__name__}: {error}")
            else:
                self._judge(delivery, answer)
        except QueueClosedError:
            pass  # it is posted again by the next holder of the lease
        except PenstockError as error:
            logger.warning("the outcome of a callback could not be stored; it will be sent again: %s", error)
        except Exception:  # the future is not read
            logger.exception("delivering a callback failed; it will be sent again")
        finally:
            with self._lock:
                self._in_progress.pop(delivery.seq, None)
            self._service.wake()

    def _post(self, delivery: Delivery) -> Answer:
        end_at = time.monotonic() + self._timeout
        target = resolve(delivery.url, self._policy, self._resolvers.within(self._timeout))
        timestamp = int(self._backend.now().timestamp())
        headers = {
            "Content-Type": CONTENT_TYPE,
            "User-Agent": "Penstock",
            "webhook-id": delivery.event_id,
            "webhook-timestamp": str(timestamp),
        }
        if self._keys:
            headers["webhook-signature"] = signature(self._keys, delivery.event_id, timestamp, delivery.body)
        assert self._tls is not None  # noqa: S101  # made before the first delivery
        left = end_at - time.monotonic()
        if left <= 0:
            raise TimeoutError("no time was left after resolving the name")
        return post(target, headers, delivery.body, seconds=left, tls=self._tls)

    def _judge(self, delivery: Delivery, answer: Answer) -> None:
        if 200 <= answer.status < 300:
            self._failing.discard(delivery.lane)
            self._backend.outbox.save_deliveries(self._holder, done=[delivery.seq])
        elif 300 <= answer.status < 400:
            self._record(delivery, f"HTTP {answer.status}: redirects are not followed")
        else:
            self._record(
                delivery,
                f"HTTP {answer.status}",
                is_final=answer.status == _GONE,
                at_least=_seconds(answer.retry_after),
            )

    def _record(
        self, delivery: Delivery, error: str, *, is_final: bool = False, at_least: float = 0.0
    ) -> None:
        """Record a failed attempt: due again after a while, or failed for good."""
        if len(self._failing) < _MAX_FAILING:
            self._failing.add(delivery.lane)
        attempts = delivery.attempts + 1
        due_at = None
        if not is_final and attempts < self._retry.max_attempts:
            longest = self._retry.max_delay
            delay = max(self._retry.delay(attempts), min(timedelta(seconds=at_least), longest))
            due_at = self._backend.now() + delay
        else:
            logger.warning("a callback was given up after %d attempts: %s", attempts, error)
        changed = msgspec.structs.replace(delivery, attempts=attempts, due_at=due_at, error=error[:2000])
        self._backend.outbox.save_deliveries(self._holder, [changed])


class _Limits:
    """Concurrency limits: total, per lane, and at most one per failing lane (half of the total)."""

    def __init__(self, total: int, per_lane: int, failing: set[str], busy: dict[int, str]) -> None:
        self._lanes = Counter(busy.values())
        self._left = total - len(busy)
        self._per_lane = per_lane
        self._failing = failing
        self._left_for_failing = max(1, total // 2) - sum(lane in failing for lane in busy.values())

    def acquire(self, lane: str) -> bool:
        fails = lane in self._failing
        if self._left <= 0 or self._lanes[lane] >= (1 if fails else self._per_lane):
            return False
        if fails:
            if self._left_for_failing <= 0:
                return False
            self._left_for_failing -= 1
        self._left -= 1
        self._lanes[lane] += 1
        return True


def _seconds(retry_after: str | None) -> float:
    """Return the seconds of a Retry-After header; one that gives a date counts as none."""
    text = (retry_after or "").strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0.0


def _count(field: str, value: object) -> int:
    if type(value) is not int or not 1 <= value <= 256:
        raise invalid(field, "a whole number from 1 to 256", value)
    return value
