"""``dewmark key``: make a key, give it a new epoch, or show its fingerprint. Keys are never printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, write
from dewmark.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from dewmark.core.keys import Key

app = typer.Typer(help="Make a key, rotate it, or show its fingerprint.", no_args_is_help=True)


@app.command()
def new(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Write the key to this new file.")],
    more: Annotated[list[str] | None, typer.Argument(metavar="TEXTS", help="More files for --audit.")] = None,
    audit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXTS…",
            help="Draw keys until one passes an audit on these unmarked texts (packaged: the package's).",
        ),
    ] = None,
    tries: Annotated[int, typer.Option(min=1, help="With --audit: maximum number of keys to draw.")] = 20,
    ring: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Make a ring of N members, each with its own mark: up to 16, or 16 times a power of two.",
        ),
    ] = 1,
    payload_bits: Annotated[int, typer.Option(min=0, help="Let texts carry this many bits, up to 16.")] = 0,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw a new key and write it to a file that only you can read (mode 0600)."""
    from dewmark.config import parse_settings
    from dewmark.core.keys import Key

    drawn, found = 1, None
    if not audit:
        given = {"TEXTS": more, "--host": host, "--scheme": scheme, "--set": settings}
        if unused := [name for name, value in given.items() if value]:
            raise ConfigError(f"without an audit a key needs no {', '.join(unused)}: add --audit TEXTS")
        key = Key.ring(ring, payload_bits=payload_bits)
    elif ring > 1 or payload_bits:
        raise ConfigError("an audit judges one plain key: leave out --ring and --payload-bits, or --audit")
    elif out.exists():
        raise StorageError(f"{out} exists already and is not overwritten; choose another name")
    else:
        from dewmark.registry import AUDITS

        texts = AUDITS["negatives"].read([*audit, *(more or ())])
        with Progress(quiet=quiet) as progress:
            key, drawn, found = AUDITS["draw"](
                texts,
                tries=tries,
                host=host,
                scheme=scheme or "dew",
                settings=parse_settings(settings or ()),
                progress=progress,
            )
    key.save(out)
    if json_:
        extra = {} if found is None else {"drawn": drawn, "audit": found.to_dict()}
        emit({"out": str(out), "key_fingerprint": key.fingerprint, **_about(key), **extra})
        return
    write(f"wrote {out}, fingerprint {key.fingerprint}{_described(key)}\n")
    if found is not None:
        write(f"Drew {drawn} {'key' if drawn == 1 else 'keys'}. {found.sentence}\n")
    write("Keep it secret: anyone with this file can detect, forge and remove the mark.\n")


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A key file.")], json_: options.Json = False
) -> None:
    """Show a key's fingerprint, and its ring and epochs if it has any; nothing secret."""
    from dewmark.core.keys import Key

    key = Key.load(file)
    if json_:
        emit({"key_file": str(file), "key_fingerprint": key.fingerprint, **_about(key)})
        return
    write(f"{key.fingerprint}{_described(key)}\n")
    for old in reversed(key.retired):
        write(f"{old.fingerprint}{_described(old)}, detects only\n")


@app.command()
def rotate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A key file, which gets a new epoch.")],
    epoch: Annotated[
        str | None, typer.Option(metavar="NAME", show_default="today", help="Name of the new epoch.")
    ] = None,
    ring: Annotated[
        int | None, typer.Option(min=1, metavar="N", show_default="as before", help="Size of the new ring.")
    ] = None,
    json_: options.Json = False,
) -> None:
    """Begin a new epoch: a fresh secret marks from now on, and the old ones only detect."""
    from dewmark.core.keys import Key

    key = Key.load(file).rotated(epoch, members=ring)
    key.save(file, overwrite=True)
    if json_:
        emit({"key_file": str(file), "key_fingerprint": key.fingerprint, **_about(key)})
        return
    write(
        f"{file} is now epoch {key.epoch}, fingerprint {key.fingerprint}; texts of "
        f"{len(key.retired)} earlier {'epoch is' if len(key.retired) == 1 else 'epochs are'} still detected\n"
    )


def _about(key: Key) -> dict[str, object]:
    return {
        "members": key.members,
        "payload_bits": key.payload_bits,
        "epoch": key.epoch,
        "retired": [{"epoch": old.epoch, "key_fingerprint": old.fingerprint} for old in key.retired],
    }


def _described(key: Key) -> str:
    parts = [] if key.epoch is None else [f"epoch {key.epoch}"]
    parts += [f"ring of {key.members}"] if key.members > 1 else []
    parts += [f"payloads of {key.payload_bits} bits"] if key.payload_bits else []
    return "".join(f", {part}" for part in parts)
