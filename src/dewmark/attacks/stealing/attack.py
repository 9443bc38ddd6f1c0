"""Watermark stealing: learn a mark from texts that carry it, then forge it or scrub it, without the key.

An attacker sees texts that a victim's model marked and writes unmarked ones with the same host. Two ways to
learn: ``counts`` (`stealing_counts`) knows nothing of the scheme, ``embedding`` (`stealing_dew`) knows that
it is DEW and how it reads texts, all but the key. Two uses: ``spoof`` writes new texts that the victim's
detector should accept, ``scrub`` rewrites the victim's texts so that it should not. The victim's own
detector judges, beside human texts; the control is the same writing with strength 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dewmark import config
from dewmark.attacks.stealing.counting import CountRules, count_contexts, learn_boosts
from dewmark.attacks.stealing.forging import CountsForger, Rewriter
from dewmark.attacks.stealing.judging import Judge, median_perplexity
from dewmark.attacks.stealing.regression import (
    Baseline,
    as_dew,
    cosine,
    estimate,
    forged,
    moments_of,
    pairs_of,
    residual_moments,
)
from dewmark.attacks.stealing.writing import Written, decoding_of, own_seeds, write_texts
from dewmark.errors import ConfigError, InputError
from dewmark.hosts.base import Host
from dewmark.scheme import BoundScheme
from dewmark.workspace import Progress, silent

__all__ = ["StealSettings", "StealingResult", "learn", "steal"]

_STRENGTHS = {"counts": 6.5, "embedding": 4.0}


@dataclass(frozen=True)
class StealSettings:
    """How a mark is stolen and what is done with it."""

    method: Literal["counts", "embedding"] = "counts"
    mode: Literal["spoof", "scrub"] = "spoof"
    strength: float | None = None
    """The most that a logit can get (by default 6.5 with counts, 4 with embeddings); 0 is no attack."""
    observed: int | None = None
    """How many of the marked texts the attacker has seen; by default all."""
    texts: int = 100
    """How many texts are forged or scrubbed, at most one per prompt."""
    tokens: int = 200
    """Their length when forged."""
    fidelity: float = 6.0
    """How many nats a scrubbing rewrite prefers the original's token by."""
    tilt: float = 0.3
    """The strength β that the attack by embeddings supposes of the mark (it sets its ridge)."""
    expectation: Literal["base", "host"] = "base"
    """What embeddings are compared with: base texts on average, or the host's candidates in each place."""
    h: int = 3
    min_count: int = 2
    min_share: float = 7e-5
    clip: float = 2.0
    full_weight: float = 2.0
    single_weight: float = 1.0
    empty_weight: float = 0.5
    seed: int = 0
    batch_size: int = 50

    def __post_init__(self) -> None:
        for name, value in config.coerced(self).items():
            object.__setattr__(self, name, value)
        for name, least in (("texts", 1), ("tokens", 1), ("seed", 0), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.observed is not None and self.observed < 1:
            raise ConfigError(f"observed must be at least 1, got {self.observed}")
        if self.strength is not None and self.strength < 0.0:
            raise ConfigError(f"strength must not be negative, got {self.strength}: use mode scrub")
        if not (self.tilt > 0.0 and self.fidelity >= 0.0):
            raise ConfigError(
                f"tilt must be positive and fidelity not negative, got {self.tilt} and {self.fidelity}"
            )
        _ = self.rules

    @property
    def rules(self) -> CountRules:
        """The rules of counting."""
        names = [field.name for field in dataclasses.fields(CountRules)]
        return CountRules(**{name: getattr(self, name) for name in names})

    @property
    def chosen_strength(self) -> float:
        """The strength given, or the method's own."""
        return _STRENGTHS[self.method] if self.strength is None else self.strength

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        return config.to_dict(self)


@dataclass(frozen=True, slots=True)
class StealingResult:
    """What the victim's detector made of the attacker's texts.

    ``found`` is the share with p < 0.01, ``above`` the share above the z that 1% of human texts exceed: the
    success of a spoof, the failure of a scrub. ``control_…`` is the same writing with strength 0,
    ``genuine_…`` the victim's own texts. ``cosine`` (embedding only) is the correlation of the estimated with
    the true score on fresh pairs, ``kept`` (scrub only) the share of tokens left as they were.
    """

    victim: str
    method: str
    mode: str
    strength: float
    observed: int
    base: int
    written: int
    found: float
    above: float
    mean_z: float
    perplexity: float
    control_found: float
    control_above: float
    control_perplexity: float
    genuine_found: float
    genuine_above: float
    human_found: float
    humans: int
    threshold: float
    cosine: float | None
    kept: float | None
    control_kept: float | None
    p_values: tuple[float, ...] = dataclasses.field(repr=False)
    texts: tuple[str, ...] = dataclasses.field(repr=False)

    def to_dict(self, *, texts: bool = False) -> dict[str, Any]:
        """Plain JSON values; with every text and its p-value if ``texts``."""
        row = dataclasses.asdict(self)
        if not texts:
            del row["texts"], row["p_values"]
        return row


def steal(
    victim: BoundScheme,
    host: Host,
    marked: Sequence[str],
    base: Sequence[str],
    humans: Sequence[str],
    *,
    settings: StealSettings,
    prompts: Sequence[str],
    targets: Sequence[str] = (),
    judge: Judge | None = None,
    keep: Path | None = None,
    progress: Progress = silent,
) -> StealingResult:
    """Steal the victim's mark from ``marked`` texts with the help of unmarked ``base`` texts, and use it.

    A spoof continues ``prompts``; a scrub rewrites ``targets``, marked texts that continue them. ``humans``
    set the detector's threshold. ``keep`` is a folder in which finished batches survive a stopped run.
    """
    if not prompts:
        raise InputError("no prompts: the attacker has nothing to continue")
    if settings.mode == "scrub" and len(targets) != len(prompts):
        raise InputError(
            f"scrubbing needs the text that continues each prompt: got {len(prompts)} prompts and "
            f"{len(targets)} texts"
        )
    judge = judge or Judge.of(victim, humans)
    sign = 1.0 if settings.mode == "spoof" else -1.0
    progress("learning the mark", 0, 1)
    forger, fit = learn(
        victim, host, marked, base, settings=settings, strength=sign * settings.chosen_strength, fresh=humans
    )
    progress("learning the mark", 1, 1)
    work = _Work(
        host, settings, list(prompts)[: settings.texts], list(targets)[: settings.texts], keep, progress
    )
    genuine = judge.judge(work.targets or list(marked)[: settings.texts])
    control = work.write(None)
    made = work.write(forger) if settings.chosen_strength else control
    found, without = judge.judge(_texts(made)), judge.judge(_texts(control))
    return StealingResult(
        victim=victim.scheme.name,
        method=settings.method,
        mode=settings.mode,
        strength=settings.chosen_strength,
        observed=len(list(marked)[: settings.observed]),
        base=len(base),
        written=len(made),
        found=found.found,
        above=found.above,
        mean_z=found.mean_z,
        perplexity=median_perplexity(host, work.prompts, _texts(made)),
        control_found=without.found,
        control_above=without.above,
        control_perplexity=median_perplexity(host, work.prompts, _texts(control)),
        genuine_found=genuine.found,
        genuine_above=genuine.above,
        human_found=judge.human_found,
        humans=judge.humans,
        threshold=judge.threshold,
        cosine=fit,
        kept=work.kept(made),
        control_kept=work.kept(control),
        p_values=found.p_values,
        texts=tuple(_texts(made)),
    )


def learn(
    victim: BoundScheme,
    host: Host,
    marked: Sequence[str],
    base: Sequence[str],
    *,
    settings: StealSettings,
    strength: float,
    fresh: Sequence[str] = (),
) -> tuple[BoundScheme, float | None]:
    """A forger from observed texts; by embeddings also its cosine with the true score on ``fresh`` texts."""
    seen = list(marked)[: settings.observed]
    if not seen or not base:
        raise InputError(f"stealing needs marked and base texts, got {len(seen)} and {len(base)}")
    if settings.method == "embedding":
        dew = as_dew(victim)
        baseline = Baseline.of(pairs_of(dew.reader, base))
        residual = settings.expectation == "host"
        moments = residual_moments(host, dew.reader, seen) if residual else moments_of(dew.reader, seen)
        W = estimate(moments, baseline, tilt=settings.tilt, residual=residual)
        return forged(dew, W, strength=strength), cosine(dew, W, fresh) if fresh else None
    info, rules = host.info, settings.rules
    counts = [
        count_contexts([t.ids for t in info.tokenizer.encode(texts)], h=rules.h, vocab_size=info.vocab_size)
        for texts in (seen, list(base))
    ]
    boosts = learn_boosts(*counts, rules=rules, vocab_size=info.vocab_size)
    return CountsForger(boosts, info, strength=strength), None


@dataclass
class _Work:
    """The texts to be written, forged or scrubbed."""

    host: Host
    settings: StealSettings
    prompts: list[str]
    targets: list[str]
    keep: Path | None
    progress: Progress

    def __post_init__(self) -> None:
        self.originals = [t.ids for t in self.host.info.tokenizer.encode(self.targets)]

    def write(self, forger: BoundScheme | None) -> list[Written]:
        """Write with a forger, or without."""
        settings = self.settings
        seeds = own_seeds(settings.seed, len(self.prompts))
        if settings.mode == "spoof":
            tokens, scheme, lengths = settings.tokens, forger, None
        else:
            originals = dict(zip(seeds, self.originals, strict=True))
            scheme = Rewriter(forger, originals, self.host.info, fidelity=settings.fidelity)
            lengths = [len(ids) for ids in self.originals]
            tokens = max(lengths)
        return write_texts(
            self.host,
            scheme,
            self.prompts,
            seeds=seeds,
            decoding=decoding_of(tokens),
            batch_size=settings.batch_size,
            lengths=lengths,
            about=self.targets,
            keep=self.keep,
            progress=self.progress,
        )

    def kept(self, made: Sequence[Written]) -> float | None:
        """The share of the originals' tokens that are still in their places."""
        if self.settings.mode == "spoof":
            return None
        same = [
            np.mean([a == b for a, b in zip(row.ids, ids, strict=False)])
            for row, ids in zip(made, self.originals, strict=True)
            if ids
        ]
        return float(np.mean(same))


def _texts(rows: Sequence[Written]) -> list[str]:
    return [row.text for row in rows]
