"""What several benchmarks share: prompts, texts from files, quality, configurations on the command line."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from dewmark.config import parse_settings
from dewmark.hosts.base import Host
from dewmark.lab.evaluation.quality import distinct


def openings(count: int) -> list[str]:
    """The first ``count`` openings of the package, over and over if there are fewer."""
    lines = (resources.files("dewmark") / "data" / "openings.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    return (prompts * math.ceil(count / len(prompts)))[:count]


def quality(host: Host, prompts: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    """Median perplexity under the host, and the mean share of distinct 2- and 3-grams of words per text."""
    pairs = host.log_likelihood(prompts, texts)
    found = {"perplexity": float(np.median([math.exp(-total / count) for total, count in pairs]))}
    for n in (2, 3):
        found[f"distinct_{n}"] = float(np.mean([distinct(text, n) for text in texts]))
    return found


def read_texts(source: str, tokens: int) -> list[str]:
    """JSONL rows (``text`` or ``response``) of FILE[:FIRST:LAST], cut to about ``tokens`` tokens."""
    name, *rows = source.split(":")
    lines = [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]
    if rows:
        lines = lines[int(rows[0]) : int(rows[1])]
    texts = [str(line.get("text", line.get("response", "")))[: 5 * tokens] for line in lines]
    return [text for text in texts if len(text.split()) >= 30]


def with_configs(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse, with ``--config NAME: SETTING=VALUE …`` (repeatable) as a list of (name, settings)."""
    parser.add_argument("--config", nargs="+", action="append", default=[], metavar="NAME: SETTING=VALUE")
    args = parser.parse_args()
    args.config = [
        (name.rstrip(":"), parse_settings(settings)) for name, *settings in args.config or [["dew:"]]
    ]
    return args
