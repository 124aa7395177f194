"""The products that there are: every module in `benchmarks/peers/products`, ours first."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

from benchmarks.peers import products
from benchmarks.peers.figures import OUR_NAME
from benchmarks.peers.product import Product


def list_products() -> list[type[Product]]:
    """Return all products, Penstock first, the others by name."""
    found: list[type[Product]] = [
        importlib.import_module(f"{products.__name__}.{module.name}").PRODUCT
        for module in pkgutil.iter_modules(products.__path__)
    ]
    return sorted(found, key=lambda kind: (kind.name != OUR_NAME, kind.name.lower()))


def choose_products(names: Iterable[str]) -> list[type[Product]]:
    """Return the products of these names, whatever their case, and always ours; all of them for no names.

    Raises:
        ValueError: there is no such product.
    """
    known = list_products()
    wanted = {name.lower() for name in names}
    unknown = wanted - {kind.name.lower() for kind in known}
    if unknown:
        raise ValueError(
            f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(kind.name for kind in known)}"
        )
    return [kind for kind in known if not wanted or kind.name.lower() in wanted or kind.name == OUR_NAME]


def runs_workload(kind: type[Product], workload: str) -> bool:
    """Return whether a product is measured in a workload."""
    match workload:
        case "w3p":
            return kind.isolated_jobs > 0
        case "w4":
            return kind.has_latency
        case "w5":
            return kind.has_past
    return True
