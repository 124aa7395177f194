"""Write docs/reference/cli.md and docs/reference/configuration.md from the commands themselves.

python tools/cli_docs.py            writes both pages
python tools/cli_docs.py --check    exits 1 if one is out of date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import typer

from penstock import cli
from penstock.cli._command import Setting, all_commands, settings, split_help
from penstock.cli._settings import SHARED

ROOT: Final = Path(__file__).resolve().parents[1]
COMMANDS_PAGE: Final = ROOT / "docs" / "reference" / "cli.md"
SETTINGS_PAGE: Final = ROOT / "docs" / "reference" / "configuration.md"
NOTICE: Final = "<!-- Made by tools/cli_docs.py from the commands; do not edit. -->"

COMMANDS_INTRO: Final = """\
# Command line

`penstock <command>`; `penstock <command> --help` says the same as this page.
`python -m penstock` is the same program.

Every option may also come from a variable or from a file: see [Configuration](configuration.md).
Which store: `--url`, else `PENSTOCK_URL`, else `url` in the file, else `sqlite:///penstock.db`.
Only `submit`, `worker` and `migrate` make a store that is not there; to any other command a place without a store is a mistake in the url.

A terminal gets aligned columns and colours, unless `NO_COLOR` is set or `TERM` is `dumb`.
A pipe gets a line for each row, with tabs between columns, nothing wrapped and nothing cut.
What jobs hold is other people's text: control characters, escape sequences and direction marks are shown escaped.

`--json` prints one object, or one a line for a list.
Its keys are stable: new ones may come, none goes without a new major version.
Times are ISO 8601 in UTC, durations are seconds.
Payload, result and checkpoint are text if they are UTF-8, else base64; `payload_encoding` and its like say which.
"""

SETTINGS_INTRO: Final = """\
# Configuration

Every option of every [command](cli.md) has three names:

| Where | Name | Example |
| --- | --- | --- |
| argument | `--option` | `penstock worker shop:app --stop-grace 10` |
| variable | `PENSTOCK_<COMMAND>_<OPTION>` | `PENSTOCK_WORKER_STOP_GRACE=10` |
| file | `[command]`, `option` | `[worker]`, `stop-grace = 10` |

An argument wins over a variable, a variable over the file, the file over the default.
An empty variable counts as none; a list in a variable is separated by commas or blanks.

## The file

`penstock.toml` in the working folder, or `[tool.penstock]` of the pyproject.toml there.
`penstock --config FILE` and `PENSTOCK_CONFIG` name another one.

```toml
url = "postgresql://shop@db.example/app"

[worker]
app = "shop.jobs:app"
concurrency = 8
tags = ["gpu"]

[pipeline.run]
lake = "lake"
interval = 60
```

Keys are the long names of the options; underscores do for hyphens.
A relative path means what it means on the command line: it starts at the working folder.
The file is checked as a whole before anything is done: an unknown key, or a value of the wrong type, is named with the file and the value, all of them at once, and the exit code is 2.

Above the tables may stand what several commands share, for those that do not say otherwise themselves: {shared}.
`url` also holds for apps that name no store of their own, as `PENSTOCK_URL` does.

## Variables without an option

| Variable | What it does |
| --- | --- |
| `PENSTOCK_URL` | the store for everything that names none: commands, `App()`, `penstock.connect()` |
| `PENSTOCK_CONFIG` | the file with settings |
| `PENSTOCK_WEBHOOK_SECRET` | signs what callback urls are told, see [Webhooks](../guides/webhooks.md) |
| `NO_COLOR` | if set: no colours |

## Options

