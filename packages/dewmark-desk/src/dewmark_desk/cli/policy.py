"""``dewmark policy``: which parts of a text a policy leaves unmarked, and whether the mark agrees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, save_text, write
from dewmark.errors import ConfigError, InputError
from dewmark.policy import load_policy
from dewmark_desk.cli import TextFile

app = typer.Typer(help="Which parts of a text are marked, and the proof of it.", no_args_is_help=True)


@app.command()
def explain(
    text: TextFile,
    prompt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The prompt, whose words a text may quote.")
    ] = None,
    policy: Annotated[str, typer.Option(metavar="default|FILE.json", help="The policy.")] = "default",
    key: options.OptionalKeyFile = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show which parts of a text the policy leaves unmarked; with a key, also the mark found in each kind."""
    from dewmark.batch import read_files
    from dewmark.detect import score_text
    from dewmark_desk.policy_proof import mean_score, span_scores

    rules = load_policy(policy)
    (row,) = read_files([text])
    if not row.text.strip():
        raise InputError("the text is empty: there is nothing to explain")
    before = "" if prompt is None else prompt.read_text(encoding="utf-8")
    spans = rules.spans(row.text, before)
    scores = None
    if key is not None:
        with Progress(quiet=quiet) as progress:
            bound = options.open_detector(None, key, None, None, None, reader=None, progress=progress)
            found = score_text(bound, row.text)
            if not found.tokens:
                raise ConfigError("this scheme scores no words: leave out --key")
            by_reason = sorted(span_scores(rules, row.text, before, found).items())
            scores = {reason: mean_score(each) for reason, each in by_reason}
    if json_:
        rows: list[dict[str, Any]] = [
            {"start": each.start, "end": each.end, "reason": each.reason} for each in spans
        ]
        emit({"policy": rules.version, "spans": rows, "scores": scores})
        return
    write(f"policy {rules.version}\n")
    for each in spans:
        shown = " ".join(row.text[each.start : each.end].split())
        shown = shown if len(shown) <= 60 else f"{shown[:40]} … {shown[-17:]}"
        write(f"{each.start:>6} to {each.end:<6} {each.reason or 'marked':<11} {shown}\n")
    for reason, seen in (scores or {}).items():
        mean = f"{seen['mean']:+.2f} ± {seen['error']:.2f}"
        write(f"{reason}: {seen['words']} scored words, mean score {mean}\n")


@app.command(name="prove")
def prove_(
    key: options.KeyFile,
    out: Annotated[Path, typer.Option(metavar="PROOF.json | -", help="Write the figures here; no text.")],
    policy: Annotated[str, typer.Option(metavar="default|FILE.json", help="The policy.")] = "default",
    host: options.Host = None,
    requests: Annotated[
        int, typer.Option(min=3, max=240, help="JSON, tool calls and code, a third each.")
    ] = 200,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens per answer.")] = 100,
    batch_size: options.BatchSize = 32,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    seed: options.Seed = 0,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer requests for JSON, tool calls and code with the mark and without, and count what parses."""
    from dewmark_desk.policy_proof import prove

    rules, secret = load_policy(policy), options.load_key(key)
    with Progress(quiet=quiet) as progress:
        watermark = options.load_watermark(
            secret, host=host, scheme=None, settings=None, progress=progress, device=device, dtype=dtype
        )
        sizes = {"requests": requests, "max_new_tokens": max_new_tokens, "batch_size": batch_size}
        found = prove(watermark, rules, **sizes, seed=seed, progress=progress).to_dict()
    save_text(out, json.dumps(found, indent=1) + "\n")
    if json_:
        emit(found)
        return
    for row in found["parsed"]:
        rates = f"{row['unmarked']} of {row['requests']} unmarked, {row['marked']} marked"
        write(f"{row['kind']}: parse {rates}, p = {row['p_value']:.2g}; {row['identical']} are identical\n")
    for row in found["spans"]:
        mean = f"{row['mean']:+.3f} ± {row['error']:.3f}"
        if row["unmarked"] is not None:
            mean += f" (unmarked answers {row['unmarked']:+.3f})"
        write(f"{row['reason']}: {row['words']} scored words, mean score {mean}\n")
