"""The deliverer: from the journal to an outbox in the store, from there to the urls.

    journal ──read_ends──► outbox (table `delivery`) ──► POST ──► removed, or due again, or given up
       └── offset ────────────┘ one transaction

One process at a time holds the consumer "callbacks" of the journal. It alone reads ends, posts and says what became of it;
the store refuses what any other one says. Who dies is followed by another process once its lease is over. What was posted
but not yet recorded then is posted again, with the same id: at least once, never lost.

The outbox is asked for what is due, of each host only a few at a time, and hosts that failed last time get no more than half
of all places: a host that is slow or dead costs its own deliveries time, and nobody else's. Nothing is kept in memory but
what is on its way.
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
from types import TracebackType
from typing import Final, Self

import msgspec

from penstock.backends.base import CALLBACKS, Backend, Delivery
from penstock.callbacks.addresses import Policy, RefusedUrlError, Resolver, check_policy, lane_of, resolve
from penstock.callbacks.events import CONTENT_TYPE, MAX_RESULT, event_id, event_of, read_secrets, signature
from penstock.callbacks.lookups import LookUps
from penstock.callbacks.posting import Answer, post
from penstock.errors import InvalidArgumentError, PenstockError, QueueClosedError, shown
from penstock.policy import RetryPolicy, duration
from penstock.queue import Queue

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
_ENDS_AT_ONCE: Final = 100
_DUE_AT_ONCE: Final = 200
_LOOK_SECONDS: Final = 0.5
_FLUSH_LOOK_SECONDS: Final = 0.02
#: An offset that moved over rows nobody is told of is written this often: archiving waits for it, nothing else.
_OFFSET_SECONDS: Final = 60.0
_GONE: Final = 410
_MOST_FAILING: Final = 10_000


class CallbackDelivery:
    """Delivers callbacks while it is started, and while no other process does.

    Args:
        queue: the queue whose jobs have callbacks.
        policy: "public" lets callbacks go to public addresses only, "any" everywhere, "off" nowhere.
        secret: signs every delivery; text of at least 24 bytes, or "whsec_" and base64. Several, while receivers
            change from one to the next. Unless given, `$PENSTOCK_WEBHOOK_SECRET`; without either nothing is signed.
        retry: how often and when a delivery is tried again; twelve times over about a day.
        concurrency: deliveries on their way at a time.
        per_host: of these, to one host and port.
        timeout: seconds for one attempt, from the look-up of the name to the answer's head.
        lease: seconds after which another process takes over from one that is gone.
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
        timeout: timedelta | float = 5.0,
        lease: timedelta | float = 15.0,
        resolver: Resolver = socket.getaddrinfo,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._backend: Backend = queue.backend
        self._policy = check_policy(policy)
        self._keys = read_secrets(os.environ.get(SECRET_VARIABLE) or None if secret is None else secret)
        if not isinstance(retry, RetryPolicy):
            raise InvalidArgumentError(f"retry must be a RetryPolicy, got {shown(retry)}", field="retry")
        self._retry = retry
        self._concurrency = _count("concurrency", concurrency)
        self._per_host = _count("per_host", per_host)
        self._timeout = duration(timeout, "timeout", positive=True).total_seconds()
        self._lease = duration(lease, "lease", positive=True).total_seconds()
        self._look_ups = LookUps(resolver, self._concurrency)
        self._tls = tls
        self._is_ready = False
        self._holder = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"
        self._store_id = ""
        self._held_until = 0.0  # by the monotonic clock
        self._next_try = 0.0
        self._seq = self._saved_seq = 0
        self._saved_at = 0.0
        self._on_the_way: dict[int, str] = {}
        self._failing: set[str] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._pool: ThreadPoolExecutor | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Begin to deliver, in the background. With policy "off" nothing begins."""
        if self._policy == "off" or self._thread is not None:
            return self
        if self._stopping.is_set():
            raise QueueClosedError("this CallbackDelivery was closed; make a new one")
        self._pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="penstock-callback")
        self._thread = threading.Thread(target=self._run, name="penstock-callbacks", daemon=True)
        self._thread.start()
        return self

    def flush(self, timeout: timedelta | float = 5.0) -> bool:
        """Wait until everything that has ended so far was tried at least once, or the time is over.

        Returns whether it was. If another process delivers, that is none of this one's business: True.
        """
        end_at = time.monotonic() + duration(timeout, "timeout").total_seconds()
        _, last = self._backend.journal_span()
        while self._thread is not None and self._thread.is_alive():
            is_other = self._next_try > 0 and not self.is_delivering
            if is_other or (self._seq >= last and not self._backend.due_deliveries(1)):
                return True
            if time.monotonic() >= end_at:
                return False
            self._wake.set()
            self._stopping.wait(_FLUSH_LOOK_SECONDS)
        return True

    def close(self) -> None:
        """Wait for what is on its way (each attempt has its timeout), and let another process go on. Idempotent."""
        self._stopping.set()
        self._wake.set()
        thread, pool = self._thread, self._pool
        if thread is None or pool is None:
            return
        thread.join()
        pool.shutdown()
        self._thread = self._pool = None
        with contextlib.suppress(PenstockError):
            if self._held_until:
                self._save_offset()
                self._backend.hold_consumer(CALLBACKS, self._holder, 0)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_delivering(self) -> bool:
        """Whether it is this process that delivers now."""
        return self._thread is not None and time.monotonic() < self._held_until

    # -- the loop -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                if self._hold():
                    self._collect()
                    self._send_due()
            except QueueClosedError:
                return
            except PenstockError as error:
                logger.warning("callbacks wait for the store: %s", error)
            except Exception:  # a defect must not end all deliveries in silence
                logger.exception("delivering callbacks failed; it goes on")
            self._wake.wait(_LOOK_SECONDS)

    def _hold(self) -> bool:
        """Take or keep the consumer; whether this process delivers."""
        now = time.monotonic()
        if now < self._next_try:
            return now < self._held_until
        had_it = now < self._held_until
        self._next_try = now + self._lease / 3
        if not self._store_id:
            self._backend.register_consumer(CALLBACKS)
            self._store_id = self._backend.store_id()
        try:
            held = self._backend.hold_consumer(CALLBACKS, self._holder, self._lease)
        except InvalidArgumentError:  # somebody forgot it
            self._store_id = ""
            self._held_until = self._next_try = 0.0
            return False
        self._held_until = 0.0 if held is None else now + self._lease
        if held is not None and not had_it:
            self._seq = self._saved_seq = held.seq
        return held is not None

    def _collect(self) -> None:
        """Put into the outbox what has ended since."""
        while not self._stopping.is_set():
            ends, reached = self._backend.read_ends(self._seq, _ENDS_AT_ONCE, max_result=MAX_RESULT)
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
                if not self._backend.save_deliveries(self._holder, deliveries, seq=reached):
                    self._lose()
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
        if self._seq > self._saved_seq and self._backend.save_deliveries(self._holder, seq=self._seq):
            self._saved_seq = self._seq

    def _send_due(self) -> None:
        """Start what is due, as far as there is room."""
        assert self._pool is not None  # noqa: S101  # made by start(), which started this thread
        with self._lock:
            busy = dict(self._on_the_way)
        if len(busy) >= self._concurrency or self._stopping.is_set():
            return
        places = _Places(self._concurrency, self._per_host, self._failing, busy)
        # What is on its way is still due in the store.
        for each in self._backend.due_deliveries(_DUE_AT_ONCE, per_lane=self._per_host):
            if each.seq not in busy and places.take(each.lane):
                self._get_ready()
                with self._lock:
                    self._on_the_way[each.seq] = each.lane
                self._pool.submit(self._deliver, each)

    def _get_ready(self) -> None:
        """Before the first delivery: most workers never have one, and start sooner without the system's authorities."""
        if self._is_ready:
            return
        if not self._keys:
            logger.info("callbacks are not signed: set %s to sign them", SECRET_VARIABLE)
        if self._tls is None:
            self._tls = ssl.create_default_context()
        self._is_ready = True

    def _lose(self) -> None:
        self._held_until = 0.0
        logger.warning("another process delivers callbacks now")

    # -- one delivery -------------------------------------------------------------------------------------------

    def _deliver(self, delivery: Delivery) -> None:
        """Try once and record what became of it; runs on a thread of the pool."""
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
            pass  # it is posted again by whoever comes next
        except PenstockError as error:
            logger.warning("the outcome of a callback could not be stored; it will be sent again: %s", error)
        except Exception:  # nobody reads the future
            logger.exception("delivering a callback failed; it will be sent again")
        finally:
            with self._lock:
                self._on_the_way.pop(delivery.seq, None)
            self._wake.set()

    def _post(self, delivery: Delivery) -> Answer:
        end_at = time.monotonic() + self._timeout
        target = resolve(delivery.url, self._policy, self._look_ups.within(self._timeout))
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
            raise TimeoutError("no time was left after the look-up of the name")
        return post(target, headers, delivery.body, seconds=left, tls=self._tls)

    def _judge(self, delivery: Delivery, answer: Answer) -> None:
        if 200 <= answer.status < 300:
            self._failing.discard(delivery.lane)
            self._backend.save_deliveries(self._holder, done=[delivery.seq])
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
        """Note a failed attempt: due again after a while, or given up."""
        if len(self._failing) < _MOST_FAILING:
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
        self._backend.save_deliveries(self._holder, [changed])


class _Places:
    """Who may be on its way: so many in all, so many of a lane; of lanes that fail one each, and half of all."""

    def __init__(self, total: int, per_lane: int, failing: set[str], busy: dict[int, str]) -> None:
        self._lanes = Counter(busy.values())
        self._left = total - len(busy)
        self._per_lane = per_lane
        self._failing = failing
        self._left_for_failing = max(1, total // 2) - sum(lane in failing for lane in busy.values())

    def take(self, lane: str) -> bool:
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
        raise InvalidArgumentError(
            f"{field} must be a whole number from 1 to 256, got {shown(value)}", field=field, value=value
        )
    return value
