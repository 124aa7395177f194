"""Log records on stderr, one line per record."""

from __future__ import annotations

import logging

from penstock.logs import FORMATS, Format, JobFilter, configure

__all__ = ["FORMATS", "LEVELS", "log_everything", "log_to_stderr"]

LEVELS = ("debug", "info", "warning", "error")


def log_to_stderr(level: str, format: Format = "text") -> logging.Handler:
    """Log the library's records of this level and above to stderr."""
    return configure(format, level)


def log_everything(handler: logging.Handler, level: str, worker: str) -> None:
    """Log the records of other libraries too, unless the app has set up logging, and add the worker's name."""
    for each in handler.filters:
        if isinstance(each, JobFilter):
            each.worker = worker
    if not logging.root.handlers:
        logging.root.addHandler(handler)
        logging.root.setLevel(level.upper())
