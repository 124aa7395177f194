"""The raw store on SQLite and PostgreSQL: the driver alone, on Penstock's own schema, with its indexes and journal rows."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.items import make_items
from benchmarks.peers.probing import LOOP_BATCH, RawProbe, timed
from benchmarks.peers.product import CLIENTS, OURS
from benchmarks.raw import RawStore
from benchmarks.timing import rate, shared_rate
from penstock import open_backend

SCHEMA: Final = "penstock"
CHUNK: Final = 5_000
MORE_THAN_ENOUGH: Final = 20_000


class RawTables(RawProbe):
    environment = OURS

    def __init__(self, store: str, place: str) -> None:
        super().__init__(store, place)
        url = f"sqlite:///{Path(place) / 'raw.db'}" if store == "sqlite" else place
        open_backend(url).close()  # creates the tables
        self._raw = open_raw(store, url)

    def single_rate(self, seconds: float) -> float:
        return rate(self._raw.submit, make_items(MORE_THAN_ENOUGH), seconds)

    def shared_rate(self, seconds: float) -> float:
        items = [make_items(MORE_THAN_ENOUGH // 4) for _ in range(CLIENTS)]
        return shared_rate(self._raw.clients(CLIENTS), items, seconds)

    def bulk_rate(self, number: int) -> float:
        return number / timed(lambda: self._fill(number))

    def loop_rate(self, number: int) -> float:
        self._fill(number)
        self._raw.checkpoint()
        return number / timed(lambda: self._raw.drain(LOOP_BATCH))

    def _fill(self, number: int) -> None:
        for first in range(0, number, CHUNK):
            self._raw.bulk(make_items(min(CHUNK, number - first)))


def open_raw(store: str, url: str) -> RawStore:
    """Open the raw probe on a store that Penstock has created."""
    if store == "sqlite":
        from benchmarks.raw_sqlite import RawSqlite  # noqa: PLC0415  # one of the two

        return RawSqlite(url.removeprefix("sqlite:///"))
    from benchmarks.raw_postgres import RawPostgres  # noqa: PLC0415  # its driver is an extra

    return RawPostgres(url, SCHEMA)


PROBE = RawTables
