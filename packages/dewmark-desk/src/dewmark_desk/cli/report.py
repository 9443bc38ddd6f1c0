"""``dewmark report``: signed detection reports, and checking what others have signed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, printable, save_text, say, write
from dewmark.errors import ConfigError, InputError, SignatureError, StorageError
from dewmark.types import Verdict
from dewmark_desk.cli import Signer, TextFile, show, text_option

if TYPE_CHECKING:
    from dewmark_desk.signing import Signed

app = typer.Typer(help="Sign detection reports, and verify signed documents.", no_args_is_help=True)


@app.command()
def key(
    out: Annotated[Path, typer.Option(metavar="FILE.pem", help="Write the signing key to this new file.")],
    json_: options.Json = False,
) -> None:
    """Make a key that signs reports, and its public half (.jwk) to hand out."""
    from dewmark_desk.signing import SigningKey

    public = out.with_suffix(".jwk")
    for path in (out, public):
        if path.exists():
            raise StorageError(f"{path} exists already and is not overwritten; choose another name")
    made = SigningKey.generate()
    made.save(out)
    made.public.save(public)
    line = f"wrote {out} and {public}, signer {made.public.id}"
    warning = f"Keep {out} secret: anyone with it can sign in your name. Publish {public}."
    row = {"out": str(out), "public": str(public), "signer": made.public.id}
    show(row, f"{line}\n{warning}", as_json=json_)


@app.command()
def sign(
    text: TextFile,
    signer: Signer,
    out: Annotated[Path, typer.Option(metavar="OUT.jws | -", help="Write the signed report here.")],
    key: options.KeyFiles = None,
    keys: options.KeyFolder = None,
    detector: options.Detector = None,
    reader: options.Reader = None,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    prompt: options.Prompt = None,
    fpr: options.FalsePositiveRate = 0.01,
    test: options.Test = None,
    issuer: Annotated[str | None, text_option(help="Who issues the report: a name or an address.")] = None,
    epoch: Annotated[str | None, text_option(help="Epoch of the key, if you rotate keys.")] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="OUT.html | -", help="Also write the report as a page to print.")
    ] = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Check a text for a mark and sign the result; the report has the text's hash, not the text."""
    from dewmark.batch import DetectorSpec, read_files
    from dewmark.config import parse_settings
    from dewmark.reports.detection_display import sentence
    from dewmark_desk.detection_report import REPORT, render_report, report_claims
    from dewmark_desk.signing import SigningKey, verify

    secret = SigningKey.load(signer)
    (row,) = read_files([text], prompt=prompt)
    if not row.text.strip():
        raise InputError(f"{text} is blank: there is nothing to report on")
    spec = DetectorSpec(
        keys=(*(key or ()), *((keys,) if keys is not None else ())),
        detector=detector,
        host=host,
        scheme=scheme,
        settings=parse_settings(settings or ()),
        fpr=fpr,
        test=test,
        coverage=True,
        reader=reader,
    )
    with Progress(quiet=quiet) as progress:
        scorer = spec.open(progress=progress)
        (scored,) = scorer([row])
    claims = report_claims(
        row.text,
        scored.row,
        scorer.bound,
        said=sentence(scored.detection),
        owner=Path(scored.key_file).stem if scored.key_file else (key[0].stem if key else None),
        epoch=epoch,
        issuer=issuer,
        name=None if text == "-" else Path(text).name,
    )
    document = secret.sign(claims, kind=REPORT)
    save_text(out, document + "\n")
    if html is not None:
        save_text(html, render_report(verify(document, [secret.public]), document))
    line = f"{Verdict(claims['verdict']).words}: {claims['sentence']}"
    show({"out": str(out), "signer": secret.public.id, "report": claims}, line, as_json=json_)
    say(f"wrote {out}, signed by {secret.public.id}", quiet=quiet)


