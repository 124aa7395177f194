"""Urls of PostgreSQL: malformed ones are refused soon, and no error shows any part of a password."""

import logging
import re
import time
import traceback

import pytest

import penstock
from penstock.backends.drivers import list_migrations, migrate_store, migration_script
from penstock.backends.postgres import connection
from penstock.errors import BackendError, InvalidArgumentError, redacted, shown

#: No part of it is a word that an error would say by itself.
SECRET = "q7Xz9Kw3Vb"

MALFORMED = {
    "an @ in the password": f"postgresql://app:{SECRET}@{SECRET}@db.invalid/shop",
    "several @": f"postgresql://app:@{SECRET}@@{SECRET}@db.invalid/shop",
    "a slash in the password": f"postgresql://app:{SECRET}/{SECRET}@db.invalid/shop",
    "a question mark in the password": f"postgresql://app:{SECRET}?{SECRET}@db.invalid/shop",
    "a slash after digits": f"postgresql://app:12/{SECRET}@db.invalid/shop",
    "a question mark after digits": f"postgresql://app:12?{SECRET}@db.invalid/shop",
    "a lone %": f"postgresql://app:{SECRET}%@db.invalid/shop",
    "a bad %": f"postgresql://app:{SECRET}%zz@db.invalid/shop",
    "a NUL by %": f"postgresql://app:{SECRET}%00@db.invalid/shop",
    "a NUL": f"postgresql://app:{SECRET}\0@db.invalid/shop",
    "an open bracket": f"postgresql://app:{SECRET}@[::1/shop",
    "a bracket in the password": f"postgresql://app:{SECRET}@[{SECRET}@db.invalid/shop",
    "a bracket after the host": f"postgresql://app:{SECRET}@[::1]x/shop",
    "a space in the password": f"postgresql://app:{SECRET} {SECRET}@db.invalid/shop",
    "a space before": f" postgresql://app:{SECRET}@db.invalid/shop",
    "a space after": f"postgresql://app:{SECRET}@db.invalid/shop ",
    "a newline": f"postgresql://app:{SECRET}\n@db.invalid/shop",
    "a newline after": f"postgresql://app:{SECRET}@db.invalid/shop\n",
    "a tab": f"postgresql://app:{SECRET}\t@db.invalid/shop",
    "a lone surrogate": f"postgresql://app:{SECRET}\ud800@db.invalid/shop",
    "no host": f"postgresql://app:{SECRET}",
    "no host, but a path": f"postgresql://app:{SECRET}/shop",
    "a port that is no number": f"postgresql://app:{SECRET}@db.invalid:port/shop",
    "a port that is too high": f"postgresql://app:{SECRET}@db.invalid:65536/shop",
    "two ports": f"postgresql://app:{SECRET}@db.invalid:1:2/shop",
    "one slash": f"postgresql:/app:{SECRET}@db.invalid/shop",
    "no slash": f"postgresql:app:{SECRET}@db.invalid/shop",
    "no colon": f"postgresql//app:{SECRET}@db.invalid/shop",
    "no scheme": f"app:{SECRET}@db.invalid/shop",
    "no scheme, but slashes": f"//app:{SECRET}@db.invalid/shop",
    "nothing but a password": f":{SECRET}@db.invalid",
    "another scheme": f"postgresql+psycopg://app:{SECRET}@db.invalid/shop",
    "mysql": f"mysql://app:{SECRET}@db.invalid/shop",
    "sqlite with a host": f"sqlite://app:{SECRET}@db.invalid/shop",
    "sqlite with a bracket": f"sqlite://app:{SECRET}@[::1/shop",
    "memory with a host": f"memory://app:{SECRET}@db.invalid/shop",
    "an unknown parameter": f"postgresql://app:{SECRET}@db.invalid/shop?sslmod=off",
    "an unknown parameter after a password": f"postgresql://db.invalid/shop?password=x&{SECRET}=1",
    "an ampersand in a parameter": f"postgresql://db.invalid/shop?password=x&{SECRET}",
    "an equals sign in a parameter": f"postgresql://db.invalid/shop?password={SECRET}={SECRET}",
    "a bad % in a parameter": f"postgresql://db.invalid/shop?password={SECRET}%zz",
    "a parameter twice": f"postgresql://app:{SECRET}@db.invalid/shop?schema=a&schema=b",
    "a wrong pgbouncer": f"postgresql://app:{SECRET}@db.invalid/shop?pgbouncer=maybe",
    "a wrong connect_timeout": f"postgresql://app:{SECRET}@db.invalid/shop?connect_timeout=soon",
    "a wrong schema": f"postgresql://app:{SECRET}@db.invalid/shop?schema=A%20b",
    "key=value": f"host=db.invalid user=app password={SECRET} dbname=shop",
    "key=value, quoted": f"host=db.invalid password='{SECRET} {SECRET}'",
    "key = value": f"password = {SECRET}",
    "upper case": f"POSTGRESQL://app:{SECRET}@{SECRET}@db.invalid/shop",
    "postgres, upper case": f"Postgres://app:{SECRET}%zz@db.invalid/shop",
}
#: Well-formed, so that they get as far as the network, where nothing answers.
UNREACHABLE = {
    "refused": f"postgresql://app:{SECRET}@127.0.0.1:1/shop",
    "upper case": f"Postgres://app:{SECRET}@127.0.0.1:1/shop",
    "no such name": f"postgresql://app:{SECRET}@db.invalid/shop",
    "a backslash": f"postgresql://app:{SECRET}\\{SECRET}@127.0.0.1:1/shop",
    "escaped": f"postgresql://app:{SECRET}%40%2F%3A%25@127.0.0.1:1/shop",
    "in the query": f"postgresql://127.0.0.1:1/shop?user=app&password={SECRET}",
    "several hosts": f"postgresql://app:{SECRET}@127.0.0.1:1,127.0.0.1:2/shop",
    "an address": f"postgresql://app:{SECRET}@[::1]:1/shop",
}


