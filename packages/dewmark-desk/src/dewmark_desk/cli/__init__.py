"""The commands of the desk, each in its own module, and what they share."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dewmark.cli.terminal import emit, write

text_option = functools.partial(typer.Option, metavar="TEXT")
url_option = functools.partial(typer.Option, metavar="URL")

TextFile = Annotated[str, typer.Argument(metavar="TEXTFILE | -", help="The text; - is standard input.")]
Signer = Annotated[
    Path,
    typer.Option("--signer", metavar="FILE.pem", help="Signing key (make one with: dewmark report key)."),
]


def show(row: Mapping[str, Any], line: str, *, as_json: bool) -> None:
    """Print a result: one object with --json, else one line."""
    if as_json:
        emit(row)
    else:
        write(f"{line}\n")
