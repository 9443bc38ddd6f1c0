"""Watermark stealing: learn a mark from texts that carry it, then forge or scrub it without the key.

The attacker observes texts marked by the victim and can generate unmarked text with the same host.
``counts`` (`counting`) knows nothing about the scheme, ``embedding`` (`regression`) everything about DEW but
the key. A ``spoof`` writes new texts that the victim's detector should accept, a ``scrub`` rewrites marked
texts so that it should reject them. The victim's own detector judges the results against human texts, beside
the same generation at strength 0. Unless a strength is given, that detector also chooses the best one, which
makes the result an upper bound.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from dewmark import config
from dewmark.detect import detect_texts
from dewmark.dew.scheme import BoundDEW
from dewmark.errors import ConfigError, InputError
from dewmark.hosts.base import Host
from dewmark.scheme import BoundScheme
from dewmark.workspace import Progress, silent
from dewmark_lab.attacks.stealing.counting import CountRules, count_contexts, learn_boosts
from dewmark_lab.attacks.stealing.forging import (
    CountsForger,
    DewForger,
    GeneratedText,
    RewritingForger,
    attacker_seeds,
    fixed_length,
    generate_texts,
)
from dewmark_lab.attacks.stealing.regression import (
    Baseline,
    as_dew,
    cosine,
    estimate,
    moments_of,
    pairs_of,
    residual_moments,
)
from dewmark_lab.metrics import threshold_at

STRENGTHS = {"counts": (4.0, 6.5, 10.0), "embedding": (3.0, 6.0, 12.0)}
"""The strengths that are tried, by method."""

_PILOT = 16  # texts per strength in the search
_LEVEL = 0.01  # of the victim's detector


@dataclass(frozen=True)
class StealSettings(CountRules):
    """How the mark is learned and used; the inherited fields belong to the method ``counts``."""

    method: Literal["counts", "embedding"] = "counts"
    mode: Literal["spoof", "scrub"] = "spoof"
    strength: Annotated[float | None, "at least 0"] = None
    """The largest change to a logit; 0 is no attack. By default the best of `STRENGTHS`."""
    observed: Annotated[int | None, "at least 1"] = None
    """How many of the marked texts the attacker observes (default: all)."""
    texts: Annotated[int, "at least 1"] = 100
    """How many texts to forge or scrub, at most one per prompt."""
    tokens: Annotated[int, "at least 1"] = 200
    """Length of a forged text."""
    fidelity: Annotated[float, "at least 0"] = 6.0
    """Bonus in nats for the original token when a text is scrubbed."""
    tilt: Annotated[float | None, "positive"] = None
    """The mark's strength β that the embedding method assumes, for its ridge; by default from the texts."""
    grouping: Literal["pooled", "told"] = "pooled"
    """Learn from the texts of all members of a ring, or from those of the member with the most texts."""
    expectation: Literal["base", "host"] = "base"
    """Subtract from each embedding the mean over base texts, or the host's expectation at that position."""
    seed: Annotated[int, "at least 0"] = 0
    batch_size: Annotated[int, "at least 1"] = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grouping != "pooled" and self.method != "embedding":
            raise ConfigError(f"grouping={self.grouping} needs method embedding")

    @property
    def rules(self) -> CountRules:
        """The rules of the method ``counts`` alone."""
        names = [field.name for field in dataclasses.fields(CountRules)]
        return CountRules(**{name: getattr(self, name) for name in names})

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        return config.to_dict(self)