@app.command("verify")
def verify_(
    document: Annotated[
        Path,
        typer.Argument(metavar="FILE.jws | PAGE.html", help="A signed report, its page, or a dossier."),
    ],
    signer: Annotated[
        list[Path],
        typer.Option(metavar="FILE.jwk", help="Public key that you trust (JWK or JWK set); repeatable."),
    ],
    text: Annotated[
        str | None,
        typer.Option(metavar="TEXTFILE", help="Also check that the report is about this text; - is stdin."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="OUT.html | -", help="Write a valid report as a page to print.")
    ] = None,
    json_: options.Json = False,
) -> None:
    """Check a signed document: exit code 0 if it is authentic, 1 if not.

    Files that the document names (a dossier's pages) are checked too, if they lie beside it.
    """
    from dewmark_desk.detection_report import REPORT, render_report, signed_document
    from dewmark_desk.signing import load_signers, verify

    trusted = [each for path in signer for each in load_signers(path)]
    try:
        content = document.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {document}: {getattr(error, 'strerror', None) or 'no text'}") from None
    try:
        page = document.suffix.lower() in (".html", ".htm")
        signed = verify((signed_document(content) or "") if page else content, trusted)
        if page:
            _check_page(signed, content)
        checked = _check_files(signed, document.parent)
        if text is not None:
            _check_text(signed, text)
    except SignatureError as error:
        invalid = {"document": str(document), "valid": False, "reason": str(error)}
        show(invalid, f"NOT VALID: {printable(str(error))}", as_json=json_)
        raise typer.Exit(1) from None
    if html is not None:
        if signed.kind != REPORT:
            raise ConfigError(f"--html shows a {REPORT}, and {document} is a {signed.kind}")
        save_text(html, content if page else render_report(signed, content.strip()))
    if json_:
        row = {"document": str(document), "valid": True, "kind": signed.kind, "signer": signed.signer}
        emit({**row, "files": checked, "text_checked": text is not None, "claims": signed.payload})
    else:
        _print(signed, checked, text)


@app.command()
def seal(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder, such as a public detector's page.")
    ],
    signer: Signer,
    quiet: options.Quiet = False,
) -> None:
    """Sign the files of a folder to be published, as seal.jws in it; dewmark report verify checks them."""
    from dewmark.storage import sha256_file
    from dewmark.version import __version__
    from dewmark_desk.detection_report import timestamp
    from dewmark_desk.signing import SigningKey

    secret, out = SigningKey.load(signer), folder / "seal.jws"
    files = [each for each in sorted(folder.glob("*")) if each.is_file() and each != out]
    if not files:
        raise InputError(f"{folder} is no folder with files: there is nothing to seal")
    sums = {each.name: sha256_file(each) for each in files}
    claims = {"document": "seal", "issued": timestamp(), "software": f"dewmark {__version__}", "files": sums}
    save_text(out, secret.sign(claims, kind="seal") + "\n")
    say(f"wrote {out}: {len(sums)} files, signed by {secret.public.id}", quiet=quiet)


def _check_page(signed: Signed, page: str) -> None:
    """Raise `SignatureError` if a report's page says anything else than the signed report in it."""
    from dewmark.version import __version__
    from dewmark_desk.detection_report import REPORT, render_report, signed_document

    if signed.kind != REPORT or signed.payload["software"] != f"dewmark {__version__}":
        raise SignatureError(
            "the signature is authentic, but this version cannot compare the page with it: save the signed "
            "lines at the end of the page as FILE.jws and verify that file"
        )
    if render_report(signed, signed_document(page) or "") != page:
        raise SignatureError("the page was changed: it does not show the report that was signed")


def _check_files(signed: Signed, folder: Path) -> list[str]:
    """The files named by a document that lie beside it; raises `SignatureError` if one was changed."""
    from dewmark.storage import sha256_file

    checked = []
    for name, digest in signed.payload.get("files", {}).items():
        path = folder / Path(name).name
        if path.is_file():
            if sha256_file(path) != digest:
                raise SignatureError(f"{path} is not the file that was signed")
            checked.append(str(path))
    return checked


def _check_text(signed: Signed, name: str) -> None:
    from dewmark.batch import read_files
    from dewmark_desk.detection_report import text_digest

    claimed = signed.payload.get("text")
    if not isinstance(claimed, dict):
        raise ConfigError(f"--text goes with a report on a text; this is a {signed.kind}")
    (row,) = read_files([name])
    if text_digest(row.text) != claimed.get("sha256"):
        raise SignatureError(f"the report is authentic, but it is not about {name}")


def _print(signed: Signed, checked: list[str], text: str | None) -> None:
    claims: dict[str, Any] = signed.payload
    write(f"valid: {signed.kind} signed by {signed.signer}, issued {claims.get('issued')}\n")
    if "verdict" in claims:
        found = claims["attribution"]
        key = f", key {found['key_fingerprint']}" if found else ""
        said = f"{Verdict(claims['verdict']).words} at level {claims['level']:g}{key}"
        write(printable(f"{said}: {claims['sentence']}\n"))
        write(printable(f"technique: {claims['technique']['scheme']}, {claims['technique']['test']} test\n"))
        about = "is" if text is not None else "is not checked: add --text TEXTFILE to compare"
        write(f"the text {about}{f' {text}' if text is not None else ''}\n")
    for name in checked:
        write(f"unchanged: {name}\n")
