"""Fan-out and fan-in: python examples/etl/etl.py

`extract` finds out at run time how many parts there are, and spawns one job per part. `load` waits for `extract`, and so
for all jobs that it spawned.

    extract ──▶ transform 0 ──┐
            ──▶ transform 1 ──┼──▶ load
            ──▶ transform 2 ──┘
"""

import csv
import json
import random
import tempfile
from collections import Counter
from pathlib import Path

import penstock

app = penstock.App()
ROWS_PER_PART = 1_000


@app.job
def extract(context: penstock.JobContext, source: str, folder: str) -> int:
    """Cut a table into parts."""
    with Path(source).open(newline="") as file:
        rows = list(csv.reader(file))
    parts = [rows[start : start + ROWS_PER_PART] for start in range(0, len(rows), ROWS_PER_PART)]
    for number, part in enumerate(parts):
        path = Path(folder) / f"part-{number}.json"
        path.write_text(json.dumps(part))
        # A second attempt of this job spawns again; with the same idempotency key it gets the jobs of the first.
        context.spawn(transform.options(idempotency_key=f"{context.job.id}/{number}"), part=str(path))
    return len(parts)


@app.job
def transform(part: str) -> None:
    """Add up the sales of each city in one part."""
    totals: Counter[str] = Counter()
    for city, cents in json.loads(Path(part).read_text()):
        totals[city] += int(cents)
    Path(part).with_suffix(".sum").write_text(json.dumps(totals))


@app.job
def load(folder: str) -> dict[str, int]:
    """Put the parts together again."""
    totals: Counter[str] = Counter()
    for path in sorted(Path(folder).glob("*.sum")):
        totals.update(json.loads(path.read_text()))
    return dict(totals)


def write_sales(path: Path, rows: int) -> int:
    """Make up some sales; return their sum."""
    chance, total = random.Random(7), 0
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        for _ in range(rows):
            cents = chance.randrange(100, 10_000)
            writer.writerow([chance.choice(["Bern", "Lyon", "Oslo"]), cents])
            total += cents
    return total


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="etl-") as folder:
        app.url = f"sqlite:///{folder}/jobs.db"
        total = write_sales(Path(folder) / "sales.csv", 4_500)
        extracted = extract.submit(str(Path(folder) / "sales.csv"), folder)
        loaded = load.options(after=[extracted]).submit(folder)
        penstock.Worker(app).run(until_idle=True)
        print(f"{extracted.result()} parts were transformed, each in a process of its own")
        for city, cents in sorted(loaded.result().items()):
            print(f"{city}: {cents / 100:,.2f}")
        print(f"nothing was lost: {sum(loaded.result().values()) == total}")
        app.close()


if __name__ == "__main__":
    main()
