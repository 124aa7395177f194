"""What a queue tells the store, and so everybody who looks, about what it takes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from tests.waiting import until

import penstock
from penstock import Job, Queue, cancel_scope
from penstock.backends.contract.overview import Intake, OwnerView

SOON = 20.0
CHILD = """
import sys, penstock
queue = penstock.connect(sys.argv[1])
stream = queue.stream_jobs("child", max_assigned_jobs=3, types=["work"])
with penstock.cancel_scope(timeout=30):
    next(stream)
while not queue.overview().owners[0].intakes:
    pass
print("told", flush=True)
sys.stdin.read()
"""


def only_owner(queue: Queue) -> OwnerView:
    (found,) = queue.overview().owners
    return found


def test_open_streams_are_shown_as_what_the_process_takes(queue: Queue) -> None:
    queue.stream_jobs("a", ["gpu"], 4, types=["resize", "crop"])
    queue.stream_jobs("b", ["gpu"], 2, types=["crop", "resize"])
    third = queue.stream_jobs("c", max_assigned_jobs=1)
    wanted = {Intake(types=("crop", "resize"), tags=("gpu",), slots=6), Intake(slots=1)}
    until(lambda: set(only_owner(queue).intakes) == wanted)
    third.resize(5)
    until(lambda: only_owner(queue).slots == 11)
    third.close()
    until(lambda: only_owner(queue).slots == 6)


def test_held_jobs_leave_fewer_slots_free(queue: Queue) -> None:
    queue.enqueue_jobs([Job(id=str(number), type="work") for number in range(5)])
    stream = queue.stream_jobs("w", max_assigned_jobs=3)
    with cancel_scope(timeout=SOON):
        taken = next(stream)
    until(lambda: (only_owner(queue).running, only_owner(queue).slots) == (3, 3))
    assert only_owner(queue).free == 0
    assert queue.overview().ready == 2
    queue.complete_jobs({job.id: None for job in taken})


def test_a_process_is_known_by_the_names_under_which_it_claims(queue: Queue) -> None:
    with (
        queue.stream_jobs("worker-1", types=["a"]) as first,
        queue.stream_jobs("worker-2", types=["b"]),
        queue.stream_jobs("worker-2", types=["b"]),
    ):
        until(lambda: set(only_owner(queue).names) == {"worker-1", "worker-2"})
        assert only_owner(queue).name == "worker-1 (+1)"
        assert first.is_open
    owner = OwnerView(id="x", host="h", pid=7, opened_at=None, beat_at=queue.backend.now(), is_alive=True)
    assert owner.name == "h:7"


def test_types_that_are_claimed_by_hand_have_somebody_who_takes_them(queue: Queue) -> None:
    queue.enqueue_jobs([Job(id="a", type="document"), Job(id="b", type="document")])
    assert queue.overview().unhandled == ("document",)
    queue.claim_jobs("w", types=["document"])
    until(lambda: queue.overview().unhandled == ())
    assert only_owner(queue).intakes == (Intake(types=("document",), slots=0),)


def test_very_many_filters_are_told_as_one_that_lets_through_as_much(queue: Queue) -> None:
    for number in range(150):
        queue.stream_jobs(f"w{number}", max_assigned_jobs=2, types=[f"type-{number}"])
    until(lambda: only_owner(queue).slots == 300)
    (intake,) = only_owner(queue).intakes
    assert intake.types is not None
    assert len(intake.types) == 150


def test_a_name_that_was_lost_is_replaced_by_one_that_tells_the_same(queue: Queue) -> None:
    queue.stream_jobs("w", max_assigned_jobs=4, types=["work"])
    until(lambda: only_owner(queue).slots == 4)
    lost = only_owner(queue).id
    queue.backend.owners.close(lost)
    queue._dispatcher.owner.beat()
    until(lambda: only_owner(queue).slots == 4)
    assert only_owner(queue).id != lost


@pytest.mark.process
def test_a_process_that_was_killed_is_shown_as_dead_with_what_it_held(
    shared_url: str, request: pytest.FixtureRequest
) -> None:
    with penstock.connect(shared_url) as queue:
        queue.enqueue_jobs([Job(id=str(number), type="work") for number in range(4)])
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, shared_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "told\n"
            alive = only_owner(queue)
            assert (alive.is_alive, alive.pid, alive.running, alive.slots) == (True, child.pid, 3, 3)
            assert queue.overview().unhandled == ()
        finally:
            child.kill()
            child.communicate()
        dead = only_owner(queue)
        assert (dead.is_alive, dead.running) == (False, 3)
        assert queue.overview().living == ()
        assert queue.overview().unhandled == ("work",)


def test_a_closed_queue_leaves_nobody_behind(connect: Callable[..., Queue], url: str) -> None:
    if url == "memory:":
        pytest.skip("it is gone with its object")
    first, second = connect(), connect()
    first.stream_jobs("w", types=["work"])
    until(lambda: bool(second.overview().living))
    first.close()
    assert second.overview().owners == ()
