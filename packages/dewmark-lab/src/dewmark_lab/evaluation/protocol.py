"""The evaluation protocol of the paper's section 4, extended by matched negatives.

For each scheme and attack, and for each seed s: the threshold at a nominal false-positive rate comes from the
negatives of all other seeds (`metrics.held_out`) and is applied to the marked texts of seed
s. The results are mean and half-range over seeds. The paper's negatives are unattacked, but an attack may
also move the scores of unmarked texts. Every attacked cell is therefore also evaluated against negatives that
went through the same attack, and the actual false-positive rate of the unattacked threshold on them is
reported.

Seeds without negatives are left out. A single seed gets its threshold from its own negatives (the paper's
lexical, DIPPER and stealing tables), and ``Comparison.held_out`` is False.

Boundary: rows in, an `Evaluation` out. Intervals treat texts as independent; effects of a key on all its
texts show in the half-range over seeds instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dewmark.arrays import F64
from dewmark.errors import ConfigError, InputError
from dewmark_audit.rates import Rate, rate
from dewmark_lab.evaluation.results import (
    CLEAN,
    HUMAN,
    MARKED,
    UNMARKED,
    Comparison,
    Evaluation,
    OperatingPoint,
    PValueShare,
    ResultCell,
    ScoreRow,
)
from dewmark_lab.metrics import auroc, auroc_interval, held_out, spread

RATES = (0.01, 0.05)
LEVELS = (1e-4,)
"""Levels of p-values that are evaluated beside the nominal rates; no threshold can be fitted there."""

BySeed = Mapping[int, F64]
Groups = dict[tuple[str, str, str], list[ScoreRow]]  # by scheme, attack and kind


def evaluate(rows: Sequence[ScoreRow], *, rates: Sequence[float] = RATES) -> Evaluation:
    """Evaluate every scheme under every attack that has marked texts."""
    if not rates or not all(0.0 < each < 1.0 for each in rates):
        raise ConfigError(f"rates must lie in (0, 1), got {', '.join(map(str, rates)) or 'none'}")
    groups = grouped(rows)
    cells = tuple(_cell(groups, scheme, attack, rates) for scheme, attack, kind in groups if kind == MARKED)
    if not cells:
        raise InputError("there is nothing to evaluate: no row is a marked text")
    return Evaluation(rates=tuple(rates), cells=cells, notes=tuple(_notes(cells)))


def grouped(rows: Iterable[ScoreRow]) -> Groups:
    """The rows by scheme, attack and kind; no text may be scored twice."""
    groups: Groups = {}
    places = Counter(row.place for row in rows)
    if twice := next((place for place, number in places.items() if number > 1), None):
        raise InputError(f"a text is scored twice: {', '.join(map(str, twice))}; remove one of the rows")
    for row in rows:
        groups.setdefault((row.scheme, row.attack, row.kind), []).append(row)
    return groups


def _cell(groups: Groups, scheme: str, attack: str, rates: Sequence[float]) -> ResultCell:
    def scores(kind: str, under: str) -> dict[int, F64]:
        return by_seed(groups.get((scheme, under, kind), ()))

    marked = groups[scheme, attack, MARKED]
    positives, clean, matched = scores(MARKED, attack), scores(UNMARKED, CLEAN), scores(UNMARKED, attack)
    human, human_matched = scores(HUMAN, CLEAN), scores(HUMAN, attack)
    compared = (
        _compare("clean", positives, clean, matched, rates),
        _compare("matched", positives, matched, matched, rates),
        _compare("human", positives, human, human_matched, rates),
        _compare("human-matched", positives, human_matched, human_matched, rates),
    )
    return ResultCell(
        scheme=scheme,
        attack=attack,
        seeds=tuple(positives),
        texts=len(marked),
        tokens=float(np.median([row.tokens for row in marked])),
        against=tuple(each for each in compared if each is not None),
        shares=tuple(_shares(groups, scheme, attack, sorted({*LEVELS, *rates}))),
        score=float(np.mean([row.score for row in marked])),
        shift=_shift(clean, matched),
        kept=float(np.mean(kept)) if (kept := [row.kept for row in marked if row.kept is not None]) else None,
    )


def by_seed(rows: Iterable[ScoreRow]) -> dict[int, F64]:
    """The scores of each seed."""
    scores: dict[int, list[float]] = {}
    for row in rows:
        scores.setdefault(row.seed, []).append(row.score)
    return {seed: np.array(scores[seed]) for seed in sorted(scores)}


def _compare(
    name: str, positives: BySeed, negatives: BySeed, attacked: BySeed, rates: Sequence[float]
) -> Comparison | None:
    """Positives against negatives, over the seeds that both have; ``attacked`` get the same thresholds."""
    seeds = [seed for seed in positives if seed in negatives]
    if not seeds:
        return None
    high, low = ({seed: side[seed] for seed in seeds} for side in (positives, negatives))
    areas = spread([auroc(high[seed], low[seed]) for seed in seeds])
    count = sum(map(len, high.values())), sum(map(len, low.values()))
    return Comparison(
        negatives=name,
        texts=count[1],
        auroc=areas,
        interval=auroc_interval(areas.mean, positives=count[0], negatives=count[1]),
        held_out=len(seeds) > 1,
        at=tuple(_operating_point(high, low, attacked, each) for each in rates),
    )


def _operating_point(
    positives: BySeed, negatives: BySeed, attacked: BySeed, nominal: float
) -> OperatingPoint:
    seeds = held_out(positives, negatives, fpr=nominal)
    thresholds = {seed.seed: seed.threshold for seed in seeds}
    passed = _above(negatives, thresholds)
    real = _above(attacked, thresholds) if thresholds.keys() & attacked.keys() else None
    total = sum(map(len, negatives.values()))
    calibrating = min(total - len(own) for own in negatives.values()) if len(negatives) > 1 else total
    return OperatingPoint(
        rate=nominal,
        tpr=spread([seed.tpr for seed in seeds]),
        fpr=spread([seed.fpr for seed in seeds]),
        found=_above(positives, thresholds),
        passed=passed,
        attacked=real,
        shift_p=None if real is None else _fisher(real, passed),
        thresholds=tuple(thresholds.values()),
        few=calibrating * nominal < 1.0 - 1e-9,
    )


def _above(scores: BySeed, thresholds: Mapping[int | str, float]) -> Rate:
    """The rate of texts above their seed's threshold, over the seeds that have one."""
    known = [(values, thresholds[seed]) for seed, values in scores.items() if seed in thresholds]
    return rate(
        sum(int(np.count_nonzero(values > bar)) for values, bar in known),
        sum(len(values) for values, _ in known),
    )


