"""``dewmark steal``: learn a mark from marked texts, forge or scrub it, and see whom that deceives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, say, write
from dewmark.errors import ConfigError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dewmark.attacks.stealing.steal import CurvePoint, StealingResult, StealSettings
    from dewmark.cli.inputs import Entry

__all__ = ["steal"]


def steal(
    marked: Annotated[Path, typer.Option(metavar="M.jsonl", help="Texts that carry the victim's mark.")],
    base: Annotated[Path, typer.Option(metavar="B.jsonl", help="Unmarked texts of the same host.")],
    humans: Annotated[
        list[Path], typer.Option(metavar="H.jsonl", help="Human texts, which set the threshold; repeatable.")
    ],
    key: options.OptionalKeyFile = None,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    method: Annotated[str, typer.Option(help="counts, or embedding, which knows that it is DEW.")] = "counts",
    mode: Annotated[str, typer.Option(help="spoof writes new texts, scrub rewrites marked ones.")] = "spoof",
    strength: Annotated[
        float | None, typer.Option(show_default="by method", help="Most that a logit gets; 0 is no attack.")
    ] = None,
    observed: Annotated[
        int | None, typer.Option(show_default="all", help="How many marked texts the attacker has seen.")
    ] = None,
    texts: Annotated[int, typer.Option(help="How many texts to forge or scrub.")] = 100,
    tokens: Annotated[int, typer.Option(help="Length of a forged text.")] = 200,
    attack: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="NAME=VALUE", help="Another setting of the attack; repeatable."),
    ] = None,
    curve: Annotated[
        bool, typer.Option("--curve", help="Forge DEW from 50, 100, 200 … texts: how many are needed?")
    ] = False,
    prompts: Annotated[
        Path | None, typer.Option(metavar="IN.jsonl", help="What a spoof continues, not the package's own.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first text, text i gets seed + i.")] = 0,
    batch_size: options.BatchSize = 50,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write steal.json and texts.jsonl here; a stopped run goes on."),
    ] = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Attack a watermark of your own: learn it from texts, write with it, and score that with its detector.

    The key is for the detector that judges; the attacker never sees it.
    """
    from dewmark.attacks.stealing.steal import StealSettings, forgery_curve
    from dewmark.attacks.stealing.steal import steal as run
    from dewmark.cli.inputs import read_entries, read_texts
    from dewmark.cli.loading import NONE, load_key, load_watermark
    from dewmark.config import parse_settings, replace

    if scheme == NONE:
        raise ConfigError("scheme none leaves no mark to steal: name a scheme")
    given = {"method": method, "mode": mode, "strength": strength, "observed": observed, "texts": texts}
    given |= {"tokens": tokens, "seed": seed, "batch_size": batch_size}
    chosen = replace(StealSettings(), given | parse_settings(attack or ()))
    if curve and (chosen.method, chosen.mode) != ("embedding", "spoof"):
        raise ConfigError(
            "--curve is of forgeries by embeddings: add --method embedding, and no --mode scrub"
        )
    secret = load_key(key)
    corpus, unmarked = _present(read_entries(marked)), [entry.text for entry in _present(read_entries(base))]
    people = [entry.text for entry in read_texts([str(path) for path in humans])]
    openers, targets, seen = _work(corpus, chosen, prompts, marked)
    with Progress(quiet=quiet) as progress:
        watermark = load_watermark(
            secret, host=host, scheme=scheme, settings=settings, progress=progress, device=device, dtype=dtype
        )
        keep = None if out is None else out / "written"
        arguments = (watermark.scheme, watermark.host, seen, unmarked, people)
        summary: dict[str, Any] = {"scheme": watermark.scheme.scheme.name, "host": watermark.host.name}
        summary |= {"key_fingerprint": watermark.scheme.fingerprint, "settings": chosen.to_dict()}
        if curve:
            points = forgery_curve(
                *arguments, prompts=openers, settings=chosen, resume_dir=keep, progress=progress
            )
            summary["curve"] = [point.to_dict() for point in points]
            told = _curve_words(points)
        else:
            result = run(
                *arguments,
                settings=chosen,
                prompts=openers,
                targets=targets,
                resume_dir=keep,
                progress=progress,
            )
            summary |= result.to_dict()
            told = _words(result)
            if out is not None:
                _save_texts(out, openers, result)
    if out is not None:
        _save(out / "steal.json", json.dumps(summary, indent=1) + "\n")
        say(f"wrote {out / 'steal.json'}", quiet=quiet)
    if json_:
        emit(summary)
    else:
        write(told)


