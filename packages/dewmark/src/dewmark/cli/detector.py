"""``dewmark detector``: a folder that detects without the host model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, write
from dewmark.errors import ConfigError, StorageError
from dewmark.registry import AUDITS, Registry

PAGES = Registry("page", {}, group="dewmark.pages", companion="dewmark-desk")
"""What writes the page of a public detector; dewmark-desk brings it."""

app = typer.Typer(help="Export a detector that needs no host model.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Export a detector that needs no host model."""


@app.command()
def export(
    key: options.KeyFile,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="A new or empty folder.")] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --public: a new or empty folder for a web page that detects in the browser, without a "
            "server (about 19 MB; dewmark-desk brings it).",
        ),
    ] = None,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    public: Annotated[
        bool,
        typer.Option(
            "--public",
            help="Export what may be published of the key: anyone can detect by it, and forge or remove what "
            "it detects, but makes no text attributable.",
        ),
    ] = False,
    reader: options.Reader = None,
    audit: Annotated[
        Path | None,
        typer.Option(
            metavar="AUDIT.json",
            help="Report of an audit of this key: the detector judges the languages in which it is trusted.",
        ),
    ] = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Export a detector to a folder, for: dewmark detect --detector DIR."""
    options.check_marks(scheme)
    folders = [each for each in (out, page) if each is not None]
    if not folders:
        raise ConfigError("no folder to write: give --out DIR, or --public with --page DIR")
    if page is not None and not public:
        raise ConfigError("a page is for everyone, and only a public detector may be: add --public")
    for folder in folders:
        if folder.is_dir() and any(folder.iterdir()):
            raise StorageError(f"{folder} is not empty and is not overwritten: name a new or empty folder")
    write_page = PAGES["detector"] if page is not None else None
    trust = AUDITS["trust"] if audit is not None else None
    with Progress(quiet=quiet) as progress:
        bound = options.open_detector(None, key, host, scheme, settings, reader=reader, progress=progress)
        from dewmark.capabilities import HasPublicDetector, capability
        from dewmark.detector import Detector
        from dewmark.scheme import reader_name

        if trust is not None:
            bound = trust(bound, audit)
        exported = capability(bound, HasPublicDetector).public() if public else bound
        if out is not None:
            Detector(exported).save(out)
        if write_page is not None:
            write_page(exported, page)
    if json_:
        emit(
            {
                "out": out and str(out),
                "page": page and str(page),
                "key_fingerprint": bound.fingerprint,
                "scheme": bound.scheme.name,
                "config_hash": bound.config_hash,
                "reader": reader_name(bound),
            }
        )
    else:
        advice = (
            "It may be published: anyone with it can detect the mark, and forge or remove what it detects, "
            "but make no text attributable to you.\n"
            if public
            else "Keep it as secret as the key: anyone with it can detect, forge and remove the mark.\n"
        )
        write(f"wrote {' and '.join(map(str, folders))}, key {bound.fingerprint}\n{advice}")
