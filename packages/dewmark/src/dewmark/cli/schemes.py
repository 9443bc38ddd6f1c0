"""``dewmark schemes``: every scheme with a summary, its requirements and its parameters.

The help of a parameter is the string below its field in the source of the class.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
import types
import typing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark.cli.options import Json, Quiet
from dewmark.cli.terminal import emit, results, write
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from dewmark.scheme import Scheme

_NEEDS = {
    "embeddings": "token embeddings",
    "encoder": "an encoder",
    "artifact": "a trained artifact",
    "host_at_detection": "the host at detection",
    "sampling": "sampling",
    "final_distribution": "the final distribution",
}
_KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}


def schemes(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Explain the parameters of one scheme.")
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the watermarking schemes, their parameters and requirements."""
    from dewmark.registry import SCHEMES

    rows = [_row(each) for each in ([name] if name is not None else SCHEMES)]
    if json_:
        for row in rows:
            emit(row)
        return
    console = results()
    if name is not None:
        _explain(console, rows[0])
        return
    for row in rows:
        _list(console, row)
    if not quiet:
        write("dewmark schemes NAME explains the parameters; set them with --scheme NAME --set k=5.\n")


def _row(name: str) -> dict[str, Any]:
    """A scheme as plain values, or why it (from another package) cannot be loaded."""
    from dewmark.registry import SCHEMES

    try:
        return describe(name, SCHEMES[name])
    except (ImportError, AttributeError) as error:
        return {"name": name, "error": f"cannot be loaded: {error}"}


def describe(name: str, scheme: type[Scheme]) -> dict[str, Any]:
    """A scheme as plain values."""
    hints, helps, needs = typing.get_type_hints(scheme), field_help(scheme), scheme().needs
    return {
        "name": name,
        "summary": scheme.summary,
        "needs": ["logits", *(need for need in _NEEDS if getattr(needs, need))],
        "parameters": [
            {
                "name": field.name.rstrip("_"),
                "type": _kind(hints[field.name]),
                "default": None if field.default is dataclasses.MISSING else field.default,
                "help": helps.get(field.name, ""),
            }
            for field in dataclasses.fields(scheme)
        ],
    }


@functools.cache
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
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                found[field.target.id] = " ".join(below.value.value.replace("``", "").split())
    return found


def _kind(hint: Any) -> str:  # noqa: ANN401 - any field type
    """A field's type in words."""
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join("none" if each is type(None) else _kind(each) for each in typing.get_args(hint))
    return _KINDS.get(hint, str(getattr(hint, "__name__", hint)))


def _list(console: Console, row: dict[str, Any]) -> None:
    """Print a scheme in a few lines."""
    from rich.text import Text

    about = row.get("error") or row["summary"]
    console.print(Text.assemble((row["name"], "bold"), f"  {about}"))
    if "error" not in row:
        settings = "  ".join(f"{each['name']}={_plain(each['default'])}" for each in row["parameters"])
        _indented(console, f"needs {_needs(row)}")
        _indented(console, settings)
    console.print()


def _explain(console: Console, row: dict[str, Any]) -> None:
    """Print a scheme with the help of each parameter."""
    from rich.text import Text

    if "error" in row:
        raise ConfigError(f"scheme {row['name']!r} {row['error']}")
    write(f"{row['name']}: {row['summary']}\nneeds {_needs(row)}\n")
    for each in row["parameters"]:
        setting = f"{each['name']}={_plain(each['default'])}"
        console.print(Text.assemble("\n", (setting, "bold"), f"  ({each['type']})"))
        if each["help"]:
            _indented(console, each["help"])


def _indented(console: Console, text: str) -> None:
    from rich.padding import Padding

    console.print(Padding(text, (0, 0, 0, 4)), soft_wrap=False)


def _needs(row: dict[str, Any]) -> str:
    return ", ".join(_NEEDS.get(need, need) for need in row["needs"])


def _plain(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
