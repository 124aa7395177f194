"""What is printed: safe, plain in pipes, and in one shape for programs."""

import io
import json
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli import _output as output
from penstock.cli._fields import bytes_fields
from penstock.cli._text import clean, span, utc_time
from penstock.job import JobStatus

HOSTILE = [
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "a\r12:00 all is well",
    "line\nbreak",
    "tab\tstop",
    "\x9b31m",
    "\u202egnp.exe",
    "\u2066isolate",
    "zero\u200bwidth",
    "\ud800 lone",
    "nul\0",
    "[bold red]markup[/] :smile:",
]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@contextmanager
def terminal(**environment):
    """Let stdout look like a terminal, and give what was written to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NO_COLOR", raising=False)
        for name, value in {"TERM": "xterm-256color", "COLUMNS": "60", **environment}.items():
            patch.setenv(name, value)
        made = Terminal()
        patch.setattr(sys, "stdout", made)
        yield made


@given(st.text())
def test_cleaned_text_is_printable_and_one_line(text):
    shown = clean(text)
    assert shown.isprintable()
    assert shown == text or not text.isprintable()


@pytest.mark.parametrize("text", HOSTILE)
def test_what_jobs_hold_reaches_no_output_raw(capsys, text):
    output.emit_table(["id", "type"], [["1", text]])
    output.emit_facts([("error", text)])
    output.emit_json({"text": text})
    shown = capsys.readouterr().out
    lines = shown.split("\n")
    assert len(lines) == 5  # header, row, fact, object, and the end
    assert all(part.isprintable() for line in lines for part in line.split("\t"))
    assert json.loads(lines[3]) == {"text": text}


@pytest.mark.parametrize("text", HOSTILE)
def test_a_terminal_gets_it_escaped_as_well(text):
    with terminal(NO_COLOR="1") as screen:
        output.emit_table(["type"], [[text]])
        output.emit_facts([("error", text)])
    shown = screen.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert all(line.isprintable() for line in shown.split("\n"))
    assert shown.count(clean(text)) == 2


def test_a_terminal_shows_names_bold_and_what_they_name_plain():
    with terminal() as screen:
        output.emit_facts([("type", "resize"), ("status", JobStatus.FAILED)])
    assert "\x1b[1mtype    \x1b[0mresize\n" in screen.getvalue()


def test_a_terminal_has_no_column_without_a_value_and_no_spaces_at_the_end():
    with terminal(NO_COLOR="1") as screen:
        output.emit_table(["id", "tags", "error", "by"], [("1", "", None, "w"), ("2", "", "oh", None)])
        output.emit_table(["id", "tags"], [])
    shown = screen.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    assert [line.split() for line in shown] == [
        ["ID", "ERROR", "BY"],
        ["1", "w"],
        ["2", "oh"],
        ["ID", "TAGS"],
    ]
    assert shown[2] == shown[2].rstrip()


def test_a_last_column_of_numbers_is_as_wide_as_it_has_to_be():
    with terminal(NO_COLOR="1", TERM="xterm") as screen:
        output.emit_table(["name", "tries"], [("a", 1)], right=["tries"])
    assert screen.getvalue().splitlines()[1] == "a         1"


def test_a_terminal_has_colours_and_columns_no_wider_than_it():
    with terminal() as screen:
        output.emit_table(["id", "status", "error"], [["1", JobStatus.FAILED, "x" * 200]])
        output.emit_table(["id", "n"], [["a" * 70, 5]], right=["n"])
    shown = screen.getvalue()
    assert "a" * 70 in shown
    assert max(len(line) for line in shown.splitlines()[:1]) <= 60 + len("\x1b[1m\x1b[0m") * 3
    assert "\x1b[31mfailed" in shown
    assert "…" in shown
    assert "\t" not in shown


def test_no_color_is_respected():
    with terminal(NO_COLOR="1") as screen:
        output.emit_table(["status"], [[JobStatus.FAILED]])
    assert "\x1b[31m" not in screen.getvalue()


def test_a_dumb_terminal_is_a_pipe():
    with terminal(TERM="dumb") as screen:
        output.emit_table(["id", "status"], [["1", JobStatus.FAILED]])
    assert screen.getvalue() == "ID\tSTATUS\n1\tfailed\n"


def test_a_pipe_gets_whole_lines_with_tabs(capsys):
    output.emit_table(["id", "error"], [["1", "x" * 300], ["2", None]])
    assert capsys.readouterr().out == f"ID\tERROR\n1\t{'x' * 300}\n2\t\n"


def test_times_are_utc_and_durations_seconds(capsys):
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    output.emit_json({"at": moment, "for": timedelta(minutes=1), "status": JobStatus.RUNNING, "tags": ("a",)})
    assert json.loads(capsys.readouterr().out) == {
        "at": "2026-01-02T01:04:05.000000Z",
        "for": 60.0,
        "status": "running",
        "tags": ["a"],
    }


def test_bytes_are_text_or_base64_with_a_marker():
    assert bytes_fields("payload", "é".encode()) == {"payload": "é", "payload_encoding": "utf-8"}
    assert bytes_fields("payload", b"\xff") == {"payload": "/w==", "payload_encoding": "base64"}
    assert bytes_fields("result", None) == {"result": None, "result_encoding": None}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 ms"),
        (0.0123, "12 ms"),
        (3.44, "3.4 s"),
        (302, "5 min 2 s"),
        (7_380, "2 h 3 min"),
        (4 * 86_400 + 3_600, "4 d 1 h"),
        (-2, "-2.0 s"),
        (None, None),
    ],
)
def test_durations_are_in_the_unit_that_suits_them(seconds, text):
    assert span(seconds) == text


def test_moments_for_people_say_that_they_are_utc():
    assert utc_time(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02 03:04:05Z"
