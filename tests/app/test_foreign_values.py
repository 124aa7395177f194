"""Paths, numpy scalars and pydantic models as arguments and results of jobs."""

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest

import penstock
from penstock import App, InvalidArgumentError, JobFailedError, JobStatus, Worker
from penstock.testing import drain, in_memory, inline

np = pytest.importorskip("numpy")
pydantic = pytest.importorskip("pydantic")


class Colour(StrEnum):
    RED = "red"


class Item(pydantic.BaseModel):
    name: str
    price: Decimal
    colour: Colour = Colour.RED


class Order(pydantic.BaseModel):
    id: UUID
    items: list[Item]
    placed_at: datetime
    folder: Path
    note: str | None = None


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    user_id: int = pydantic.Field(alias="userId", serialization_alias="UID")
    when: date

    @pydantic.computed_field
    def twice(self) -> int:
        return 2 * self.user_id


@dataclass
class Basket:
    first: Item
    others: list[Item]


class Labelled(TypedDict):
    item: Item


class Pair(NamedTuple):
    left: Item
    right: int


class Crate(msgspec.Struct):
    item: Item
    place: Path


ITEM = Item(name="cup", price=Decimal("1.50"))
ORDER = Order(
    id=UUID(int=7), items=[ITEM, ITEM], placed_at=datetime(2026, 1, 2, tzinfo=UTC), folder=Path("a/b")
)


def came_as(app: App, annotation: Any, value: Any) -> Any:
    """Return what a handler is given for a value, if its parameter has an annotation."""
    seen = []

    def handler(value):
        seen.append(value)

    handler.__annotations__["value"] = annotation
    task = app.job(type=f"type-{id(handler)}")(handler)
    with in_memory(app):
        task.submit(value=value)
        assert drain(app).completed == 1
    return seen[0]


def came_back(app: App, annotation: Any, value: Any) -> Any:
    """Return the result of a handler that returns a value."""

    def handler():
        return value

    handler.__annotations__["return"] = annotation
    task = app.job(type=f"type-{id(handler)}", retry=penstock.RetryPolicy(max_attempts=1))(handler)
    with inline(app):
        return task.submit().result()


