"""Annotations that are text, of classes that only the caller's scope knows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from penstock import InvalidArgumentError
from penstock.testing import drain, in_memory

if TYPE_CHECKING:
    from nowhere import Unknown


def test_classes_of_the_function_that_decorates_are_found(app):
    pydantic = pytest.importorskip("pydantic")

    class Item(pydantic.BaseModel):
        name: str

    @dataclass
    class Box:
        width: int

    seen = []

    @app.job
    def pack(items: list[Item], box: Box, at: datetime | None = None) -> None:
        seen.extend([items[0], box])

    with in_memory(app):
        pack.submit(items=[Item(name="cup")], box=Box(3))
        assert drain(app).completed == 1
        with pytest.raises(InvalidArgumentError, match="items of"):
            pack.submit(items=[{"title": "cup"}], box=Box(3))
    assert seen == [Item(name="cup"), Box(3)]


def test_one_annotation_that_cannot_be_resolved_leaves_the_others(app):
    @app.job
    def work(count: int, other: Unknown) -> None: ...

    with in_memory(app):
        work.submit(count=1, other={"any": "JSON"})
        with pytest.raises(InvalidArgumentError, match="count of"):
            work.submit(count="one", other=None)