def everything(error):
    """All that a program could print of an error."""
    facts = [getattr(error, name, None) for name in ("field", "value", "message", "args", "_facts")]
    return "".join(traceback.format_exception(error)) + repr(error) + repr(facts)


def parts(secret):
    return [secret[start : start + 4] for start in range(len(secret) - 3)]


def check_silent(text):
    assert not [part for part in parts(SECRET) if part in text], text


@pytest.mark.parametrize("url", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_url_is_refused_without_showing_its_password(url, caplog):
    """Section 3: at once, with a sentence, by everything that takes a url."""
    caplog.set_level(logging.DEBUG)
    for use in (penstock.open_backend, penstock.connect, list_migrations, migrate_store, migration_script):
        with pytest.raises(InvalidArgumentError) as caught:
            use(url)
            assert use is migration_script
            raise InvalidArgumentError("it reaches for no store")
        check_silent(everything(caught.value))
    check_silent(caplog.text)


@pytest.mark.parametrize("url", UNREACHABLE.values(), ids=UNREACHABLE)
def test_a_server_that_does_not_answer_is_named_without_its_password(url, caplog):
    """Section 3."""
    caplog.set_level(logging.DEBUG)
    for use in (lambda: penstock.open_backend(url, connect_timeout=0.2), lambda: list_migrations(url)):
        with pytest.raises(BackendError) as caught:
            use()
        check_silent(everything(caught.value))
    check_silent(caplog.text)


def test_the_scheme_may_be_in_upper_case(postgres_url, schema, open_store):
    """Section 3: Postgres:// is no other database."""
    open_store()
    for scheme in ("Postgres", "POSTGRESQL", "postgres"):
        with penstock.open_backend(postgres_url.replace("postgresql", scheme), schema=schema) as backend:
            assert backend.get_job_stats().total_jobs == 0
            check_silent(repr(backend) + backend.location)


@pytest.mark.parametrize("url", [*MALFORMED.values(), *UNREACHABLE.values()])
def test_a_value_that_is_shown_holds_no_password(url):
    """Section 3: the one place; also inside other values, as in a file with settings."""
    if "://" in url or "password" in url:
        check_silent(shown(url) + shown({"url": url}) + redacted(f"it is {url}"))


def test_what_holds_no_password_is_shown_as_it_is():
    for text in ("postgresql://db.example:5432/shop", "sqlite:///jobs.db", "http://[::1]:80/x", "a@b", "x:y"):
        assert redacted(text) == text


def silent_server():
    import socket

    return socket.create_server(("127.0.0.1", 0), backlog=1)


@pytest.mark.parametrize("way", ["option", "url"])
def test_a_server_that_is_silent_is_given_up_after_the_time_for_connecting(way):
    """Section 3: although a call may take longer."""
    with silent_server() as silent:
        url = f"postgresql://app@127.0.0.1:{silent.getsockname()[1]}/shop"
        options = {"connect_timeout": 0.3} if way == "option" else {}
        url += "?connect_timeout=0.3" if way == "url" else ""
        started = time.monotonic()
        with pytest.raises(BackendError, match="cannot be reached") as caught:
            penstock.open_backend(url, **options)
        assert caught.value.retryable
        assert time.monotonic() - started < 10


def test_a_scope_ends_the_wait_for_a_silent_server():
    """Q54."""
    with (
        silent_server() as silent,
        penstock.cancel_scope(timeout=0.3),
        pytest.raises(penstock.OperationCancelledError),
    ):
        penstock.open_backend(f"postgresql://app@127.0.0.1:{silent.getsockname()[1]}/shop")


def test_a_server_that_was_never_reached_is_given_up_after_five_seconds(monkeypatch):
    """Section 3: also by apps, which open at their first use; `connect_timeout` says otherwise."""
    assert connection._FIRST_CONNECT_SECONDS == 5
    monkeypatch.setattr(connection, "_FIRST_CONNECT_SECONDS", 0.3)
    with silent_server() as silent:
        url = f"postgresql://app@127.0.0.1:{silent.getsockname()[1]}/shop"
        for use in (lambda: penstock.connect(url), lambda: penstock.App(url).queue):
            with pytest.raises(BackendError, match="cannot be reached") as caught:
                use()
            (seconds,) = re.findall(r"no answer within ([0-9.]+) s", str(caught.value))
            assert float(seconds) <= 0.3
