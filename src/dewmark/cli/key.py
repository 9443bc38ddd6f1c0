"""``dewmark key``: make a key, or show its fingerprint. The key itself is never printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, write
from dewmark.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from dewmark.core.keys import Key
    from dewmark.stats.audit import Audit

app = typer.Typer(help="Make a key, or show its fingerprint.", no_args_is_help=True)


@app.command()
def new(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Write the key to this new file.")],
    more: Annotated[list[str] | None, typer.Argument(metavar="TEXTS", help="More files for --audit.")] = None,
    audit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXTS…",
            help="Draw keys until one passes an audit on these unmarked texts, or on packaged ones.",
        ),
    ] = None,
    tries: Annotated[int, typer.Option(min=1, help="With --audit: maximum number of keys to draw.")] = 20,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw a new key and write it to a file that only you can read (mode 0600)."""
    from dewmark.config import parse_settings
    from dewmark.core.keys import Key

    if not audit:
        given = {"TEXTS": more, "--host": host, "--scheme": scheme, "--set": settings}
        unused = [name for name, value in given.items() if value]
        if unused:
            raise ConfigError(f"without an audit a key needs no {', '.join(unused)}: add --audit TEXTS")
        key = Key.generate()
        key.save(out)
        _print(out, key, json_=json_)
        return
    from dewmark.batch import Negatives, draw_key

    if out.exists():
        raise StorageError(f"{out} exists already and is not overwritten; choose another name")
    texts = Negatives.read([*audit, *(more or ())])
    with Progress(quiet=quiet) as progress:
        key, drawn, found = draw_key(
            texts,
            tries=tries,
            host=host,
            scheme=scheme,
            settings=parse_settings(settings or ()),
            progress=progress,
        )
    key.save(out)
    _print(out, key, drawn=drawn, found=found, json_=json_)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A key file.")],
    json_: options.Json = False,
) -> None:
    """Show a key's fingerprint, and nothing else."""
    from dewmark.core.keys import Key

    key = Key.load(file)
    if json_:
        emit({"key_file": str(file), "key_fingerprint": key.fingerprint})
    else:
        write(f"{key.fingerprint}\n")


def _print(out: Path, key: Key, *, drawn: int | None = None, found: Audit | None = None, json_: bool) -> None:
    if json_:
        extra = {} if found is None else {"drawn": drawn, "audit": found.to_dict()}
        emit({"out": str(out), "key_fingerprint": key.fingerprint, **extra})
        return
    write(f"wrote {out}, fingerprint {key.fingerprint}\n")
    if found is not None:
        write(f"Drew {drawn} {'key' if drawn == 1 else 'keys'}. {found.sentence}\n")
    write("Keep it secret: anyone with this file can detect, forge and remove the mark.\n")
