"""Show `**options: Unpack[SomeOptions]` in the reference as its fields, those of base classes included.

An extension of griffe, named in mkdocs.yml. If a docstring describes `**options` itself, that stays, and only the fields
that the docstring describes are shown beside it. The extension that comes with griffe leaves out inherited fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

UNPACK = {"typing.Unpack", "typing_extensions.Unpack"}


class UnpackedOptions(griffe.Extension):
    """Replaces such parameters when a package has been loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for function in _functions(pkg):
            for parameter in list(function.parameters):
                annotation = parameter.annotation
                if isinstance(annotation, griffe.ExprSubscript) and annotation.canonical_path in UNPACK:
                    options = function.modules_collection[_path(annotation.slice)]
                    _unpack(function, parameter, _fields(options))


def _unpack(function: griffe.Function, parameter: griffe.Parameter, fields: dict[str, Any]) -> None:
    text = "" if function.docstring is None else function.docstring.value
    described = set(re.findall(r"^ +(\*{0,2}\w+):", text, re.MULTILINE))
    is_described = f"**{parameter.name}" in described
    del function.parameters[parameter.name]
    for name, annotation in fields.items():
        if not is_described or name in described:
            function.parameters.add(
                griffe.Parameter(
                    name, annotation=annotation, kind=griffe.ParameterKind.keyword_only, default="..."
                )
            )
    if is_described:
        function.parameters.add(parameter)


def _functions(thing: griffe.Module | griffe.Class) -> Iterator[griffe.Function]:
    for member in thing.members.values():
        if isinstance(member, griffe.Function):
            yield member
        elif isinstance(member, griffe.Module | griffe.Class):
            yield from _functions(member)


def _path(name: griffe.Expr | str) -> str:
    return name.canonical_path if isinstance(name, griffe.Expr) else name


def _fields(options: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in map(_path, options.bases):
        if not path.endswith("TypedDict"):
            found |= _fields(options.modules_collection[path])
    return found | {name: each.annotation for name, each in options.members.items() if each.is_attribute}
