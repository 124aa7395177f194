"""What a command says while it runs: one line a record, on stderr."""

from __future__ import annotations

import logging

from penstock.logs import FORMATS, Format, JobFilter, configure

__all__ = ["FORMATS", "LEVELS", "log_everything", "log_to_stderr"]

LEVELS = ("debug", "info", "warning", "error")


def log_to_stderr(level: str, format: Format = "text") -> logging.Handler:
    """Let the library's loggers write to stderr from this level on."""
    return configure(format, level)


def log_everything(handler: logging.Handler, level: str, worker: str) -> None:
    """Let everybody's records go there too, unless the app has set up logging itself; and name the worker."""
    for each in handler.filters:
        if isinstance(each, JobFilter):
            each.worker = worker
    if not logging.root.handlers:
        logging.root.addHandler(handler)
        logging.root.setLevel(level.upper())
