"""Command lines, texts and quality measures shared by the scripts of this folder."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.special import ndtr

import dewmark
from dewmark.config import parse_settings
from dewmark.core.keys import INDEPENDENT
from dewmark.dew.attribution import ALIKE
from dewmark.hosts.base import Host
from dewmark.lab.evaluation.wording import distinct, listed_words
from dewmark.stats.multiple_testing import sidak_min
from dewmark.text.words import form_of
from dewmark.types import Detection


def script_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose --help shows the script's header as it is."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def parse_with_configs(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse, with ``--config NAME: SETTING=VALUE …`` (repeatable) as a list of (name, settings)."""
    parser.add_argument("--config", nargs="+", action="append", default=[], metavar="NAME: SETTING=VALUE")
    args = parser.parse_args()
    args.config = [
        (name.rstrip(":"), parse_settings(settings)) for name, *settings in args.config or [["dew:"]]
    ]
    return args


def named_key(name: str, *, members: int = 1) -> dewmark.Key:
    """The same key for the same name in every run; with ``members``, a ring."""
    return dewmark.Key(hashlib.sha256(name.encode()).digest(), members=members)


def word_list(file: str | None) -> frozenset[str]:
    """The forms of a file, one per line, or those of the package's lexicon."""
    if file is None:
        return listed_words()
    return frozenset(form_of(line.strip()) for line in Path(file).read_text(encoding="utf-8").splitlines())


def read_texts(source: str, tokens: int) -> list[str]:
    """The ``text`` or ``response`` of the rows of FILE[:FIRST:LAST], truncated to about ``tokens`` tokens."""
    name, *rows = source.split(":")
    lines = [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]
    if rows:
        lines = lines[int(rows[0]) : int(rows[1])]
    texts = [str(line.get("text", line.get("response", "")))[: 5 * tokens] for line in lines]
    return [text for text in texts if len(text.split()) >= 30]


def quality(host: Host, prompts: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    """Median perplexity under the host, and the mean share of distinct 2- and 3-grams of words per text."""
    pairs = host.log_likelihood(prompts, texts)
    found = {"perplexity": float(np.median([math.exp(-total / count) for total, count in pairs]))}
    for n in (2, 3):
        found[f"distinct_{n}"] = float(np.mean([distinct(text, n) for text in texts]))
    return found


def in_ring(found: Detection, ring: int, *, level: float = 0.01) -> bool:
    """Whether a text of a known member would be attributable in a ring of this size."""
    test = found.attribution
    if test is None or ring == 1:
        return test is not None and test.attributable
    own = min(ring, INDEPENDENT)  # as dewmark.dew.ring corrects
    p = sidak_min(min(float(ndtr(-found.z)) * ring / own, 1.0), tests=own)
    return p <= level / 2 and test.p_tail <= level / 2 and test.p_alike >= ALIKE