@dataclass(frozen=True, slots=True)
class StealingResult:
    """How the victim's detector judged the attacker's texts.

    ``found`` is the share with p < 0.01; ``above`` is the share above the z-score that 1% of human texts
    exceed. A spoof succeeds if they are high, a scrub if they are low. ``control_…`` is the same generation
    at strength 0, ``genuine_…`` the victim's own texts. ``cosine`` (embedding only) is the correlation of
    estimated and true scores on fresh pairs; ``kept`` (scrub only) is the share of unchanged tokens. The
    ``…attributable`` shares are None if the victim's detector does not attribute texts. ``grouped`` is the
    number of texts that the mark was learned from.
    """

    victim: str
    method: str
    mode: str
    strength: float
    observed: int
    grouped: int
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
    attributable: float | None
    control_attributable: float | None
    genuine_attributable: float | None
    p_values: tuple[float, ...] = dataclasses.field(repr=False)
    texts: tuple[str, ...] = dataclasses.field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, without the texts and their p-values."""
        row = dataclasses.asdict(self)
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
    members: Sequence[int] | None = None,
    resume_dir: Path | None = None,
    progress: Progress = silent,
) -> StealingResult:
    """Learn the victim's mark from ``marked`` texts and unmarked ``base`` texts, and use it.

    A spoof continues ``prompts``; a scrub rewrites ``targets``, the marked texts that continue them.
    ``humans`` set the detector's threshold. ``members`` are those of the marked texts, for an attacker who is
    told. Finished batches are kept in ``resume_dir``, so that a stopped run can resume.
    """
    if not prompts:
        raise InputError("no prompts: the attacker has nothing to continue")
    if settings.mode == "scrub" and len(targets) != len(prompts):
        raise InputError(
            f"scrubbing needs the text that continues each prompt: got {len(prompts)} prompts and "
            f"{len(targets)} texts"
        )
    if not marked or not base:
        raise InputError(f"stealing needs marked and base texts, got {len(marked)} and {len(base)}")
    judge = ForgeryJudge.of(victim, humans)
    run = _GenerationRun(
        host, settings, list(prompts)[: settings.texts], list(targets)[: settings.texts], resume_dir, progress
    )
    genuine = judge.judge(run.targets or list(marked)[: settings.texts])
    progress("learning the mark", 0, 1)
    learned = _learn(victim, host, marked, base, humans, settings=settings, members=members)
    progress("learning the mark", 1, 1)
    strength = _search(learned, run, judge)
    control = run.generate(None)
    made = run.generate(learned.forger(strength)) if strength else control
    attacked, unattacked = judge.judge(_texts(made)), judge.judge(_texts(control))
    return StealingResult(
        victim=victim.scheme.name,
        method=settings.method,
        mode=settings.mode,
        strength=abs(strength),
        observed=len(list(marked)[: settings.observed]),
        grouped=learned.grouped,
        base=len(base),
        written=len(made),
        found=attacked.found,
        above=attacked.above,
        mean_z=attacked.mean_z,
        perplexity=median_perplexity(host, run.prompts[: len(made)], _texts(made)),
        control_found=unattacked.found,
        control_above=unattacked.above,
        control_perplexity=median_perplexity(host, run.prompts[: len(control)], _texts(control)),
        genuine_found=genuine.found,
        genuine_above=genuine.above,
        human_found=judge.human_found,
        humans=judge.humans,
        threshold=judge.threshold,
        cosine=learned.cosine,
        kept=run.kept(made),
        control_kept=run.kept(control),
        attributable=attacked.attributable,
        control_attributable=unattacked.attributable,
        genuine_attributable=genuine.attributable,
        p_values=attacked.p_values,
        texts=tuple(_texts(made)),
    )


@dataclass(frozen=True)
class _Learned:
    """A learned mark: how to write with it at a strength.

    ``cosine`` (embedding only) is with the true scores on fresh texts; ``grouped`` counts the texts learned
    from.
    """

    forger: Callable[[float], BoundScheme]
    cosine: float | None
    grouped: int


def _learn(
    victim: BoundScheme,
    host: Host,
    marked: Sequence[str],
    base: Sequence[str],
    fresh: Sequence[str],
    *,
    settings: StealSettings,
    members: Sequence[int] | None,
) -> _Learned:
    seen = list(marked)[: settings.observed]
    if settings.method == "embedding":
        dew = as_dew(victim)
        baseline = Baseline.of(pairs_of(dew.reader, base))
        chosen = seen if settings.grouping == "pooled" else _largest_group(seen, members)
        by_host = settings.expectation == "host"
        moments = residual_moments(host, dew.reader, chosen) if by_host else moments_of(dew.reader, chosen)
        W = estimate(moments, baseline, tilt=settings.tilt, residual=by_host)
        return _Learned(
            lambda strength: DewForger(dew, W, strength=strength),
            cosine(dew, W, fresh) if fresh else None,
            len(chosen),
        )
    info, rules = host.info, settings.rules
    counts = [
        count_contexts([t.ids for t in info.tokenizer.encode(texts)], h=rules.h, vocab_size=info.vocab_size)
        for texts in (seen, list(base))
    ]
    boosts = learn_boosts(*counts, rules=rules, vocab_size=info.vocab_size)
    return _Learned(lambda strength: CountsForger(boosts, info, strength=strength), None, len(seen))


def _largest_group(seen: Sequence[str], members: Sequence[int] | None) -> list[str]:
    """The texts of the member that wrote most of them."""
    if members is None:
        raise InputError('grouping=told needs the "member" of every marked text')
    pairs = list(zip(members, seen, strict=False))
    most = Counter(member for member, _ in pairs).most_common(1)[0][0]
    return [text for member, text in pairs if member == most]


def _search(learned: _Learned, run: _GenerationRun, judge: ForgeryJudge) -> float:
    """The strength (negative to scrub) that serves the attacker best, as the victim judges."""
    settings = run.settings
    sign = 1.0 if settings.mode == "spoof" else -1.0
    strengths = STRENGTHS[settings.method] if settings.strength is None else (settings.strength,)
    tried = [sign * strength for strength in strengths]
    if len(tried) == 1:
        return tried[0]
    pilot = run.first(_PILOT)
    judged = [judge.judge(_texts(pilot.generate(learned.forger(each)))) for each in tried]
    best = max(range(len(tried)), key=lambda i: (judged[i].attributable or 0.0, sign * judged[i].mean_z))
    return tried[best]


@dataclass
class _GenerationRun:
    """The prompts that a spoof continues, or the targets that a scrub rewrites."""

    host: Host
    settings: StealSettings
    prompts: list[str]
    targets: list[str]
    resume_dir: Path | None
    progress: Progress

    def __post_init__(self) -> None:
        self.originals = [t.ids for t in self.host.info.tokenizer.encode(self.targets)]

    def first(self, number: int) -> _GenerationRun:
        """The same with the first few texts only, under other seeds."""
        settings = dataclasses.replace(self.settings, seed=self.settings.seed + len(self.prompts))
        prompts, targets = self.prompts[:number], self.targets[:number]
        return _GenerationRun(self.host, settings, prompts, targets, self.resume_dir, self.progress)

    def generate(self, forger: BoundScheme | None) -> list[GeneratedText]:
        """Generate with a forger, or without one."""
        settings = self.settings
        seeds = attacker_seeds(settings.seed, len(self.prompts))
        if settings.mode == "spoof":
            tokens, scheme, lengths = settings.tokens, forger, None
        else:
            originals = dict(zip(seeds, self.originals, strict=True))
            scheme = RewritingForger(forger, originals, self.host.info, fidelity=settings.fidelity)
            lengths = [len(ids) for ids in self.originals]
            tokens = max(lengths)
        return generate_texts(
            self.host,
            scheme,
            self.prompts,
            seeds=seeds,
            decoding=fixed_length(tokens),
            batch_size=settings.batch_size,
            lengths=lengths,
            about=self.targets,
            resume_dir=self.resume_dir,
            progress=self.progress,
        )

    def kept(self, made: Sequence[GeneratedText]) -> float | None:
        """The share of the originals' tokens that are unchanged; None for a spoof."""
        if self.settings.mode == "spoof":
            return None
        same = [
            np.mean([a == b for a, b in zip(row.ids, ids, strict=False)])
            for row, ids in zip(made, self.originals, strict=False)
            if ids
        ]
        return float(np.mean(same))


