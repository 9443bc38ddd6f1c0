"""How many texts a forger of DEW needs: the estimate and the forgery against the number of texts observed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark.attacks.stealing.attack import StealSettings
from dewmark.attacks.stealing.judging import Judge, median_perplexity
from dewmark.attacks.stealing.regression import (
    Baseline,
    Moments,
    as_dew,
    cosine,
    estimate,
    forged,
    moments_of,
    pairs_of,
    residual_moments,
)
from dewmark.attacks.stealing.writing import decoding_of, own_seeds, write_texts
from dewmark.errors import InputError
from dewmark.hosts.base import Host
from dewmark.scheme import BoundScheme
from dewmark.workspace import Progress, silent

__all__ = ["SIZES", "CurvePoint", "forgery_curve"]

SIZES = (50, 100, 200, 500, 1000, 2000)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What ``texts`` observed texts (``units`` pairs of unit and context) are worth to a forger.

    ``cosine`` is the correlation of the estimated with the true score on fresh pairs; the rest is of the
    forged texts, as in `StealingResult`.
    """

    texts: int
    units: int
    cosine: float
    found: float
    above: float
    mean_z: float
    perplexity: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)


def forgery_curve(
    victim: BoundScheme,
    host: Host,
    marked: Sequence[str],
    base: Sequence[str],
    humans: Sequence[str],
    *,
    prompts: Sequence[str],
    settings: StealSettings | None = None,
    sizes: Sequence[int] = SIZES,
    judge: Judge | None = None,
    keep: Path | None = None,
    progress: Progress = silent,
) -> list[CurvePoint]:
    """Forge DEW from the first n marked texts, for each n of ``sizes`` that there are texts for.

    Texts are read once. ``settings`` give the strength, the length and number of forged texts, and the tilt.
    """
    chosen = dataclasses.replace(settings or StealSettings(), method="embedding")
    dew = as_dew(victim)
    known = sorted({size for size in sizes if 0 < size <= len(marked)})
    if not known:
        raise InputError(f"{len(marked)} marked texts are fewer than the least of {sorted(sizes)}")
    judge = judge or Judge.of(victim, humans)
    baseline = Baseline.of(pairs_of(dew.reader, base))
    residual = chosen.expectation == "host"
    openers = list(prompts)[: chosen.texts]
    points: list[CurvePoint] = []
    moments: Moments | None = None
    for i, (first, last) in enumerate(zip([0, *known], known, strict=False)):
        progress("forging", i, len(known))
        some = marked[first:last]
        more = residual_moments(host, dew.reader, some) if residual else moments_of(dew.reader, some)
        moments = more if moments is None else moments + more
        W = estimate(moments, baseline, tilt=chosen.tilt, residual=residual)
        made = write_texts(
            host,
            forged(dew, W, strength=chosen.chosen_strength),
            openers,
            seeds=own_seeds(chosen.seed, len(openers)),
            decoding=decoding_of(chosen.tokens),
            batch_size=chosen.batch_size,
            keep=keep,
        )
        texts = [row.text for row in made]
        found = judge.judge(texts)
        points.append(
            CurvePoint(
                texts=last,
                units=moments.count,
                cosine=cosine(dew, W, humans),
                found=found.found,
                above=found.above,
                mean_z=found.mean_z,
                perplexity=median_perplexity(host, openers, texts),
            )
        )
    progress("forging", len(known), len(known))
    return points
