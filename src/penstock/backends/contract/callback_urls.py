"""What a callback url must be: checked when it is given, and again before it is called."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidArgumentError, shown

if TYPE_CHECKING:
    from urllib.parse import SplitResult

__all__ = ["DEFAULT_PORTS", "check_callback_url", "split_callback_url"]

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_UNSAFE: Final = re.compile(r"[\x00-\x20\x7f\\]")


def split_callback_url(url: str) -> SplitResult:
    """Return a url that could be called, in its parts.

    Raises:
        ValueError: it can never be called; the text says why.
    """
    from urllib.parse import urlsplit  # noqa: PLC0415  # few jobs have a callback

    if _UNSAFE.search(url):
        raise ValueError("it holds spaces, backslashes or control characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"it is malformed: {error}") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise ValueError(f"it must begin with http:// or https://, not {shown(parts.scheme)}")
    if not parts.hostname:
        raise ValueError("it names no host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it must hold no user name or password")
    if port == 0:
        raise ValueError("port 0 is none")
    return parts


def check_callback_url(value: str) -> str:
    """Return a callback url that could be called.

    Whether the policy of a worker allows it is checked where it is called.

    Raises:
        InvalidArgumentError: it can never be called.
    """
    try:
        split_callback_url(value)
    except ValueError as error:
        raise InvalidArgumentError(
            f"callback_url must be an http or https url: {error}; got {shown(value)}",
            field="callback_url",
            value=value,
        ) from None
    return value
