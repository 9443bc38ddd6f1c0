"""``dewmark key``: make a key, show its fingerprint. The key itself is never printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dewmark.cli.console import emit, write
from dewmark.cli.options import Json

__all__ = ["app"]

app = typer.Typer(help="Make a key, or show its fingerprint.", no_args_is_help=True)


@app.command()
def new(
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where to write the key; must not exist.")
    ],
    json_: Json = False,
) -> None:
    """Draw a fresh key and write it to a file that only you can read (mode 0600)."""
    from dewmark.core.keys import Key

    key = Key.generate()
    key.save(out)
    if json_:
        emit({"path": str(out), "fingerprint": key.fingerprint})
    else:
        write(
            f"wrote {out}, fingerprint {key.fingerprint}\n"
            "Who has this file can detect, forge and remove the mark.\n"
        )


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A key file.")],
    json_: Json = False,
) -> None:
    """Show a key's fingerprint, and nothing else of it."""
    from dewmark.core.keys import Key

    key = Key.load(file)
    if json_:
        emit({"path": str(file), "fingerprint": key.fingerprint})
    else:
        write(f"{key.fingerprint}\n")
