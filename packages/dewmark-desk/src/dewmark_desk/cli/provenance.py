"""``dewmark provenance``: sign a C2PA manifest into a text, and read manifest and mark together."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, write

app = typer.Typer(help="C2PA manifests in texts, beside the mark.", no_args_is_help=True)

Text = Annotated[str, typer.Argument(metavar="TEXTFILE | -", help="The text; - is standard input.")]


@app.command()
def sign(
    text: Text,
    key: options.KeyFile,
    certificate: Annotated[
        Path, typer.Option(metavar="CHAIN.pem", help="Your certificate chain, your own certificate first.")
    ],
    certificate_key: Annotated[
        Path, typer.Option(metavar="KEY.pem", help="The private key of your certificate, unencrypted.")
    ],
    model: Annotated[str, typer.Option(metavar="NAME", help="The model that wrote the text.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write here instead of to stdout.")] = None,
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
        out.write_text(signed, encoding="utf-8")


@app.command()
def check(
    text: Text,
    key: options.KeyFile,
    roots: Annotated[
        Path | None, typer.Option(metavar="ROOTS.pem", help="Certificates under which signers are trusted.")
    ] = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Verify the manifest of a text, look for the key's mark, and say what both say together."""
    from dewmark.batch import read_files
    from dewmark.detector import detect_texts
    from dewmark_desk.text_manifest import compared, read_manifest

    (row,) = read_files([text])
    manifest = read_manifest(row.text, roots=roots)
    with Progress(quiet=quiet) as progress:
        bound = options.open_detector(None, key, None, None, None, reader=None, progress=progress)
        (found,) = detect_texts(bound, [manifest.text])
    said = compared(manifest, found)
    if json_:
        fields = {name: value for name, value in dataclasses.asdict(manifest).items() if name != "text"}
        emit({"manifest": fields, "mark": found.to_dict(), "together": said})
    else:
        write(f"manifest: {manifest.state}\nmark: {found}\n{said}\n")
