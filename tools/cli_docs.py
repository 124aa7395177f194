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
from penstock.cli._command import all_commands, settings, split_help
from penstock.cli._settings import DURATION, SHARED_KEYS

ROOT: Final = Path(__file__).resolve().parents[1]
COMMANDS_PAGE: Final = ROOT / "docs" / "reference" / "cli.md"
SETTINGS_PAGE: Final = ROOT / "docs" / "reference" / "configuration.md"
NOTICE: Final = "<!-- Made by tools/cli_docs.py from the commands; do not edit. -->"

COMMANDS_INTRO: Final = """\
# Command line

Run `penstock <command>`; `penstock <command> --help` prints the same text as this page.
`python -m penstock` is the same program.

Every option can also be set by a variable or in a file: see [Configuration](configuration.md).
The store is `--url`, else `PENSTOCK_URL`, else `url` in the file, else `sqlite:///penstock.db`.
Only `submit`, `worker` and `migrate` create a store; any other command treats a url without a store as an error.

Durations are written as `90s`, `5m`, `1h30m`, `1.5h`, `250ms` or `2d`; a number alone is seconds.

A terminal gets aligned columns and colours, unless `NO_COLOR` is set or `TERM` is `dumb`.
A pipe gets a line for each row, with tabs between columns, nothing wrapped and nothing cut.
The contents of jobs are untrusted text: control characters, escape sequences and direction marks are printed escaped.

The beginning of a job's id is enough where it is unique; ids that are read from stdin must be whole.
`penstock --install-completion` installs shell completion of commands, options and statuses.

`cancel`, `redrive`, `delete`, `list` and `journal` select jobs by the same options: `--type`, `--status`, `--tags`, `--key`, `--since`, `--until`, `--error`, `--all`.
All options that are given must match.
`cancel`, `redrive` and `delete` count the jobs that match and ask for confirmation. Without a terminal they need `--yes`; otherwise nothing is done and the exit code is 2. A selection by `--tags` alone needs no `--yes`.

`--json` prints one object, or for a list one object per line.
Its keys are stable: new keys may be added, and none is removed without a new major version.
Times are ISO 8601 in UTC, durations are seconds.
Payload, result and checkpoint are text if they are UTF-8, else base64; `payload_encoding`, `result_encoding` and `checkpoint_encoding` are the encoding.
"""

SETTINGS_INTRO: Final = """\
# Configuration

Every option of every [command](cli.md) has three names:

| Where | Name | Example |
| --- | --- | --- |
| argument | `--option` | `penstock worker shop:app --stop-grace 10` |
| variable | `PENSTOCK_<COMMAND>_<OPTION>` | `PENSTOCK_WORKER_STOP_GRACE=10` |
| file | `[command]`, `option` | `[worker]`, `stop-grace = 10` |

An argument takes precedence over a variable, a variable over the file, the file over the default.
An empty variable is ignored; a list in a variable is separated by commas or spaces.

## The file

`penstock.toml` in the working folder, or `[tool.penstock]` of the pyproject.toml there.
`penstock --config FILE` and `PENSTOCK_CONFIG` name another file.

```toml
url = "postgresql://shop@db.example/app"

[worker]
app = "shop.jobs:app"
concurrency = 8
tags = ["gpu"]

[pipeline.run]
lake = "lake"
interval = "1h30m"
```

Keys are the long names of the options, with hyphens or underscores.
A duration is a number of seconds or text such as `"90s"`, `"5m"`, `"1h30m"` or `"2d"`.
A relative path starts at the working folder, as on the command line, also in `url` (`sqlite:///jobs.db`) and also if the file is in another folder.
The whole file is checked before a command runs: one error names every unknown key and every wrong value, and the exit code is 2.

Keys above the tables apply to every command that has the option and does not set it in its own table: {shared}.

## Which store

Every command, `App()` and `penstock.connect()` choose the store in this order:

1. the url that is given: `--url`, `App("…")`, `connect("…")`;
2. `PENSTOCK_URL`;
3. `url` in the file that `PENSTOCK_CONFIG` names, else in `penstock.toml` in the working folder, else in `[tool.penstock]` of the `pyproject.toml` there;
4. `sqlite:///penstock.db`, a file in the working folder.

A program reads the file when it opens its store, and uses only `url`.
If the file cannot be read, is not valid TOML, or its `url` is not a text, an `InvalidArgumentError` names the file and the key.
A worker names its store in its first log line, and `penstock doctor` names the store that it checks.

## Variables without an option

| Variable | What it does |
| --- | --- |
| `PENSTOCK_URL` | the store of commands, `App()` and `penstock.connect()` that name none |
| `PENSTOCK_CONFIG` | the settings file |
| `PENSTOCK_WEBHOOK_SECRET` | signs the requests to callback urls, see [Webhooks](../guides/webhooks.md) |
| `NO_COLOR` | if set: no colours |

## Options

A second variable is a shorter name; several commands may read it.
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
    shared = ", ".join(f"`{key}`" for key in SHARED_KEYS)
    parts = [NOTICE, "", SETTINGS_INTRO.replace("{shared}", shared)]
    for path, command in all_commands(root):
        known = settings(command)
        if not known:
            continue
        parts += [
            f"### {' '.join(path)}",
            "",
            "| Option | Variable | Key | Type | Default |",
            "| --- | --- | --- | --- | --- |",
        ]
        parts += [_setting_row(each, ".".join(path)) for each in known]
        parts.append("")
    return "\n".join(parts)


def _setting_row(parameter: Any, table: str) -> str:
    variables = ", ".join(f"`{name}`" for name in parameter.variables)
    key = f"`[{table}] {parameter.key}`"
    return f"| {_names(parameter, short=False)} | {variables} | {key} | {_type(parameter)} | {_default(parameter)} |"


def _option_table(rows: Sequence[tuple[str, str]]) -> list[str]:
    return ["| Option | What it does |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows)]


def _root_options(root: Any) -> list[tuple[str, str]]:
    rows = [(_names(each), _help(each)) for each in root.params]
    return [*rows, ("`-h`, `--help`", "Print what a command does, with its options and examples.")]


def _names(parameter: Any, *, short: bool = True) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = sorted(parameter.opts, key=len)
    value = "" if _is_flag(parameter) else f" {parameter.value_name}"
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
    if parameter.metavar == DURATION:
        return "duration"
    if descriptor.is_list:
        return "list of texts"
    return words.get(name, "text")


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
