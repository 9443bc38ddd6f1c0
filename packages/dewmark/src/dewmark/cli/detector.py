"""``dewmark detector``: a folder that detects without the host model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, write
from dewmark.errors import StorageError

app = typer.Typer(help="Export a detector that needs no host model.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Export a detector that needs no host model."""


@app.command()
def export(
    key: options.KeyFile,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new or empty folder.")],
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    public: Annotated[
        bool,
        typer.Option(
            "--public",
            help="Export the half of the key that may be published: anyone can detect by it and forge only "
            "it, which makes no text attributable.",
        ),
    ] = False,
    reader: options.Reader = None,
    audit: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|audit.json",
            help="Report of an audit of this key: the detector judges the languages in which it is trusted.",
        ),
    ] = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Export a detector to a folder, for: dewmark detect --detector DIR."""
    options.check_marks(scheme)
    if out.exists() and not out.is_dir():
        raise StorageError(f"{out} is a file: name a new or empty folder")
    if out.is_dir() and any(out.iterdir()):
        raise StorageError(f"{out} is not empty and is not overwritten: name a new or empty folder")
    with Progress(quiet=quiet) as progress:
        bound = options.open_detector(None, key, host, scheme, settings, reader=reader, progress=progress)
        from dewmark.batch.audit_report import AuditReport
        from dewmark.capabilities import HasPublicHalf, capability
        from dewmark.detector import Detector
        from dewmark.scheme import reader_name

        if audit is not None:
            bound = AuditReport.load(audit).applied(bound)
        Detector(capability(bound, HasPublicHalf).public() if public else bound).save(out)
    if json_:
        emit(
            {
                "out": str(out),
                "key_fingerprint": bound.fingerprint,
                "scheme": bound.scheme.name,
                "config_hash": bound.config_hash,
                "reader": reader_name(bound),
            }
        )
    else:
        advice = (
            "It may be published: anyone with it can detect the mark and forge half of it, but not attribute "
            "a text to you.\n"
            if public
            else "Keep it as secret as the key: anyone with it can detect, forge and remove the mark.\n"
        )
        write(f"wrote {out}, key {bound.fingerprint}\n{advice}")
