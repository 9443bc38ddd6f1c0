"""``dewmark rewrite``: mark a text that already exists, and show every change."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, output, printable, results, say, write
from dewmark.errors import ConfigError, InputError
from dewmark.storage import append_jsonl

if TYPE_CHECKING:
    from dewmark import Watermark
    from dewmark.scheme import BoundScheme
    from dewmark_rewrite.rewriting import Review, Rewritten
    from dewmark_rewrite.thesaurus import Candidate


def rewrite(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Text, Markdown, HTML or .docx; - is standard input.")
    ],
    key: options.OptionalKeyFile = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="substitution (synonyms that read well), edit (the fewest changes), or paraphrase.",
        ),
    ] = "substitution",
    target_p: Annotated[
        float | None,
        typer.Option(show_default="0.0001", help="Stop at this p-value; exit with 1 if it is not reached."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="SHARE", show_default="10%", help="Change at most this share of the words."),
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="TERM", help="Never change this term; repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE | -", help="Write the result here (needed for .docx).")
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Show every change instead of the text.")] = False,
    review: Annotated[bool, typer.Option("--review", help="Ask on the terminal before each change.")] = False,
    synonyms: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Use these synonyms instead of the packaged list.")
    ] = None,
    similarity: Annotated[
        float, typer.Option(help="Least cosine between a sentence before and after; -1 needs no encoder.")
    ] = 0.85,
    judge: Annotated[
        str, typer.Option(metavar="MODEL|none", help="Language model that reads substitutions.")
    ] = "smollm2-135m",
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    member: Annotated[
        int | None,
        typer.Option(min=0, show_default="highest z", help="Member of the key's ring that marks."),
    ] = None,
    payload: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Message that the text carries, such as 0x2f.")
    ] = None,
    host: options.Host = None,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="paraphrase: a chat endpoint that writes instead of --host."),
    ] = None,
    model: Annotated[str, typer.Option(metavar="NAME", help="paraphrase: the endpoint's model.")] = "",
    drafts: Annotated[int, typer.Option(help="paraphrase: drafts of each sentence.")] = 8,
    seed: Annotated[
        int | None, typer.Option(min=0, show_default="random", help="paraphrase: seed of the drafts.")
    ] = None,
    device: options.Device = "auto",
    policy_log: Annotated[
        Path | None,
        typer.Option(metavar="LOG.jsonl", help="Append who marked what: key, member, words; never the text."),
    ] = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Mark a text that already exists: the same meaning, with some other words."""
    from dewmark import Detector
    from dewmark_rewrite.documents import read_document
    from dewmark_rewrite.paraphrase import ChatEndpoint
    from dewmark_rewrite.rewriting import Options, Rewriter

    if json_ and diff:
        raise ConfigError("--json and --diff both print the result: choose one")
    if review and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError("--review asks on a terminal: run it on one, with FILE instead of -")
    if Path(file).suffix.lower() == ".docx" and out is None and not (json_ or diff):
        raise ConfigError(f"{file} is a Word document: add --out FILE.docx")
    chosen = Options(
        engine=engine,
        target_p=1e-4 if target_p is None else target_p,
        budget=None if budget is None else _share(budget),
        keep=keep or (),
        judge=None if judge == "none" else judge,
        similarity=similarity,
        member=member,
        payload=options.whole_number(payload, "--payload"),
        synonyms=synonyms,
        drafts=drafts,
        endpoint=None if endpoint is None else ChatEndpoint(endpoint, model),
        seed=seed,
        device=device,
    )
    secret = options.load_key(key)
    document = read_document(_read(file), file)
    started = time.perf_counter()
    with Progress(quiet=quiet) as progress:
        if chosen.engine == "paraphrase" and endpoint is None:
            mark: Watermark | Detector = options.load_watermark(
                secret, host=host, scheme=scheme, settings=settings, progress=progress, device=device
            )
        else:
            mark = Detector(options.open_detector(None, key, host, scheme, settings, progress=progress))
        progress("rewriting", 0, 0)
        asks = _reviewer(document.text, progress) if review else None
        made = Rewriter(mark, chosen, progress=progress).rewrite(document, review=asks)
    if out is not None:
        with output(out) as stream:
            stream.write(made.data)
    if policy_log is not None:
        append_jsonl(policy_log, [_log_row(file, mark.scheme, made, chosen.payload)], private=True)
    if json_:
        emit({"id": file, "out": out and str(out), **made.to_dict()})
    elif diff:
        _show(document.text, made)
    elif out is None:
        write(made.text)
    say(f"{_summary(made)}, {time.perf_counter() - started:.1f} s", quiet=quiet)
    if target_p is not None and not made.reached:
        raise typer.Exit(1)


def _log_row(file: str, scheme: BoundScheme, made: Rewritten, payload: int | None) -> dict[str, Any]:
    """What the service logs of a text that it writes, for one that existed."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "request": file,
        "key_fingerprint": scheme.fingerprint,
        "scheme": scheme.scheme.name,
        "member": made.member,
        "payload": payload,
        "marked": bool(made.steps),
        "engine": made.engine,
        "words": made.words,
        "changed": made.changed,
        "characters": len(made.text),
    }


def _summary(made: Rewritten) -> str:
    return (
        f"{made.changed} of {made.words} words changed ({made.changed / made.words:.1%}), "
        f"p = {made.before.p_value:.2g} before and {made.after.p_value:.2g} after"
        + ("" if made.reached else f"; {made.target_p:g} was not reached")
    )


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None


def _share(given: str) -> float:
    """A share such as 10% or 0.1."""
    try:
        number = float(given.removesuffix("%"))
    except ValueError:
        raise ConfigError(f"--budget takes a share of the words such as 10% or 0.1, got {given!r}") from None
    return number / 100 if given.endswith("%") else number


def _reviewer(text: str, progress: Progress) -> Review:
    """Asks for each change, with the words around it."""

    def ask(change: Candidate, p: float) -> bool:
        progress.clear()
        before, after = text[max(change.start - 40, 0) : change.start], text[change.end : change.end + 40]
        shown = f"…{before}[{change.old} → {change.new}]{after}…".replace("\n", " ")
        return typer.confirm(f"{printable(shown)} (p = {p:.2g})", default=True, err=True)

    return ask


def _show(text: str, made: Rewritten) -> None:
    """The text with what is gone in red and what has come in green."""
    console = results()
    at = 0
    for step in sorted(made.steps, key=lambda step: step.change.start):
        change = step.change
        console.print(printable(text[at : change.start]), end="")
        if console.is_terminal:
            console.print(printable(change.old), style="red strike", end="")
            console.print(printable(change.new), style="green", end="")
        else:
            console.print(f"[-{printable(change.old)}-]{{+{printable(change.new)}+}}", end="")
        at = change.end
    console.print(printable(text[at:]))
