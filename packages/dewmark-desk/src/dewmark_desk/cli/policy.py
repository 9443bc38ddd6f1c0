"""``dewmark policy``: which parts of a text a policy leaves unmarked, and whether the mark agrees."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, write
from dewmark.errors import ConfigError, InputError
from dewmark.policy import Policy, load_policy
from dewmark.types import Detection

app = typer.Typer(help="Explain which parts of a text are marked.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Explain which parts of a text are marked."""


@app.command()
def explain(
    text: Annotated[str, typer.Argument(metavar="TEXTFILE | -", help="The text; - is standard input.")],
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
            scores = scores_by_reason(rules, row.text, before, bound.detect(row.text))
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
    for reason, found in (scores or {}).items():
        mean = f"{found['mean']:+.2f} ± {found['error']:.2f}"
        write(f"{reason}: {found['words']} scored words, mean score {mean}\n")


def scores_by_reason(
    rules: Policy, text: str, prompt: str, detection: Detection
) -> dict[str, dict[str, float]]:
    """The detector's scores of words in spans of each reason: their number, mean and standard error."""
    if not detection.tokens:
        raise ConfigError("this scheme scores no words: leave out --key")
    spans = rules.spans(text, prompt)
    found: dict[str, list[float]] = {}
    for token in detection.tokens:
        inside = next((each for each in spans if each.start <= token.start < each.end), None)
        if token.scored and inside is not None:
            found.setdefault(inside.reason or "marked", []).append(token.score)
    return {
        reason: {
            "words": len(scores),
            "mean": float(np.mean(scores)),
            "error": 1.0 / float(np.sqrt(len(scores))),
        }
        for reason, scores in sorted(found.items())
    }
