"""A long job that outlives its worker: python examples/checkpoints/checkpoints.py

The job processes 40 pages and saves a checkpoint after each. Its worker is killed in the middle, as by a power cut.
Another worker claims the job and continues from the checkpoint, not from the beginning.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import penstock

app = penstock.App()
PAGES = 40


@app.job(timeout=600)
def crawl(context: penstock.JobContext) -> str:
    begin = int(context.checkpoint or b"0")
    for page in range(begin, PAGES):
        time.sleep(0.05)  # the work
        context.save_checkpoint(str(page + 1).encode())  # on disk when this returns
        context.progress(100 * (page + 1) // PAGES, f"page {page + 1}")
    return f"attempt {context.attempt} did pages {begin + 1} to {PAGES}"


def start_worker(folder: str, *options: str) -> subprocess.Popen[bytes]:
    """Run `penstock worker checkpoints:app`, as one would in a terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "worker", "checkpoints:app", "--log-level", "error", *options],
        cwd=Path(__file__).parent,
        env={**os.environ, "PENSTOCK_URL": f"sqlite:///{folder}/jobs.db"},
    )


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as folder:
        app.url = f"sqlite:///{folder}/jobs.db"
        handle = crawl.submit()
        worker = start_worker(folder)
        while int(handle.job().checkpoint or b"0") < 10:
            time.sleep(0.05)
        worker.kill()
        worker.wait()
        print(f"the worker was killed; the checkpoint is page {handle.job().checkpoint.decode()}")

        worker = start_worker(folder, "--until-idle")
        print(f"the job is {handle.wait(timeout=120).status}: {handle.result()}")
        worker.wait(60)
        print("what the journal says:")
        for row in app.queue.read_journal():
            print(f"  {row.verb:<9} {row.status}, attempt {row.attempt}")
        app.close()


if __name__ == "__main__":
    main()