def _fisher(real: Rate, passed: Rate) -> float:
    """Fisher's exact p-value that attacked negatives pass no more often than unattacked ones."""
    from scipy.stats import fisher_exact

    table = [[each.hits, each.trials - each.hits] for each in (real, passed)]
    return float(fisher_exact(table, alternative="greater").pvalue)


def _shares(groups: Groups, scheme: str, attack: str, rates: Sequence[float]) -> Iterable[PValueShare]:
    def p_values(kind: str) -> list[float]:
        return [row.p_value for row in groups.get((scheme, attack, kind), ()) if row.p_value is not None]

    def below(p: list[float], nominal: float) -> Rate | None:
        return rate(sum(each < nominal for each in p), len(p)) if p else None

    marked, unmarked, human = p_values(MARKED), p_values(UNMARKED), p_values(HUMAN)
    for nominal in rates:
        if (found := below(marked, nominal)) is not None:
            yield PValueShare(nominal, found, below(unmarked, nominal), below(human, nominal))


def _shift(clean: BySeed, attacked: BySeed) -> float | None:
    """The shift of the mean negative score under attack, in standard deviations, averaged over seeds."""
    moved = [
        (float(attacked[seed].mean()) - float(own.mean())) / float(own.std(ddof=1))
        for seed, own in clean.items()
        if seed in attacked and len(own) > 1 and own.std() > 0.0
    ]
    return float(np.mean(moved)) if moved else None


def _notes(cells: Sequence[ResultCell]) -> Iterable[str]:
    """Caveats for readers who compare the figures."""
    few: dict[float, dict[str, int]] = {}
    for cell in cells:
        for against in cell.against:
            for each in against.at:
                if each.few:
                    kinds = few.setdefault(each.rate, {})
                    kinds[against.negatives] = min(against.texts, kinds.get(against.negatives, against.texts))
    for nominal, kinds in few.items():
        yield (
            f"a {100 * nominal:g}% threshold needs {int(np.ceil(1 / nominal))} negatives from other seeds, "
            "otherwise it is just their largest score; in all there are "
            + ", ".join(f"{number} {kind}" for kind, number in kinds.items())
        )
    single = {cell.scheme for cell in cells if any(not each.held_out for each in cell.against)}
    if single:
        everywhere = single == {cell.scheme for cell in cells}
        which = "" if everywhere else f" ({', '.join(sorted(single))})"
        yield f"one seed only{which}: false positives are counted on the negatives that set the threshold"
    unmatched = {
        cell.attack
        for cell in cells
        if cell.attack != CLEAN and not any(each.negatives.endswith("matched") for each in cell.against)
    }
    if unmatched:
        yield (
            f"no negatives went through {', '.join(sorted(unmatched))}: "
            "robustness cannot be distinguished from a shifted null there"
        )
