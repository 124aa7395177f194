"""The raw store on Redis: a job is an entry of a list. Claiming moves 100 to a second list, completing removes them."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call, unused-ignore"
from __future__ import annotations

from typing import Any, Final

from benchmarks.peers.probing import LOOP_BATCH, RawProbe, timed
from benchmarks.peers.product import CLIENTS, encoded, rate, shared_rate

READY: Final = "raw-ready"
RUNNING: Final = "raw-running"
CHUNK: Final = 5_000


class RawLists(RawProbe):
    environment = "peers"

    def __init__(self, store: str, place: str) -> None:
        super().__init__(store, place)
        self._client = self._connect()
        self._client.flushall()

    def single_rate(self, seconds: float) -> float:
        return rate(self._push(self._client), seconds)

    def shared_rate(self, seconds: float) -> float:
        return shared_rate([self._push(self._connect()) for _ in range(CLIENTS)], seconds)

    def bulk_rate(self, number: int) -> float:
        return number / timed(lambda: self._fill(number))

    def loop_rate(self, number: int) -> float:
        self._fill(number)
        return number / timed(self._drain)

    def _connect(self) -> Any:
        from redis import Redis  # noqa: PLC0415  # only its environment has it

        return Redis.from_url(self.place)

    def _push(self, client: Any) -> Any:
        return lambda number: client.rpush(READY, encoded(number))

    def _fill(self, number: int) -> None:
        for first in range(0, number, CHUNK):
            self._client.rpush(READY, *[encoded(each) for each in range(first, min(first + CHUNK, number))])

    def _drain(self) -> None:
        while jobs := self._client.lpop(READY, LOOP_BATCH):
            with self._client.pipeline(transaction=True) as pipeline:
                pipeline.rpush(RUNNING, *jobs)
                pipeline.ltrim(RUNNING, len(jobs), -1)
                pipeline.execute()


PROBE = RawLists