# -- paths and numpy -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (Path, Path("a/b.txt"), Path("a/b.txt")),
        (Path, "a/b.txt", Path("a/b.txt")),
        (PurePosixPath, PurePosixPath("/x"), PurePosixPath("/x")),
        (list[Path], [Path("a"), Path("b")], [Path("a"), Path("b")]),
        (dict[str, Path], {"in": Path("a")}, {"in": Path("a")}),
        (Path | None, None, None),
        (Path | None, Path("a"), Path("a")),
        (Path | str, Path("a"), "a"),
        (Any, Path("a"), "a"),
        (Any, {"deep": [Path("a")]}, {"deep": ["a"]}),
    ],
)
def test_a_path_comes_as_annotated_or_as_text(app, annotation, value, expected):
    found = came_as(app, annotation, value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(-3), -3),
        (np.uint8(200), 200),
        (np.float64(1.5), 1.5),
        (np.float32(0.5), 0.5),
        (np.float16(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("text"), "text"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_numpy_scalar_is_the_number_or_text_that_it_holds(app, value, expected):
    for annotation in (Any, type(expected), list, dict, list[type(expected)], dict[str, type(expected)]):
        shape = {list: [value], dict: {"x": value}}
        origin = getattr(annotation, "__origin__", annotation)
        given = shape.get(origin, value)
        found = came_as(app, annotation, given)
        plain = {list: [expected], dict: {"x": expected}}.get(origin, expected)
        assert found == plain
        inner = found[0] if origin is list else found["x"] if origin is dict else found
        assert type(inner) is type(expected)
    assert came_back(app, Any, value) == expected
    assert came_back(app, type(expected), value) == expected
    assert came_back(app, Any, {"deep": [value]}) == {"deep": [expected]}


def test_a_numpy_annotation_gives_numpy_scalars(app):
    found = came_as(app, np.float32, np.float32(0.25))
    assert found == np.float32(0.25)
    assert type(found) is np.float32
    assert type(came_as(app, list[np.int64], [1, np.int64(2)])[1]) is np.int64


def test_numpy_text_is_a_key_of_a_mapping(app):
    assert came_as(app, Any, {np.str_("k"): 1}) == {"k": 1}


@pytest.mark.parametrize("value", [np.float64("nan"), np.float32("inf"), np.uint64(2**63)], ids=repr)
@pytest.mark.parametrize("annotation", [Any, float], ids=["unknown", "float"])
def test_numbers_that_json_cannot_hold_are_refused(app, annotation, value):
    if annotation is float and value.dtype.kind == "u":
        annotation = int
    with pytest.raises(InvalidArgumentError, match=r"finite number|64 bits"):
        came_as(app, annotation, value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.array([1, 2]), r"array\.tolist\(\)"),
        (np.array(5), r"array\.tolist\(\)"),
        (np.datetime64("2026-01-01"), r"datetime64\[us\].*\.item\(\) with the annotation datetime"),
        (np.timedelta64(5, "s"), r"timedelta64\[us\].*\.item\(\) with the annotation timedelta"),
        (np.complex128(1j), "must be JSON"),
        (np.bytes_(b"x"), "must be JSON"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("annotation", [Any, list, dict[str, Any]], ids=str)
def test_what_json_cannot_hold_says_what_to_do(app, annotation, value, words):
    with pytest.raises(InvalidArgumentError) as refused:
        came_as(app, annotation, {"x": value} if annotation is not list else [value])
    assert refused.match(words)


def test_an_array_for_an_annotated_parameter_says_what_to_do(app):
    with pytest.raises(InvalidArgumentError, match=r"value of .* must be list\[int\].*array\.tolist\(\)"):
        came_as(app, list[int], np.array([1, 2]))


def test_an_array_as_a_result_is_a_permanent_failure_that_says_what_to_do(app):
    with pytest.raises(JobFailedError, match=r"array\.tolist\(\)") as failed:
        came_back(app, Any, np.array([1]))
    assert failed.value.job.status is JobStatus.FAILED


def test_a_file_name_that_is_no_text_is_refused(app):
    with pytest.raises(InvalidArgumentError, match="surrogate"):
        came_as(app, Path, Path("\udc80"))


# -- pydantic --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Order, ORDER),
        (list[Order], [ORDER, ORDER]),
        (dict[str, Item], {"a": ITEM}),
        (tuple[Item, int], (ITEM, 3)),
        (Item | None, None),
        (Item | None, ITEM),
        (Item | int, 5),
        (Item | int, ITEM),
        (Order | Item, ITEM),
        (Basket, Basket(ITEM, [ITEM])),
        (list[Basket], [Basket(ITEM, [])]),
        (Labelled, {"item": ITEM}),
        (Pair, Pair(ITEM, 3)),
        (Crate, Crate(ITEM, Path("x"))),
        (Aliased, Aliased(userId=3, when=date(2026, 1, 2))),
        (Annotated[int, pydantic.Field(gt=0)], 3),
        (type(ITEM), ITEM),
    ],
    ids=str,
)
def test_a_model_comes_and_goes_as_its_annotation_says(app, annotation, value):
    found = came_as(app, annotation, value)
    assert found == value
    assert type(found) is type(value)
    back = came_back(app, annotation, value)
    assert back == value
    assert type(back) is type(value)


def test_a_model_may_be_given_as_a_mapping(app):
    assert came_as(app, Item, {"name": "cup", "price": "1.50"}) == ITEM
    assert came_as(app, Aliased, {"userId": 3, "when": date(2026, 1, 2)}).user_id == 3
    assert came_as(app, Aliased, {"user_id": 3, "when": date(2026, 1, 2)}).user_id == 3


def test_numpy_scalars_fit_the_fields_of_a_model(app):
    found = came_as(app, Item, {"name": np.str_("cup"), "price": np.float64(1.5)})
    assert found.name == "cup"


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (Item, {"name": "cup"}, "value of .* must be Item.*price: Field required"),
        (list[Item], [{"name": "cup", "price": "x"}], r"0\.price: Input should be a valid decimal"),
        (Item, 5, "must be Item, got 5"),
        (Item | None, "x", "Item"),
        (Annotated[int, pydantic.Field(gt=0)], -1, "greater than 0"),
    ],
    ids=str,
)
def test_a_value_that_the_model_refuses_is_refused_at_submission_by_its_name(app, annotation, value, words):
    with pytest.raises(InvalidArgumentError, match=words) as refused:
        came_as(app, annotation, value)
    assert refused.value.field == "value"
    assert refused.value.__cause__ is None


def test_a_model_that_was_changed_so_that_it_no_longer_fits_is_refused(app):
    broken = ITEM.model_copy(update={"price": "free"})
    with pytest.raises(InvalidArgumentError, match="value of"):
        came_as(app, Item, broken)


@pytest.mark.parametrize("price", ["NaN", "Infinity"])
def test_numbers_in_a_model_that_json_cannot_hold_are_refused(app, price):
    class Measured(pydantic.BaseModel):
        x: float

    with pytest.raises(InvalidArgumentError, match="finite number"):
        came_as(app, Measured, Measured(x=float(price)))


def test_a_secret_that_the_json_of_a_model_hides_is_refused(app):
    class Login(pydantic.BaseModel):
        name: str
        password: pydantic.SecretStr

    for value in (Login(name="ada", password="hidden"), {"name": "ada", "password": "hidden"}):
        with pytest.raises(InvalidArgumentError, match="hides a secret"):
            came_as(app, Login, value)
    assert came_as(app, Item, Item(name="**********", price=1)).name == "**********"


