"""``dewmark comply``: measure a deployment and write a signed dossier for Article 50 of the EU AI Act."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, save_text, say
from dewmark.errors import ConfigError
from dewmark_desk.cli import Signer, show, text_option, url_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dewmark.batch.inputs import Document
    from dewmark.hosts.base import ChatFormat


def comply(
    key: options.KeyFile,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Write the dossier here; a stopped run is resumed.")
    ],
    signer: Signer,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    temperature: options.Temperature = 1.0,
    top_p: options.TopP = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Keep the k most likely tokens; 0 keeps all.")] = 0,
    fpr: Annotated[
        str, typer.Option(metavar="R,R,…", help="Levels in use: false-positive rates of the detector.")
    ] = "0.01,0.001",
    length: Annotated[
        str, typer.Option(metavar="N,N,…", help="Lengths in tokens; the longest is how much is written.")
    ] = "50,100,200",
    texts: Annotated[int, typer.Option(metavar="N", help="Openings to continue, marked and unmarked.")] = 24,
    chats: Annotated[int, typer.Option(metavar="N", help="Chat requests, marked and unmarked.")] = 12,
    per_language: Annotated[int, typer.Option(metavar="N", help="Prompts in each other language.")] = 4,
    per_format: Annotated[
        int, typer.Option(metavar="N", help="Requests for each of code, JSON and short labels.")
    ] = 4,
    languages: Annotated[
        str, typer.Option(metavar="L,L,…", help="Languages besides English; empty for none.")
    ] = "de,es,fr,it,pt",
    negatives: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXTS", help="Your own unmarked texts, a domain per file; repeatable."),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:SET=VALUE,…]",
            show_default="those that need no large model",
            help="Attack to measure; repeatable.",
        ),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(metavar="MODEL", show_default="the host", help="Model that judges perplexity."),
    ] = None,
    provider: Annotated[str | None, text_option(help="Who provides the model.")] = None,
    contact: Annotated[str | None, text_option(help="Where to ask for access.")] = None,
    detector_url: Annotated[str | None, url_option(help="Address of the detector (dewmark serve).")] = None,
    public_page: Annotated[str | None, url_option(help="Address of the public detector's page.")] = None,
    quality: Annotated[
        Path | None, typer.Option(metavar="quality.json", help="The report of dewmark quality, to include.")
    ] = None,
    policy_proof: Annotated[
        Path | None, typer.Option(metavar="PROOF.json", help="The file of dewmark policy prove, to include.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="CHAIN.pem", help="The certificate that signs manifests.")
    ] = None,
    seed: options.Seed = 0,
    batch_size: options.BatchSize = 16,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure a deployment and write a signed dossier: Markdown, JSON, and a signpost to publish.

    It writes marked and unmarked texts with the host, by length, language and entropy; attacks them; scores
    unmarked texts under this key; compares quality; and says what is not covered.
    """
    from dewmark.decoding import Decoding
    from dewmark.hosts import load_host
    from dewmark.opening import DEFAULT_HOST
    from dewmark_audit.negatives import Negatives
    from dewmark_desk.compliance.dossier import build_dossier, read_given
    from dewmark_desk.compliance.measuring import DEFAULT_ATTACKS, DossierPlan, check_attacks, measure
    from dewmark_desk.detection_report import timestamp
    from dewmark_desk.signing import SigningKey
    from dewmark_desk.signpost import signpost

    options.check_marks(scheme)
    secret, signing = options.load_key(key), SigningKey.load(signer)
    name = host or DEFAULT_HOST
    plan = DossierPlan(
        openings=texts,
        chats=chats,
        per_language=per_language,
        per_format=per_format,
        languages=tuple(part.strip() for part in languages.split(",") if part.strip()),
        lengths=tuple(options.numbers(length, int, option="--length")),
        levels=tuple(reversed(options.numbers(fpr, float, option="--fpr"))),
        decoding=Decoding(temperature=temperature, top_p=top_p, top_k=top_k),
        attacks=tuple(attack) if attack else DEFAULT_ATTACKS,
        seed=seed,
        batch_size=batch_size,
    )
    check_attacks(plan)
    files = {"quality": quality, "proof": policy_proof, "certificate": certificate}
    read_given(None, **files, public_page=public_page)  # report mistakes before the host is loaded
    unmarked = Negatives([*Negatives.packaged().documents, *_own_texts(negatives or ())])
    chat = _chat_format(name)
    with Progress(quiet=quiet) as progress:
        watermark = options.load_watermark(
            secret, host=host, scheme=scheme, settings=settings, progress=progress, device=device, dtype=dtype
        )
        given = read_given(watermark.scheme, **files, public_page=public_page)
        judging = None if judge is None else load_host(judge, device=device, dtype=dtype, progress=progress)
        measured = measure(
            watermark, plan, out, chat=chat, negatives=unmarked, judge=judging, progress=progress
        )
    bound = watermark.scheme
    access = signpost(
        [bound.scheme],
        url=detector_url or "",
        provider=provider,
        contact=contact,
        level=plan.levels[0],
        public_page=public_page,
        signers=[signing.public],
    )
    dossier = build_dossier(
        measured,
        plan,
        bound,
        issued=timestamp(),
        provider=provider,
        contact=contact,
        chat=chat,
        judge=judge or name,
        access=access,
        given=given,
    )
    _save(out, dossier, access, signing)
    say(f"wrote {out / 'dossier.md'}, .json and .jws, and {out / 'signpost.json'}", quiet=quiet)
    false = dossier["findings"]["false_positives"]
    row = {"out": str(out), "signer": signing.public.id, "audit": false["outcome"], **dossier["findings"]}
    show(row, false["sentence"], as_json=json_)


def _own_texts(files: Sequence[str]) -> list[Document]:
    """The caller's unmarked texts; a file is one kind of text, unless its rows say otherwise."""
    from dewmark_audit.texts import read_corpus

    return [
        each if each.kind else dataclasses.replace(each, kind=f"your texts, {Path(file).name}")
        for file in files
        for each in read_corpus([file])
    ]


def _chat_format(name: str) -> ChatFormat | None:
    from dewmark import hosts

    try:
        return hosts.chat_format(name)
    except ConfigError:  # a host that only continues text
        return None


def _save(out: Path, dossier: dict[str, Any], access: dict[str, Any], signing: Any) -> None:  # noqa: ANN401
    """Write the pages, and sign the figures together with the pages' hashes."""
    from dewmark import storage
    from dewmark_desk.compliance.dossier_pages import DOSSIER, dossier_markdown

    files = {
        "dossier.json": (json.dumps(dossier, indent=1, ensure_ascii=False) + "\n").encode(),
        "dossier.md": dossier_markdown(dossier).encode(),
        "signpost.json": (json.dumps(access, indent=1, ensure_ascii=False) + "\n").encode(),
    }
    for name, data in files.items():
        with storage.atomic_write(out / name) as stream:
            stream.write(data)
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    save_text(out / "dossier.jws", signing.sign({**dossier, "files": sums}, kind=DOSSIER) + "\n")
