"""``dewmark schemes``: every scheme with a summary, its requirements and its parameters.

The help of a parameter is the string below its field in the source of the class.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
import types
import typing
from typing import Annotated, Any

import typer

from dewmark.cli.options import Json
from dewmark.cli.terminal import emit, results
from dewmark.errors import ConfigError

_KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}


def schemes(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Explain its parameters.")] = None,
    json_: Json = False,
) -> None:
    """List the watermarking schemes, their parameters and requirements."""
    from rich.padding import Padding
    from rich.text import Text

    from dewmark.registry import SCHEMES

    rows = [_row(each) for each in ([name] if name is not None else SCHEMES)]
    if json_:
        for row in rows:
            emit(row)
        return
    if name is not None and "error" in rows[0]:
        raise ConfigError(f"scheme {name!r} {rows[0]['error']}")
    console = results()
    for row in rows:
        console.print(Text.assemble((row["name"], "bold"), f"  {row.get('error') or row['summary']}"))
        parameters = row.get("parameters", ())
        settings = [f"{each['name']}={_plain(each['default'])}" for each in parameters]
        below = [f"needs {', '.join(row['needs'])}".replace("_", " ")] if "needs" in row else []
        if name is None:
            below.append("  ".join(settings))
        for line in below:
            console.print(Padding(line, (0, 0, 0, 4)), soft_wrap=False)
        console.print()
        for each, setting in zip(parameters if name is not None else (), settings, strict=False):
            console.print(Text.assemble((setting, "bold"), f"  ({each['type']})"))
            console.print(Padding(each["help"], (0, 0, 1, 4)), soft_wrap=False)
    if name is None:
        console.print("dewmark schemes NAME explains the parameters; set them with --scheme NAME --set k=5.")


def _row(name: str) -> dict[str, Any]:
    """A scheme as plain values, or why it (from another package) cannot be loaded."""
    from dewmark.registry import SCHEMES

    try:
        scheme = SCHEMES[name]
    except (ImportError, AttributeError) as error:
        return {"name": name, "error": f"cannot be loaded: {error}"}
    hints, helps, needs = typing.get_type_hints(scheme), field_help(scheme), scheme().needs
    return {
        "name": name,
        "summary": scheme.summary,
        "needs": ["logits", *(need.name for need in dataclasses.fields(needs) if getattr(needs, need.name))],
        "parameters": [
            {
                "name": field.name.rstrip("_"),
                "type": _kind(hints[field.name]),
                "default": field.default,
                "help": helps.get(field.name, ""),
            }
            for field in dataclasses.fields(scheme)
        ],
    }


def field_help(kind: type) -> dict[str, str]:
    """The string below each field of a dataclass and its bases; empty if the source is not available."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(each)))
        except (OSError, TypeError, SyntaxError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, below in itertools.pairwise(body):
            match field, below:
                case (ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text)))):
                    found[name] = " ".join(text.replace("``", "").split())
    return found


def _kind(hint: Any) -> str:  # noqa: ANN401 - any field type
    """A field's type in words."""
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join("none" if each is type(None) else _kind(each) for each in typing.get_args(hint))
    return _KINDS.get(hint, str(getattr(hint, "__name__", hint)))


def _plain(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
