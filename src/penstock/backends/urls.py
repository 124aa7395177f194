"""Reading the urls of stores.

A url is checked here before a database library sees it, since the library's error would quote the password. No error
raised here shows a part of the url that could be secret.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from penstock.errors import InvalidArgumentError, check_known, invalid, shown

__all__ = ["DEFAULT_SCHEMA", "displayed_location", "postgres_location", "scheme_of", "sqlite_location"]

#: The schema of a PostgreSQL store whose url names none.
DEFAULT_SCHEMA: Final = "penstock"

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,29}):")
_HOST: Final = re.compile(r"(?:\[[^\[\]/@]*\]|[^\[\]:/@]*)(?::(\d{0,5}))?")
_BAD_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
#: Parameters of a PostgreSQL url that are Penstock's; the others are passed to the server's client library.
_OWN: Final = ("schema", "pgbouncer", "connect_timeout")
#: Options that may stand in the query of a SQLite url.
_SQLITE_OPTIONS: Final = ("durability",)


def scheme_of(url: object) -> str:
    """Return the scheme of a url in lower case; "" if it has none.

    Raises:
        InvalidArgumentError: not a text that could be a url.
    """
    if not isinstance(url, str):
        raise InvalidArgumentError(f"url must be a string, got {shown(url)}", field="url")
    if "\0" in url:
        raise InvalidArgumentError("url must hold no NUL character", field="url")
    match = _SCHEME.match(url)
    return "" if match is None else match[1].lower()


def postgres_location(url: str) -> tuple[str, dict[str, Any]]:
    """Return a PostgreSQL url without Penstock's own parameters, and those as options of the store.

    The other parameters are checked by the client library, which refuses unknown ones.

    Raises:
        InvalidArgumentError: the url is malformed; says what to write instead.
    """
    rest = _rest(url)
    base, mark, query = rest.partition("?")
    authority, slash, database = base.partition("/")
    _check_authority(authority)
    if "@" in database:
        raise _malformed("there is an @ in its path; write @ as %40 and / as %2F in a password")
    parts = query.split("&") if mark else []
    if any(part.count("=") != 1 for part in parts):
        raise _malformed(
            "its query must be name=value, joined by &; write & as %26, = as %3D and ? as %3F in values"
        )
    theirs = [part for part in parts if part.partition("=")[0] not in _OWN]
    location = f"postgresql://{authority}{slash}{database}"
    return location + ("?" + "&".join(theirs) if theirs else ""), _own_options(parts)


def displayed_location(location: str, schema: str) -> str:
    """Return the url of a PostgreSQL store for people: without its password and without other parameters."""
    base, _, query = location.partition("://")[2].partition("?")
    authority, _, database = base.partition("/")
    credentials, _, hosts = authority.rpartition("@")
    given = {name: quote(value, safe="/,") for name, value in parse_qsl(query)}
    user = given.get("user") or credentials.partition(":")[0]
    user = f"{user}@" if user else ""
    database = given.get("dbname") or database
    host = given.get("host") or hosts or "localhost"
    if given.get("port"):
        host = f"{host}:{given['port']}"
    if unquote(host).startswith("/"):  # the folder of a socket
        return f"postgresql://{user}/{database}?host={unquote(host)}&schema={schema}"
    return f"postgresql://{user}{host}/{database}?schema={schema}"


def sqlite_location(url: str) -> tuple[str, dict[str, str]]:
    """Return the path that a SQLite url names, as written (":memory:" for `memory:`), and the options in it.

    Raises:
        InvalidArgumentError: the url is malformed, or has an unknown option.
    """
    if not url.isprintable() or "\0" in unquote(url):
        # urlsplit would drop line breaks and tabs in silence, and so name another file.
        raise InvalidArgumentError(
            f"url must have no control characters and no lone surrogates, got {shown(url)}", field="url"
        )
    try:
        parts = urlsplit(url)
        given = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        raise InvalidArgumentError("the SQLite url is malformed", field="url") from None
    options = dict(given)
    if len(options) < len(given):
        raise InvalidArgumentError(f"an option stands twice in the url {shown(url)}", field="url")
    if parts.fragment or parts.netloc:
        raise InvalidArgumentError(
            f"a SQLite url is sqlite:///file.db or sqlite:////absolute/file.db, got {shown(url)}", field="url"
        )
    path = ":memory:" if parts.scheme == "memory" else unquote(parts.path).removeprefix("/")
    if parts.scheme == "memory" and parts.path.strip("/"):
        raise InvalidArgumentError(f"memory: takes no path, got {shown(url)}", field="url")
    if parts.scheme != "memory" and path in ("", ":memory:"):
        raise InvalidArgumentError(
            f"a SQLite url names a file (sqlite:///file.db); memory: is the one without, got {shown(url)}",
            field="url",
        )
    check_known("option of a SQLite url", options, _SQLITE_OPTIONS, field="url")
    return path, options


def _rest(url: str) -> str:
    """Return what follows the scheme."""
    scheme = scheme_of(url)
    rest = url[len(scheme) + 1 :]
    if not rest.startswith("//"):
        raise _malformed("it must begin with postgresql://")
    rest = rest[2:]
    if not rest.isprintable() or " " in rest:
        raise _malformed(
            "it holds spaces, control characters or lone surrogates; percent-encode them (a space is %20)"
        )
    if _BAD_PERCENT.search(rest):
        raise _malformed(
            "a % must be followed by two hexadecimal digits that are not 00; write % itself as %25"
        )
    return rest


def _check_authority(authority: str) -> None:
    credentials, _, hosts = authority.rpartition("@")
    if "@" in credentials:
        raise _malformed(
            "there is more than one @ before the host; write @ as %40 in a user name or password"
        )
    for host in hosts.split(","):
        match = _HOST.fullmatch(host)
        if match is None or int(match[1] or 1) not in range(1, 65_536):
            raise _malformed(
                "a host must be name:port, or [address]:port for IPv6; "
                "write : as %3A, / as %2F, ? as %3F and @ as %40 in a user name or password"
            )


def _own_options(parts: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in parts:
        name, _, text = part.partition("=")
        if name not in _OWN:
            continue
        if name in found:
            raise InvalidArgumentError(f"{name} stands twice in the url", field="url", value=name)
        found[name] = _READERS[name](name, unquote(text))
    return found


def _text(_: str, text: str) -> str:
    return text


def _boolean(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise invalid(name, "true or false in the url", text)
    return text == "true"


def _number(name: str, text: str) -> float:
    if re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text) is None:
        raise invalid(name, "a number of seconds in the url", text)
    return float(text)


_READERS: Final = {"schema": _text, "pgbouncer": _boolean, "connect_timeout": _number}


def _malformed(why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the PostgreSQL url is malformed: {why}", field="url")