def _present(entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.text.strip()]


def _work(
    corpus: list[Entry], settings: StealSettings, prompts: Path | None, marked: Path
) -> tuple[list[str], list[str], list[str]]:
    """Prompts, the texts to scrub, and the texts that the attacker may observe."""
    from dewmark.batch.prompts_run import read_prompts
    from dewmark.cli.inputs import openings

    if settings.mode == "spoof":
        if prompts is None:
            openers = openings(settings.texts, option="--texts")
        else:
            openers = [prompt.text for prompt in read_prompts(prompts)]
        return openers, [], [entry.text for entry in corpus]
    if prompts is not None:
        raise ConfigError("--prompts is for a spoof: a scrub takes the prompts of the marked texts")
    if len(corpus) <= settings.texts:
        raise InputError(
            f"{marked} has {len(corpus)} texts: the last {settings.texts} would be scrubbed, and none is "
            "left to learn from; give more, or a smaller --texts"
        )
    seen, scrubbed = corpus[: -settings.texts], corpus[-settings.texts :]
    if any(entry.prompt is None for entry in scrubbed):
        raise InputError(f'{marked}: a scrub needs the "prompt" of each text that it rewrites')
    return [entry.prompt or "" for entry in scrubbed], [e.text for e in scrubbed], [e.text for e in seen]


def _words(result: StealingResult) -> str:
    what = "forged" if result.mode == "spoof" else "scrubbed"
    learned = f"learned from {result.observed} marked and {result.base} base texts by {result.method}"
    fit = "" if result.cosine is None else f"; correlation with the true scores {result.cosine:.2f}"
    rows = [
        (what, result.found, result.above, result.perplexity, result.kept),
        (
            "strength 0",
            result.control_found,
            result.control_above,
            result.control_perplexity,
            result.control_kept,
        ),
        ("genuine", result.genuine_found, result.genuine_above, None, None),
    ]
    lines = [f"{learned}{fit}", f"{'texts':<11} p<0.01  above human 1%  perplexity  tokens kept"]
    for name, found, above, perplexity, kept in rows:
        last = "" if perplexity is None else f"{perplexity:10.1f}  {'' if kept is None else f'{kept:11.2f}'}"
        lines.append(f"{name:<11} {found:6.1%}  {above:14.1%}  {last}".rstrip())
    lines.append(f"human texts with p < 0.01: {result.human_found:.1%} of {result.humans}")
    return "\n".join(lines) + "\n"


def _curve_words(points: Sequence[CurvePoint]) -> str:
    lines = ["texts  correlation  p<0.01  above human 1%  mean z  perplexity"]
    for p in points:
        forgeries = f"{p.found:6.1%}  {p.above:14.1%}  {p.mean_z:6.2f}  {p.perplexity:10.1f}"
        lines.append(f"{p.texts:5d}  {p.cosine:11.2f}  {forgeries}")
    return "\n".join(lines) + "\n"


def _save_texts(out: Path, prompts: Sequence[str], result: StealingResult) -> None:
    rows = zip(prompts, result.texts, result.p_values, strict=False)
    lines = (
        json.dumps({"id": str(i), "prompt": prompt, "text": text, "p_value": p}, ensure_ascii=False)
        for i, (prompt, text, p) in enumerate(rows)
    )
    _save(out / "texts.jsonl", "".join(line + "\n" for line in lines))


def _save(path: Path, text: str) -> None:
    from dewmark import storage

    with storage.atomic_write(path) as stream:
        stream.write(text.encode("utf-8", "backslashreplace"))
