"""Two measurements on texts: the power of detection by length, and how much of a mark a rewrite keeps.

The statistics of power are in `evaluation.power`; here texts are written, scored and paired. What a rewrite
keeps is measured without a key or a marked text: over random keys the total scores of a text x and of its
rewrite y have a known covariance, and their correlation

    Σ_ij w_i v_j f(ρ_ij(x, y)) / √(Var S_x · Var S_y)

is the expected share of x's z-score that y retains. For unrelated texts it must be near 0: anything else is a
standing preference shared by all texts, which no honest test counts as a mark.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dewmark.batch.inputs import Document, as_request
from dewmark.capabilities import GivesEvidence, capability
from dewmark.decoding import Decoding, DecodingOptions
from dewmark.errors import InputError
from dewmark.scheme import BoundScheme
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import cross_variance, key_test, score_variance
from dewmark.stats.power import Strength, measure_strength
from dewmark.stats.rates import Interval
from dewmark.types import Generation
from dewmark.verdict import least_length
from dewmark.watermark import Watermark
from dewmark.workspace import Progress, Tokenized, silent
from dewmark_lab.evaluation.power import Power, choose_cuts, measure_power
from dewmark_lab.metrics import bootstrap

NEAR_ZERO = 0.05


@dataclass(frozen=True, slots=True)
class Retention:
    """The mean share of z that rewrites retain, and the same for unrelated texts."""

    pairs: int
    kept: Interval
    unrelated: Interval

    @property
    def sound(self) -> bool:
        """Whether unrelated texts share next to nothing, as they should."""
        return abs(self.unrelated.value) <= NEAR_ZERO

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "pairs": self.pairs,
            "kept": self.kept.to_dict(),
            "unrelated": self.unrelated.to_dict(),
            "sound": self.sound,
        }


def pair_retentions(
    originals: Sequence[Evidence], rewritten: Sequence[Evidence]
) -> tuple[list[float], list[float]]:
    """The retention of each original in its own rewrite, and in the rewrite of the next original.

    All must come from one call of `BoundScheme.evidence`, so that labels are comparable.
    """
    x, y = ([math.sqrt(score_variance(text)) for text in texts] for texts in (originals, rewritten))

    def correlation(i: int, j: int) -> float:
        return cross_variance(originals[i], rewritten[j]) / (x[i] * y[j])

    count = len(originals)
    return [correlation(i, i) for i in range(count)], [correlation(i, (i + 1) % count) for i in range(count)]


def summarise(kept: Sequence[float], unrelated: Sequence[float]) -> Retention:
    """The means with bootstrap intervals; pairs are resampled."""
    if len(kept) < 2:
        raise InputError(f"retention needs at least two pairs of texts with scored units, got {len(kept)}")
    return Retention(
        pairs=len(kept),
        kept=bootstrap(lambda own, _: float(own.mean()), kept, unrelated),
        unrelated=bootstrap(lambda _, other: float(other.mean()), kept, unrelated),
    )


_PAIRS_PER_BATCH = 32

Sample = list[tuple[str, str | None]]
"""Marked texts, each with the prompt that it continues."""


def write_sample(
    watermark: Watermark,
    prompts: Sequence[str],
    *,
    tokens: int,
    seed: int = 0,
    options: DecodingOptions | None = None,
    chat: bool = False,
    batch_size: int = 8,
    progress: Progress = silent,
) -> Sample:
    """Marked texts of at least ``tokens`` tokens that continue the prompts.

    With ``chat`` the prompts are requests, answered as the host decodes: an answer ends where the host ends
    it, and may be shorter. ``options`` override the decoding.
    """
    length = tokens + max(8, tokens // 20)  # a text may be tokenized into fewer tokens than were generated
    sample: Sample = []

    def collect(batch: list[Generation]) -> None:
        sample.extend((made.text, made.prompt) for made in batch)
        progress("writing marked texts", len(sample), len(prompts))

    collect([])
    decoding = (
        dataclasses.replace(watermark.chat_format.decoding, max_new_tokens=length)
        if chat
        else Decoding(max_new_tokens=length, min_new_tokens=length, no_repeat_ngram=4)
    )
    watermark.generate_batch(
        None if chat else prompts,
        messages=[as_request(prompt) for prompt in prompts] if chat else None,
        seeds=range(seed, seed + len(prompts)),
        decoding=dataclasses.replace(decoding, **(options or {})),
        batch_size=batch_size,
        on_batch=collect,
    )
    return sample


def power_by_length(
    bound: BoundScheme, sample: Sample, lengths: Sequence[int], *, fpr: float, progress: Progress = silent
) -> Power:
    """The share of marked texts that is found at each length, from each text truncated there.

    As in detection, a truncated text of too few effective tokens is not found, whatever its z.
    """
    texts = bound.tokenize([text for text, _ in sample])
    prompts = bound.tokenize([prompt or "" for _, prompt in sample])
    cuts = choose_cuts(lengths, max((len(text.ids) for text in texts), default=0))
    # NaN where a text is shorter
    z, effective = (np.full((len(texts), len(cuts)), np.nan) for _ in range(2))
    for i, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        heads = [_head(text, cut) for cut in cuts if cut <= len(text.ids)]
        if heads:
            tested = [
                key_test(found)
                for found in capability(bound, GivesEvidence).evidence(heads, [prompt] * len(heads))
            ]
            z[i, : len(heads)] = [each.z for each in tested]
            effective[i, : len(heads)] = [each.effective_length for each in tested]
        progress("scoring", i + 1, len(texts))
    return measure_power(z, effective, cuts, fpr=fpr, least_effective=least_length(bound.expectations))


def mark_strength(bound: BoundScheme, sample: Sample) -> Strength:
    """The strength of the mark in a sample of marked texts."""
    found = bound.detect_batch([text for text, _ in sample], prompts=[prompt for _, prompt in sample])
    return measure_strength(
        np.array([each.z for each in found]), np.array([each.effective_length for each in found])
    )


def match_rewrites(
    originals: Sequence[Document], rewrites: Sequence[Document], *, files: tuple[Path, Path]
) -> list[tuple[str, str]]:
    """(original, rewrite) texts, matched by id if every row has one, otherwise by order."""
    if len(originals) != len(rewrites):
        raise InputError(
            f"{files[0]} has {len(originals)} rows and {files[1]} has {len(rewrites)}: "
            "each text needs a rewrite"
        )
    if any(each.id is None for each in (*originals, *rewrites)):
        return [(before.text, after.text) for before, after in zip(originals, rewrites, strict=True)]
    by_id = {each.id: each.text for each in rewrites}
    if len(by_id) < len(rewrites) or len({each.id for each in originals}) < len(originals):
        raise InputError(f"{files[0]} or {files[1]} has an id twice: make the ids unique, or leave them out")
    missing = [each.id for each in originals if each.id not in by_id]
    if missing:
        raise InputError(f"{files[1]} has no row with the id {missing[0]!r} of {files[0]}")
    return [(each.text, by_id[each.id]) for each in originals]


def retention_of_pairs(
    bound: BoundScheme, pairs: Sequence[tuple[str, str]], *, progress: Progress = silent
) -> Retention:
    """How much of a mark rewrites keep, from (original, rewrite) pairs, with unrelated pairs as a control.

    The key does not matter: only covariances over random keys are used.
    """
    # neighbours in a file may share a topic, so shuffle
    order = np.random.default_rng(0).permutation(len(pairs)).tolist()
    kept: list[float] = []
    unrelated: list[float] = []
    done = 0
    for part in np.array_split(order, max(1, len(order) // _PAIRS_PER_BATCH)):
        texts = bound.tokenize([text for i in part for text in pairs[i]])
        evidence = capability(bound, GivesEvidence).evidence(texts, bound.tokenize([""] * len(texts)))
        scored = [(a, b) for a, b in zip(evidence[::2], evidence[1::2], strict=True) if len(a) and len(b)]
        if len(scored) > 1:
            own, other = pair_retentions([a for a, _ in scored], [b for _, b in scored])
            kept += own
            unrelated += other
        done += len(part)
        progress("comparing texts", done, len(pairs))
    return summarise(kept, unrelated)


def _head(text: Tokenized, tokens: int) -> Tokenized:
    """The first tokens of a text."""
    end = text.offsets[tokens - 1][1]
    return Tokenized(text.text[:end], text.ids[:tokens], text.offsets[:tokens], text.forms[:tokens])