def test_a_model_without_an_annotation_says_to_annotate(app):
    for annotation, value in ((Any, ITEM), (list, [ITEM]), (dict, {"x": ITEM})):
        with pytest.raises(
            InvalidArgumentError, match=r"annotate the parameter with Item, or pass value\.model"
        ):
            came_as(app, annotation, value)


def test_a_model_as_a_result_without_an_annotation_is_its_json(app):
    expected = {"name": "cup", "price": "1.50", "colour": "red"}
    assert came_back(app, Any, ITEM) == expected
    assert came_back(app, dict, {"items": [ITEM]}) == {"items": [expected]}


def test_a_model_is_a_payload_of_a_queue():
    with penstock.connect("memory:") as queue:
        assert json.loads(queue.submit("task", ITEM).payload)["name"] == "cup"
        assert json.loads(queue.submit("task", {"at": Path("a"), "n": np.int64(3)}).payload) == {
            "at": "a",
            "n": 3,
        }
        with pytest.raises(InvalidArgumentError, match="finite"):
            queue.submit("task", {"n": np.float64(math.nan)})


def test_a_payload_that_no_longer_fits_the_model_is_a_permanent_failure(app):
    @app.job
    def pack(item: Item) -> None: ...

    with in_memory(app) as queue:
        job = queue.submit("pack", {"item": {"name": "cup", "price": "dear"}})
        assert drain(app).failed == 1
        ended = queue.get_job(job.id)
    assert ended.status is JobStatus.FAILED
    assert ended.error_category is penstock.FailureCategory.PERMANENT
    assert "item of" in ended.error_message
    assert "price: Input should be a valid decimal" in ended.error_message


def test_a_worker_gives_handlers_in_processes_their_models_and_paths(tmp_path, monkeypatch, make_app):
    (tmp_path / "shop_models.py").write_text(
        "import pathlib, numpy, pydantic, penstock\n"
        "app = penstock.App()\n"
        "class Item(pydantic.BaseModel):\n"
        "    name: str\n"
        "@app.job(retry=penstock.RetryPolicy(max_attempts=1))\n"
        "def pack(items: list[Item], folder: pathlib.Path, count) -> Item:\n"
        "    assert isinstance(folder, pathlib.Path) and type(count) is int\n"
        "    return Item(name='+'.join(each.name for each in items) + folder.name)\n"
        "@app.job(retry=penstock.RetryPolicy(max_attempts=1))\n"
        "def weigh(x: float):\n"
        "    return numpy.float64(x) * numpy.int64(2)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import shop_models  # just written

    shop_models.app.url = f"sqlite:///{tmp_path}/jobs.db"
    try:
        packed = shop_models.pack.submit(
            items=[shop_models.Item(name="a"), {"name": "b"}], folder=tmp_path / "box", count=np.int64(2)
        )
        weighed = shop_models.weigh.submit(x=np.float64(1.25))
        Worker(shop_models.app, concurrency=2).run(until_idle=True)
        assert packed.result(timeout=10) == shop_models.Item(name="a+bbox")
        assert weighed.result(timeout=10) == 2.5
        assert json.loads(shop_models.app.handle(packed.id).job().result) == {"name": "a+bbox"}
    finally:
        shop_models.app.close()
        del sys.modules["shop_models"]


def test_neither_numpy_nor_pydantic_is_imported_by_an_app_that_does_not():
    code = (
        "import sys, pathlib, penstock\n"
        "from penstock.testing import inline\n"
        "app = penstock.App()\n"
        "@app.job\n"
        "def work(path: pathlib.Path, n: int) -> dict: return {'n': n, 'p': path}\n"
        "with inline(app):\n"
        "    assert work.submit(path=pathlib.Path('a'), n=1).result() == {'n': 1, 'p': 'a'}\n"
        "    assert not {'numpy', 'pydantic'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# -- handles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("annotation", [str, Any, list[str], dict, Item], ids=str)
def test_a_handle_as_an_argument_says_what_to_pass_instead(app, annotation):
    @app.job
    def first() -> str:
        return "x"

    def second(source): ...

    second.__annotations__["source"] = annotation
    task = app.job(second)
    with in_memory(app) as queue:
        handle = first.submit()
        shape = {list: [handle], dict: {"x": handle}}
        given = shape.get(getattr(annotation, "__origin__", annotation), handle)
        with pytest.raises(InvalidArgumentError) as refused:
            task.submit(source=given)
        assert queue.get_job_stats().total_jobs == 1
    for word in ("handle.result()", "handle.id", "options(after=[handle])"):
        assert word in str(refused.value)
