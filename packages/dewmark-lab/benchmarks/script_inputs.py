"""Command lines, texts and quality measures shared by the scripts of this folder."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

import dewmark
from dewmark.config import parse_settings
from dewmark.core.keys import INDEPENDENT
from dewmark.dew.attribution import LARGE, forgery_test, head_of, share_among
from dewmark.dew.scheme import BoundDEW
from dewmark.hosts.base import Host
from dewmark.stats.multiple_testing import sidak_min
from dewmark.text.words import distinct, form_of
from dewmark.types import ForgeryTest
from dewmark_lab.evaluation.wording import listed_words


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


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file, if it is there; a last line that is still being written is left out."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def quality(host: Host, prompts: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    """Median perplexity under the host, and the mean share of distinct 2- and 3-grams of words per text."""
    pairs = host.log_likelihood(prompts, texts)
    found = {"perplexity": float(np.median([math.exp(-total / count) for total, count in pairs]))}
    for n in (2, 3):
        found[f"distinct_{n}"] = float(np.mean([distinct(text, n) for text in texts]))
    return found


RINGS = (1, 16, 256, 4096, 16_384, 65_536)
LEVEL = 0.01


@dataclass(frozen=True)
class Judged:
    """A text under the matrix of the use that marked it: z, and head and tail in rings of two kinds."""

    z: float
    tests: dict[int, ForgeryTest]

    def p_value(self, ring: int) -> float:
        """p in a ring of this size, corrected as `dewmark.dew.ring` does."""
        own = min(ring, INDEPENDENT)
        return sidak_min(min(float(ndtr(-self.z)) * ring / own, 1.0), tests=own)

    def test(self, ring: int) -> ForgeryTest:
        """Its head and tail, as a ring of this size splits them."""
        return self.tests[1 if ring <= LARGE else LARGE + 1]

    def attributable(self, ring: int) -> bool:
        """Whether it would be attributable in a ring of this size."""
        test = self.test(ring)
        tail = float(ndtr(-test.z_tail)) <= LEVEL * share_in_ring(test.z_head, ring)
        return self.p_value(ring) <= LEVEL and tail

    def margin(self, ring: int) -> float:
        """By how much z and the tail's z exceed what a ring of this size asks for, the smaller."""
        test = self.test(ring)
        in_tail = test.z_tail + float(ndtri(max(LEVEL * share_in_ring(test.z_head, ring), 1e-300)))
        return min(self.z + float(ndtri(LEVEL / ring)), in_tail)


def share_in_ring(z_head: float, ring: int) -> float:
    """The share of the level that `dewmark.dew.attribution` gives the right member of a ring.

    The heads of the other members are independent standard normals, drawn here.
    """
    if ring > LARGE:
        return 1.0 / ring
    others = np.random.default_rng([ring, int(1e6 * abs(z_head))]).standard_normal(ring - 1)
    return share_among(z_head, np.append(others, z_head))


def judge(bound: BoundDEW, texts: Sequence[str], prompts: Sequence[str] | None = None) -> list[Judged]:
    """Score texts under the scheme's own matrix; blank ones score nothing."""
    known = [text if text.strip() else "." for text in texts]
    before = bound.tokenize(prompts if prompts is not None else [""] * len(known))
    W, found = bound.W, []
    heads = {members: head_of(bound.reader, members=members) for members in (1, LARGE + 1)}
    for start in range(0, len(known), 100):
        part = slice(start, start + 100)
        for text in bound.read(bound.tokenize(known[part]), before[part]):
            F = text.F.astype(np.float32)
            tests = {members: forgery_test(F, W, head, level=LEVEL) for members, head in heads.items()}
            found.append(Judged(text.test(W).z, tests))
    return found


def shares(found: Sequence[Judged]) -> dict[str, Any]:
    """Mean scores, and the shares that are marked and attributable, as one key and in rings."""
    return {
        "texts": len(found),
        "z": float(np.mean([each.z for each in found])),
        "tail": float(np.mean([each.test(1).z_tail for each in found])),
        "deep tail": float(np.mean([each.test(LARGE + 1).z_tail for each in found])),
        "marked_1e-4": float(np.mean([each.p_value(1) <= 1e-4 for each in found])),
        "marked": {ring: float(np.mean([each.p_value(ring) <= LEVEL for each in found])) for ring in RINGS},
        "attributable": {ring: float(np.mean([each.attributable(ring) for each in found])) for ring in RINGS},
    }


def passes(points: Mapping[int, float], share: float = 0.5) -> float | None:
    """The number of seen texts at which a curve passes a share, between points on a logarithmic scale."""
    sizes = sorted(points)
    for low, high in pairwise(sizes):
        if points[low] < share <= points[high]:
            part = (share - points[low]) / (points[high] - points[low])
            return math.exp(math.log(low) + part * math.log(high / low))
    return None if not sizes or points[sizes[0]] < share else float(sizes[0])
