"""The power of detection, measured on a sample of marked texts that are truncated at several lengths.

The model is that of `dewmark_audit.power_model`; intervals come from resampling texts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dewmark.arrays import F64, I64
from dewmark.batch.inputs import as_request
from dewmark.capabilities import evidence_of
from dewmark.decoding import Decoding, DecodingOptions
from dewmark.errors import InputError
from dewmark.scheme import BoundScheme
from dewmark.types import Generation, Plain
from dewmark.verdict import least_length
from dewmark.watermark import Watermark
from dewmark.workspace import Progress, Tokenized, silent
from dewmark_audit.intervals import Interval
from dewmark_audit.power_model import FEWEST_TEXTS, TARGETS, PowerModel, fit_model
from dewmark_audit.rates import Rate, rate

_SHORTEST = 25  # tokens; most of a shorter text has no full context
_CUTS = 8
RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class PowerRow(Plain):
    """One length: the model's rate with its interval, and the measured rate of texts that are long enough."""

    length: int
    tpr: Interval
    measured: Rate | None
    mean_z: float | None
    sd_z: float | None


@dataclass(frozen=True)
class Power:
    """The power estimated from a sample of marked texts at one false-positive rate."""

    fpr: float
    z: F64 = dataclasses.field(repr=False)
    judged: NDArray[np.bool_] = dataclasses.field(repr=False)
    cuts: tuple[int, ...]
    model: PowerModel
    resampled: tuple[PowerModel, ...] = dataclasses.field(repr=False)

    @property
    def texts(self) -> int:
        """The number of texts in the sample."""
        return len(self.z)

    def row(self, length: int) -> PowerRow:
        """The expected and the measured rate at one length."""
        measured = mean = sd = None
        if length in self.cuts:
            cut = self.cuts.index(length)
            z, judged = self.z[:, cut], self.judged[:, cut]
            known = ~np.isnan(z)
            z, judged = z[known], judged[known]
            if len(z) >= 2:
                found = int(np.count_nonzero((ndtr(-z) <= self.fpr) & judged))
                measured, mean, sd = rate(found, len(z)), float(z.mean()), float(z.std(ddof=1))
        return PowerRow(length, self.interval([length])[0], measured, mean, sd)

    def interval(self, lengths: Sequence[int]) -> list[Interval]:
        """The model's rate at each length, with a 95% bootstrap interval."""
        values = self.model.tpr(lengths, fpr=self.fpr)
        drawn = np.array([model.tpr(lengths, fpr=self.fpr) for model in self.resampled])
        ends = np.quantile(drawn, [0.025, 0.975], axis=0)
        return [Interval(float(v), float(a), float(b), 0.95) for v, a, b in zip(values, *ends, strict=True)]

    @property
    def shortest(self) -> dict[float, int | None]:
        """The smallest length that reaches each of the `TARGETS`, or None if no length does."""
        return {target: self.model.length_for(target, fpr=self.fpr) for target in TARGETS}


def choose_cuts(lengths: Sequence[int], longest: int) -> list[int]:
    """The lengths at which to truncate texts of up to ``longest`` tokens: ``lengths`` and some in between."""
    if longest < _SHORTEST:
        raise InputError(f"power needs texts of at least {_SHORTEST} tokens, the longest has {longest}")
    between = np.geomspace(_SHORTEST, longest, _CUTS).round().astype(int).tolist()
    return sorted({*between, *(length for length in lengths if length <= longest)})


def measure_power(
    z: F64, effective: F64, cuts: Sequence[int], *, fpr: float, least_effective: float
) -> Power:
    """Estimate power from z-scores and effective lengths (texts, cuts) of truncated marked texts.

    Both are NaN where a text is shorter than the cut. The detector refuses to judge texts of fewer than
    ``least_effective`` effective tokens.
    """
    known = ~np.isnan(z).all(axis=1)
    z, effective = z[known], effective[known]
    if len(z) < FEWEST_TEXTS:
        raise InputError(
            f"a power estimate needs {FEWEST_TEXTS} marked texts of at least {min(cuts)} tokens, got {len(z)}"
        )
    first = _judged_from(effective, cuts, least_effective)

    def fitted(chosen: I64) -> PowerModel:
        judged = tuple(np.sort(first[chosen]).tolist())
        return dataclasses.replace(fit_model(z[chosen], cuts), judged_from=judged)

    rng = np.random.default_rng(0)
    return Power(
        fpr=fpr,
        z=z,
        judged=effective >= least_effective,  # NaN is not
        cuts=tuple(cuts),
        model=fitted(np.arange(len(z))),
        resampled=tuple(fitted(rng.integers(len(z), size=len(z))) for _ in range(RESAMPLES)),
    )


def _judged_from(effective: F64, cuts: Sequence[int], least: float) -> F64:
    """The length (texts,) at which each text reaches ``least`` effective tokens, infinite if it never does.

    Interpolated between cuts. A text that has not got there at its last cut goes on growing as it did up to
    it, if it grew at all.
    """
    lengths = np.concatenate(([0.0], np.asarray(cuts, dtype=np.float64)))
    found = np.full(len(effective), np.inf)
    for i, row in enumerate(effective):
        known = np.concatenate(([0.0], row[~np.isnan(row)]))
        above = np.flatnonzero(known >= least)
        j = int(above[0]) if len(above) else len(known) - 1
        step = known[j] - known[j - 1]
        if step > 0.0:
            slope = step / (lengths[j] - lengths[j - 1])
            found[i] = lengths[j - 1] + (least - known[j - 1]) / slope
    return found


# Samples

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
            evidence = evidence_of(bound, heads, [prompt] * len(heads))
            tested = [bound.test(found, test=bound.tests[0]) for found in evidence]
            z[i, : len(heads)] = [each.z for each in tested]
            effective[i, : len(heads)] = [each.effective_length for each in tested]
        progress("scoring", i + 1, len(texts))
    return measure_power(z, effective, cuts, fpr=fpr, least_effective=least_length(bound.expectations))


def _head(text: Tokenized, tokens: int) -> Tokenized:
    """The first tokens of a text."""
    end = text.offsets[tokens - 1][1]
    return Tokenized(text.text[:end], text.ids[:tokens], text.offsets[:tokens], text.forms[:tokens])
