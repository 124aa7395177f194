"""Commands with real Spark, ended at random moments; test_java_ends.py has the moments that are known by name."""

import random
import signal

import pytest
from tests.waiting import pass_time, until

pytest.importorskip("pyspark")

from tests.spark.test_java_ends import APP, COMMANDS, Command

import penstock

pytestmark = [pytest.mark.soak, pytest.mark.process]
INT, TERM, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGKILL
SIGNALS = [(INT,), (INT, INT), (INT, INT, INT), (TERM,), (TERM, TERM), (KILL,)]


@pytest.mark.parametrize("seed", range(40))
def test_no_process_is_left(tmp_path, seed):
    rng = random.Random(seed)
    with penstock.connect(f"sqlite:///{tmp_path}/jobs.db") as queue:
        queue.submit("t")
    (tmp_path / "shop.py").write_text(APP.format(folder=tmp_path))
    running = Command("-m", "penstock", *COMMANDS[rng.choice(sorted(COMMANDS))], folder=tmp_path)
    try:
        pass_time(rng.uniform(1.0, 15.0))
        for number in rng.choice(SIGNALS):
            if running.process.poll() is None:
                running.process.send_signal(number)
                pass_time(rng.choice([0.0, 0.02, 0.3]))
        running.ends()
        until(lambda: not running.processes())
        assert "\tat " not in running.stderr, running.stderr
    finally:
        running.clean_up()
