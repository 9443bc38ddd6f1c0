"""``dewmark steal``: learn a mark from marked texts, forge or scrub it, and score the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, save_json, say, write
from dewmark.errors import ConfigError, InputError
from dewmark_lab.prompt_sources import OPENINGS, prompt_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dewmark.batch.inputs import Document
    from dewmark_lab.attacks.stealing.steal import StealingResult, StealSettings


def steal(
    marked: Annotated[Path, typer.Option(metavar="M.jsonl", help="Texts with the victim's mark.")],
    base: Annotated[Path, typer.Option(metavar="B.jsonl", help="Unmarked texts of the same host.")],
    humans: Annotated[
        list[Path], typer.Option(metavar="H.jsonl", help="Human texts that set the threshold; repeatable.")
    ],
    key: options.OptionalKeyFile = None,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    method: Annotated[
        str, typer.Option(help="How the mark is learned: counts, or embedding (assumes DEW).")
    ] = "counts",
    mode: Annotated[str, typer.Option(help="spoof: write new texts; scrub: rewrite marked ones.")] = "spoof",
    strength: Annotated[
        float | None, typer.Option(show_default="searched", help="Maximum bias of a logit; 0 is no attack.")
    ] = None,
    observed: Annotated[
        int | None,
        typer.Option(show_default="all", help="Number of marked texts that the attacker has seen."),
    ] = None,
    texts: Annotated[int, typer.Option(help="Number of texts to forge or scrub.")] = 100,
    tokens: Annotated[int, typer.Option(help="Tokens per forged text.")] = 200,
    attack: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="NAME=VALUE", help="Set another parameter of the attack; repeatable."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="IN.jsonl", help="Prompts for a spoof, instead of the package's own."),
    ] = None,
    seed: options.Seed = 0,
    batch_size: options.BatchSize = 50,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write steal.json and texts.jsonl here; a stopped run is resumed."),
    ] = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Attack your own watermark: learn it from texts, write with it, and score the result with its detector.

    Only the detector uses the key; the attacker never sees it.
    """
    from dewmark.config import parse_settings, replace
    from dewmark_audit.texts import read_corpus, read_documents
    from dewmark_lab.attacks.stealing.steal import StealSettings
    from dewmark_lab.attacks.stealing.steal import steal as run

    options.check_marks(scheme)
    given = {"method": method, "mode": mode, "strength": strength, "observed": observed, "texts": texts}
    given |= {"tokens": tokens, "seed": seed, "batch_size": batch_size}
    chosen = replace(StealSettings(), given | parse_settings(attack or ()))
    secret = options.load_key(key)
    corpus = [each for each in read_documents(marked) if each.text.strip()]
    unmarked = [each.text for each in read_documents(base) if each.text.strip()]
    people = [each.text for each in read_corpus([str(path) for path in humans])]
    openers, targets, seen = _split(corpus, chosen, prompts, marked)
    members = _members(marked, len(corpus)) if chosen.grouping == "told" else None
    with Progress(quiet=quiet) as progress:
        watermark = options.load_watermark(
            secret, host=host, scheme=scheme, settings=settings, progress=progress, device=device, dtype=dtype
        )
        keep = None if out is None else out / "written"
        summary: dict[str, Any] = {"scheme": watermark.scheme.scheme.name, "host": watermark.host.name}
        summary |= {"key_fingerprint": watermark.scheme.fingerprint, "settings": chosen.to_dict()}
        result = run(
            watermark.scheme,
            watermark.host,
            seen,
            unmarked,
            people,
            settings=chosen,
            prompts=openers,
            targets=targets,
            members=members,
            resume_dir=keep,
            progress=progress,
        )
        summary |= result.to_dict()
        if out is not None:
            _save_texts(out, openers, result)
    if out is not None:
        save_json(out / "steal.json", summary)
        say(f"wrote {out / 'steal.json'}", quiet=quiet)
    if json_:
        emit(summary)
    else:
        write(_report(result))


def _split(
    corpus: list[Document], settings: StealSettings, prompts: Path | None, marked: Path
) -> tuple[list[str], list[str], list[str]]:
    """The prompts, the texts to scrub, and the texts that the attacker observes."""
    from dewmark.batch import read_prompts

    if settings.mode == "spoof":
        if prompts is None:
            openers = [row["text"] for row in prompt_texts(OPENINGS, settings.texts)]
        else:
            openers = [prompt.text for prompt in read_prompts(prompts)]
        return openers, [], [each.text for each in corpus]
    if prompts is not None:
        raise ConfigError("--prompts is for a spoof: a scrub uses the prompts of the marked texts")
    if len(corpus) <= settings.texts:
        raise InputError(
            f"{marked} has {len(corpus)} texts: the last {settings.texts} would be scrubbed, which leaves "
            "none to learn from; give more texts, or a smaller --texts"
        )
    seen, scrubbed = corpus[: -settings.texts], corpus[-settings.texts :]
    if any(each.prompt is None for each in scrubbed):
        raise InputError(f'{marked}: a scrub needs the "prompt" of each text it rewrites')
    return [each.prompt or "" for each in scrubbed], [e.text for e in scrubbed], [e.text for e in seen]


def _members(marked: Path, number: int) -> list[int]:
    """The ring's member of each marked text."""
    from dewmark.storage import read_jsonl

    rows = read_jsonl(marked) if marked.suffix == ".jsonl" else ()
    found: list[Any] = [row.get("member") for _, row in rows if str(row.get("text", "")).strip()]
    if len(found) != number or not all(isinstance(member, int) for member in found):
        raise InputError(f'{marked}: grouping=told needs JSONL rows with the "member" that wrote each text')
    return found


def _report(result: StealingResult) -> str:
    what = "forged" if result.mode == "spoof" else "scrubbed"
    head = f"learned from {result.observed} marked and {result.base} base texts by {result.method}"
    head += "" if result.cosine is None else f"; correlation with the true scores {result.cosine:.2f}"
    head += f"; strength {result.strength:g}"
    fields = ("found", "above", "attributable", "perplexity", "kept")
    rows = [
        (name, *(getattr(result, prefix + field, None) for field in fields))
        for name, prefix in ((what, ""), ("strength 0", "control_"), ("genuine", "genuine_"))
    ]
    columns = f"{'texts':<11} p<0.01  above human 1%  attributable  perplexity  tokens kept"
    lines = [head, columns]
    for name, found, above, ours, perplexity, kept in rows:
        cells = [f"{name:<11} {found:6.1%}", f"{above:14.1%}", " " * 12 if ours is None else f"{ours:12.1%}"]
        cells += [] if perplexity is None else [f"{perplexity:10.1f}"]
        cells += [] if kept is None else [f"{kept:11.2f}"]
        lines.append("  ".join(cells).rstrip())
    lines.append(f"human texts with p < 0.01: {result.human_found:.1%} of {result.humans}")
    return "\n".join(lines) + "\n"


def _save_texts(out: Path, prompts: Sequence[str], result: StealingResult) -> None:
    from dewmark_lab.experiments.outputs import write_rows

    rows = enumerate(zip(prompts, result.texts, result.p_values, strict=False))
    named = [{"id": str(i), "prompt": prompt, "text": text, "p_value": p} for i, (prompt, text, p) in rows]
    write_rows(out / "texts.jsonl", named)
