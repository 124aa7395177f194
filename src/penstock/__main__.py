"""`penstock`, and `python -m penstock`: the command line."""

from __future__ import annotations

import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line and exit; Ctrl-C during its import is handled as well."""
    try:
        from penstock.cli import run  # noqa: PLC0415  # see above

        code = run()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
