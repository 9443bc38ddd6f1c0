"""``dewmark detector``: a folder that detects without the host model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dewmark.cli import options
from dewmark.cli.loading import NONE, load_key, load_scheme
from dewmark.cli.terminal import Progress, emit, write
from dewmark.errors import ConfigError, StorageError

__all__ = ["app"]

app = typer.Typer(help="Make a detector that needs no host model.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Make a detector that needs no host model."""


@app.command()
def export(
    key: options.KeyFile,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new or empty folder.")],
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write tokenizer, keyed table and encoder's name to a folder for: dewmark detect --detector DIR."""
    if scheme == NONE:
        raise ConfigError("scheme none leaves no mark to detect: name the scheme that marks")
    if out.exists() and not out.is_dir():
        raise StorageError(f"{out} is a file: name a new or empty folder")
    if out.is_dir() and any(out.iterdir()):
        raise StorageError(f"{out} is not empty and nothing in it is overwritten: name a new or empty folder")
    secret = load_key(key)
    with Progress(quiet=quiet) as progress:
        bound = load_scheme(secret, host=host, scheme=scheme, settings=settings, progress=progress)
        from dewmark.detector import Detector

        Detector(bound).save(out)
    if json_:
        emit(
            {
                "path": str(out),
                "fingerprint": bound.fingerprint,
                "scheme": bound.scheme.name,
            }
        )
    else:
        write(
            f"wrote {out}, key {bound.fingerprint}\n"
            "It is as secret as the key: who has it can detect, forge and remove the mark.\n"
        )
