"""A claim selects its jobs as one JSON array: whatever a job holds must come out of it as it went in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import penstock
from penstock import Job

SIZES = (0, 1, 1_999, 2_000, 2_001, 100_000)


@pytest.mark.requirement("B1")
def test_payloads_come_back_byte_for_byte_whatever_their_size(tmp_path: Path) -> None:
    payloads = {f"{size}-{number}": os.urandom(size) for number in range(3) for size in SIZES}
    with penstock.open_backend(f"sqlite:///{tmp_path}/jobs.db") as backend:
        backend.enqueue_jobs(
            Job(id=job_id, type="any", payload=payload) for job_id, payload in payloads.items()
        )
        claimed = backend.dequeue_jobs("worker", limit=100)
    assert [(job.id, job.payload) for job in claimed] == list(payloads.items())


@pytest.mark.requirement("B1")
def test_texts_come_back_as_they_were_whatever_characters_they_have(tmp_path: Path) -> None:
    odd = ['"quoted"', "back\\slash", "tab\there", "ünï¢ødé 🚰", "[1, 2]", "{}", "'", "\u2028"]
    jobs = [Job(id=f"id {text}", type=text, tags=(text, f"{text}!")) for text in odd]
    with penstock.open_backend(f"sqlite:///{tmp_path}/jobs.db") as backend:
        backend.enqueue_jobs(jobs)
        claimed = backend.dequeue_jobs("worker", limit=100)
    assert [(job.id, job.type, job.tags) for job in claimed] == [(job.id, job.type, job.tags) for job in jobs]
