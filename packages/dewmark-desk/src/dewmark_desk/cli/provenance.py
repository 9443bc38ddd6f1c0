"""``dewmark provenance``: sign a C2PA manifest into a text that is there already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import save_text, write
from dewmark_desk.cli import TextFile

app = typer.Typer(help="C2PA manifests in texts, beside the mark.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """C2PA manifests in texts, beside the mark."""


@app.command()
def sign(
    text: TextFile,
    key: options.KeyFile,
    certificate: Annotated[
        Path, typer.Option(metavar="CHAIN.pem", help="Your certificate chain, your own certificate first.")
    ],
    certificate_key: Annotated[
        Path, typer.Option(metavar="KEY.pem", help="The private key of your certificate, unencrypted.")
    ],
    model: Annotated[str, typer.Option(metavar="NAME", help="The model that wrote the text.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE | -", help="Write here instead of to stdout.")
    ] = None,
) -> None:
    """Append a signed manifest to a text, as characters that no reader sees; it names the key's mark."""
    from dewmark.batch import read_files
    from dewmark_desk.text_manifest import Provider, sign_text

    fingerprint = options.load_key(key).fingerprint
    (row,) = read_files([text])
    provider = Provider(certificate, certificate_key)
    signed = sign_text(row.text, provider, model=model, scheme="dew", fingerprint=fingerprint)
    if out is None:
        write(signed + "\n")
    else:
        save_text(out, signed)
