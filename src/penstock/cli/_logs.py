"""What a command says while it runs: one line a record, on stderr."""

from __future__ import annotations

import logging

__all__ = ["LEVELS", "log_to_stderr"]

LEVELS = ("debug", "info", "warning", "error")


class _OneLine(logging.Formatter):
    """Shows control characters escaped: a job's text must not forge lines or move the cursor."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        record.message = "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode()
            for character in record.message
        )
        return super().formatMessage(record)


def log_to_stderr(level: str) -> None:
    """Let the library's loggers write to stderr from this level on."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("penstock")
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
