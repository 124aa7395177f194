"""One run in a process of its own, in the product's environment; started by the command and by `measuring.py`.

python -m benchmarks.peers.child measure <module> <store> <place> <workload> <quick|full>    prints figures as JSON
python -m benchmarks.peers.child probe   <module> <store> <place> <workload> <quick|full>    the same of the raw store
python -m benchmarks.peers.child load <module> <store> <place> <finished> <delayed>
python -m benchmarks.peers.child work <module> <store> <place> <workload>                    until SIGTERM
python -m benchmarks.peers.child check <module>                                              prints the version as JSON
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.peers.measuring import Size, VoidError, measure, settle
from benchmarks.peers.product import Product


def main(verb: str, module: str, *rest: str) -> dict[str, Any]:
    """Do what the command line says; return what is printed."""
    imported = importlib.import_module(module)
    if verb == "probe":
        store, place, workload, size = rest
        return {**imported.PROBE(store, place).probe(workload, Size(size == "quick"))}
    kind: type[Product] = imported.PRODUCT
    if verb == "check":
        return {"version": version(kind.package) if kind.package else ""}
    store, place, *more = rest
    product = kind(store, place)
    match verb:
        case "measure":
            # So that workers end with it when the command gives up.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
            return {**measure(product, more[0], Size(more[1] == "quick"))}
        case "load":
            product.open()
            product.load_past(int(more[0]), int(more[1]))
            product.close()
            settle(product)
        case "work":
            product.work(more[0])
        case _:
            raise ValueError(verb)
    return {}


if __name__ == "__main__":
    try:
        answer = main(*sys.argv[1:])
    except (VoidError, PackageNotFoundError) as error:
        answer = {"error": f"{error}"}
    except Exception as error:
        if sys.argv[1] == "work":
            raise
        answer = {"error": f"{type(error).__name__}: {error}"[:400]}
    print("\n" + json.dumps(answer), flush=True)
