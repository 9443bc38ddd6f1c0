"""``dewmark key``: make a key, show its fingerprint. The key itself is never printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, write
from dewmark.errors import ConfigError, InputError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dewmark.cli.unmarked import Negatives
    from dewmark.core.keys import Key
    from dewmark.stats.audit import Audit

__all__ = ["app"]

app = typer.Typer(help="Make a key, or show its fingerprint.", no_args_is_help=True)

_KEYS_AT_ONCE = 5  # most keys pass, so few are drawn ahead; the texts are read once for all of them


@app.command()
def new(
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where to write the key; must not exist.")
    ],
    more: Annotated[list[str] | None, typer.Argument(metavar="TEXTS", help="More files for --audit.")] = None,
    audit: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXTS…", help="Draw keys until one passes: dewmark audit --negatives TEXTS…"),
    ] = None,
    tries: Annotated[int, typer.Option(min=1, help="With --audit: the most keys to draw.")] = 20,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw a fresh key and write it to a file that only you can read (mode 0600)."""
    from dewmark.core.keys import Key

    if not audit:
        given = {"TEXTS": more, "--host": host, "--scheme": scheme, "--set": settings}
        unused = [name for name, value in given.items() if value]
        if unused:
            raise ConfigError(f"a key that is not audited needs no {', '.join(unused)}: add --audit TEXTS")
        key = Key.generate()
        key.save(out)
        _tell(out, key, json_=json_)
        return
    from dewmark.cli.unmarked import Negatives

    if out.exists():
        raise StorageError(f"{out} exists already and is not overwritten; choose another name")
    texts = Negatives.read([*audit, *(more or ())], option="--audit")
    with Progress(quiet=quiet) as progress:
        key, drawn, found = _draw(
            texts, tries=tries, host=host, scheme=scheme, settings=settings, progress=progress
        )
    key.save(out)
    _tell(out, key, drawn=drawn, found=found, json_=json_)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A key file.")],
    json_: options.Json = False,
) -> None:
    """Show a key's fingerprint, and nothing else of it."""
    from dewmark.core.keys import Key

    key = Key.load(file)
    if json_:
        emit({"path": str(file), "fingerprint": key.fingerprint})
    else:
        write(f"{key.fingerprint}\n")


def _draw(
    texts: Negatives,
    *,
    tries: int,
    host: str | None,
    scheme: str | None,
    settings: Sequence[str] | None,
    progress: Progress,
) -> tuple[Key, int, Audit]:
    """The first of at most ``tries`` fresh keys that passes, how many were looked at, and its audit."""
    from dewmark import config
    from dewmark.cli.loading import NONE
    from dewmark.cli.unmarked import audit_of
    from dewmark.core.keys import Key
    from dewmark.stats.audit import Outcome
    from dewmark.watermark import identify

    if scheme == NONE:
        raise ConfigError("scheme none has no key to audit: name the scheme that will mark")
    chosen: dict[str, Any] = {
        "host": host,
        "scheme": scheme,
        "settings": config.parse_settings(settings or ()),
    }
    audits: list[Audit] = []
    while len(audits) < tries:
        keys = [Key.generate() for _ in range(min(_KEYS_AT_ONCE, tries - len(audits)))]
        rows = identify(
            [entry.text for entry in texts.entries],
            keys,
            prompts=[entry.prompt for entry in texts.entries],
            progress=progress,
            **{name: value for name, value in chosen.items() if value is not None},
        )
        for i, key in enumerate(keys):
            found = audit_of(texts.judged([row.detections[i] for row in rows]))
            audits.append(found)
            if found.outcome is Outcome.PASSES:
                return key, len(audits), found
            if found.outcome is Outcome.CANNOT_TELL:
                raise InputError(f"no key can be shown to be good on these texts. {found.sentence}")
        progress("drawing keys", len(audits), tries)
    best = max(audits, key=lambda each: each.worst.corrected)
    raise InputError(f"none of {tries} keys passed and none was written; the best: {best.sentence}")


def _tell(out: Path, key: Key, *, drawn: int | None = None, found: Audit | None = None, json_: bool) -> None:
    if json_:
        extra = {} if found is None else {"drawn": drawn, "audit": found.to_dict()}
        emit({"path": str(out), "fingerprint": key.fingerprint, **extra})
        return
    write(f"wrote {out}, fingerprint {key.fingerprint}\n")
    if found is not None:
        write(f"Drew {drawn} {'key' if drawn == 1 else 'keys'}. {found.sentence}\n")
    write("Who has this file can detect, forge and remove the mark.\n")