def _texts(rows: Sequence[GeneratedText]) -> list[str]:
    return [row.text for row in rows]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Each text's p-value and z-score, the share with p < 0.01, and the share above the threshold.

    ``attributable`` is the share that the detector attributes to the key's holder; None if it does not test.
    """

    p_values: tuple[float, ...]
    z: tuple[float, ...]
    found: float
    above: float
    attributable: float | None

    @property
    def mean_z(self) -> float:
        """The mean z-score."""
        return float(np.mean(self.z))


@dataclass(frozen=True)
class ForgeryJudge:
    """The victim's detector and its ``threshold``, the z-score that 1% of human texts exceed.

    ``humans`` is the number of human texts and ``human_found`` the share of them with p < 0.01, that is, the
    detector's actual false-positive rate.
    """

    victim: BoundScheme
    threshold: float
    humans: int
    human_found: float

    @classmethod
    def of(cls, victim: BoundScheme, humans: Sequence[str]) -> ForgeryJudge:
        """A judge whose threshold comes from human texts, scored without prompts."""
        if not humans:
            raise InputError("no human texts: the victim's threshold needs some")
        p_values, z, _ = _scores(victim, humans)
        alarms = float(np.mean(np.array(p_values) < _LEVEL))
        return cls(victim, threshold_at(z, fpr=_LEVEL), len(humans), alarms)

    def judge(self, texts: Sequence[str]) -> Judgement:
        """Score texts without their prompts, as a detector would see them."""
        p_values, z, attributable = _scores(self.victim, texts)
        return Judgement(
            p_values=tuple(p_values),
            z=tuple(z),
            found=float(np.mean(np.array(p_values) < _LEVEL)),
            above=float(np.mean(np.array(z) > self.threshold)),
            attributable=attributable,
        )


def median_perplexity(host: Host, prompts: Sequence[str], texts: Sequence[str]) -> float:
    """The median perplexity of completions under the host."""
    pairs = host.log_likelihood(prompts, texts)
    return float(np.median([math.exp(-total / count) for total, count in pairs if count]))


def _scores(victim: BoundScheme, texts: Sequence[str]) -> tuple[list[float], list[float], float | None]:
    """p-values and z-scores (blank texts get 1 and 0), and the share of texts that are attributed."""
    found = [each.judged for each in detect_texts(texts, victim, explain=False, blank=True)]
    share = None
    if isinstance(victim, BoundDEW) and victim.attributes:
        tests = [detection.forgery for detection in found]  # only marked texts are tested
        share = sum(test is not None and test.attributable for test in tests) / max(len(tests), 1)
    return [detection.p_value for detection in found], [detection.z for detection in found], share