Where a second variable stands, it is the short name of an option that several commands share, or that had it first.
"""


def commands_page() -> str:
    """Return the page about commands."""
    root: Any = typer.main.get_command(cli.app)
    parts = [NOTICE, "", COMMANDS_INTRO, "## Exit codes", "", "| Code | When |", "| --- | --- |"]
    parts += [f"| {code} | {when} |" for code, when in cli.EXIT_CODES.items()]
    parts += ["", "## Options of every command", "", *_option_table(_root_options(root))]
    for path, command in all_commands(root):
        text, examples = split_help(command)
        parts += ["", f"## penstock {' '.join(path)}", "", *_sentences(text), "", "```sh", *examples, "```"]
        rows = [(_names(each), _help(each)) for each in command.params if not each.hidden]
        if rows:
            parts += ["", *_option_table(rows)]
    return "\n".join(parts) + "\n"


def settings_page() -> str:
    """Return the page about variables and the file."""
    root: Any = typer.main.get_command(cli.app)
    shared = ", ".join(f"`{key}`" for key in SHARED)
    parts = [NOTICE, "", SETTINGS_INTRO.replace("{shared}", shared)]
    for path, command in all_commands(root):
        known = list(settings(command, path))
        if not known:
            continue
        parts += [
            f"### {' '.join(path)}",
            "",
            "| Option | Variable | Key | Type | Default |",
            "| --- | --- | --- | --- | --- |",
        ]
        parts += [_setting_row(each) for each in known]
        parts.append("")
    return "\n".join(parts)


def _setting_row(setting: Setting) -> str:
    variables = ", ".join(f"`{name}`" for name in setting.variables)
    key = f"`[{setting.table}] {setting.key}`"
    kind, default = _type(setting.parameter), _default(setting.parameter)
    return f"| {_names(setting.parameter, short=False)} | {variables} | {key} | {kind} | {default} |"


def _option_table(rows: Sequence[tuple[str, str]]) -> list[str]:
    return ["| Option | What it does |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows)]


def _root_options(root: Any) -> list[tuple[str, str]]:
    rows = [(_names(each), _help(each)) for each in root.params]
    return [*rows, ("`-h`, `--help`", "Show what a command does, with its options and examples.")]


def _names(parameter: Any, *, short: bool = True) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = sorted(parameter.opts, key=len)
    value = "" if _is_flag(parameter) else f" {parameter.metavar or _value(parameter)}"
    chosen = names if short else names[-1:]
    return ", ".join(f"`{name}{value if name == names[-1] else ''}`" for name in chosen)


def _help(parameter: Any) -> str:
    text = _escaped(str(parameter.help))
    default = _default(parameter)
    return f"{text} Default: {default}." if default and not _is_flag(parameter) else text


def _default(parameter: Any) -> str:
    value = parameter.default
    if value is None or value is False or value == []:
        return ""
    return f"`{getattr(value, 'value', value)}`"


def _type(parameter: Any) -> str:
    descriptor = parameter.type_descriptor
    if descriptor.choices:
        return " ".join(f"`{getattr(each, 'value', each)}`" for each in descriptor.choices)
    words = {"bool": "true or false", "int": "whole number", "float": "number"}
    name = parameter.bare_type()
    if descriptor.is_list:
        return "list of texts"
    return words.get(name, "text")


def _value(parameter: Any) -> str:
    words = {"int": "N", "float": "N"}
    name = str(max(parameter.opts, key=len)).lstrip("-").upper()
    return words.get(parameter.bare_type(), name)


def _is_flag(parameter: Any) -> bool:
    return bool(getattr(parameter, "is_flag", False))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _sentences(text: str) -> Iterator[str]:
    """Yield text with a sentence on each line."""
    for paragraph in text.split("\n\n"):
        yield from " ".join(paragraph.split()).replace(". ", ".\n").split("\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check both pages and return the exit code."""
    parser = argparse.ArgumentParser(description="Write the pages about the command line.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if something is out of date"
    )
    options = parser.parse_args(arguments)
    wanted = {COMMANDS_PAGE: commands_page(), SETTINGS_PAGE: settings_page()}
    stale = [
        file for file, text in wanted.items() if not file.exists() or file.read_text(encoding="utf-8") != text
    ]
    for file in stale:
        if options.check:
            print(f"{file.name} is out of date: run python tools/cli_docs.py", file=sys.stderr)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(wanted[file], encoding="utf-8")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
