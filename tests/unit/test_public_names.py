"""What can be imported from `penstock` is written down, sorted and whole."""

import importlib
import pkgutil

import pytest

import penstock
import penstock.testing
from penstock import errors, job, policy, scope

MODULES = [
    f"penstock.{name}"
    for name in (
        "backends",
        "clock",
        "app",
        "backends.drivers",
        "errors",
        "events",
        "job",
        "lifecycle",
        "policy",
        "queue",
        "scope",
        "testing",
    )
]


def test_the_list_is_sorted_without_repeats():
    assert sorted(set(penstock.__all__)) == penstock.__all__


@pytest.mark.parametrize("name", penstock.__all__)
def test_every_name_is_there_and_documented(name):
    value = getattr(penstock, name)
    assert (value.__doc__ or "").strip()


def test_every_public_name_of_the_package_is_in_the_list():
    found = {name for name, value in vars(penstock).items() if not name.startswith("_")}
    submodules = {module.name for module in pkgutil.iter_modules(penstock.__path__)}
    helpers = {"Any", "TYPE_CHECKING"}
    assert found - submodules - helpers == set(penstock.__all__)


def test_every_error_is_exported():
    assert set(errors.__all__) <= set(penstock.__all__)


def test_the_names_of_the_design_are_exported():
    wanted = {"Job", "JobStatus", "JobState", "JobStats", "Key", "Priority"} & set(job.__all__)
    wanted |= {"RetryPolicy", "Timeouts", "FailureCategory", "TemporaryError", "PermanentError"} & set(
        policy.__all__
    )
    wanted |= {"CancelScope", "cancel_scope"} & set(scope.__all__)
    assert len(wanted) == 13
    assert wanted | {"Backend", "open_backend"} <= set(penstock.__all__)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_lists_names_that_exist(module):
    loaded = importlib.import_module(module)
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []
    assert len(set(loaded.__all__)) == len(loaded.__all__)


def test_importing_star_gives_the_list():
    namespace: dict[str, object] = {}
    exec("from penstock import *", namespace)
    assert set(namespace) - {"__builtins__"} == set(penstock.__all__)
