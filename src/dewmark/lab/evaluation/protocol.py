"""The protocol of the paper's section 4, and beside it the matched null that the paper leaves out.

For each scheme and attack, and each seed s in turn: the threshold at a nominal false-positive rate is taken
from the negatives of all other seeds (`stats.metrics.leave_one_seed_out`), and applied to the marked texts of
seed s. Reported are mean and half-range over seeds. The paper's negatives are unattacked; since an attack may
move the scores of unmarked texts too, every attacked cell is also judged by negatives that went through the
same attack, and the real false-positive rate of the unattacked threshold on them is counted.

A negative set that lacks a seed leaves that seed out. With a single seed the threshold is its own negatives'
(the paper's lexical, DIPPER and stealing tables), and ``Against.held_out`` is False.

Boundary: rows in, an `Evaluation` out. Texts are counted as independent; what one key does to all of them
shows in the half-range over seeds, not in the intervals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dewmark.arrays import F64
from dewmark.errors import ConfigError, InputError
from dewmark.lab.evaluation.results import (
    CLEAN,
    HUMAN,
    MARKED,
    UNMARKED,
    Against,
    Cell,
    Evaluation,
    Operating,
    ScoreRow,
    Share,
)
from dewmark.stats.metrics import (
    HeldOut,
    Rate,
    auroc,
    auroc_interval,
    leave_one_seed_out,
    rate,
    spread,
    threshold_at,
)

__all__ = ["RATES", "Evaluation", "evaluate"]

RATES = (0.01, 0.05)

BySeed = Mapping[int, F64]
Groups = dict[tuple[str, str, str], list[ScoreRow]]  # by scheme, attack and kind


def evaluate(rows: Sequence[ScoreRow], *, rates: Sequence[float] = RATES) -> Evaluation:
    """Judge every scheme under every attack that has marked texts."""
    if not rates or not all(0.0 < each < 1.0 for each in rates):
        raise ConfigError(f"rates must lie in (0, 1), got {', '.join(map(str, rates)) or 'none'}")
    groups = _grouped(rows)
    cells = tuple(_cell(groups, scheme, attack, rates) for scheme, attack, kind in groups if kind == MARKED)
    if not cells:
        raise InputError("there is nothing to evaluate: no row is of a marked text")
    return Evaluation(rates=tuple(rates), cells=cells, notes=tuple(_notes(cells)))


def _grouped(rows: Iterable[ScoreRow]) -> Groups:
    groups: Groups = {}
    places = Counter(row.place for row in rows)
    if twice := next((place for place, number in places.items() if number > 1), None):
        raise InputError(f"a text is scored twice: {', '.join(map(str, twice))}; give each text once")
    for row in rows:
        groups.setdefault((row.scheme, row.attack, row.kind), []).append(row)
    return groups


def _cell(groups: Groups, scheme: str, attack: str, rates: Sequence[float]) -> Cell:
    def scores(kind: str, under: str) -> dict[int, F64]:
        return _by_seed(groups.get((scheme, under, kind), ()))

    marked = groups[scheme, attack, MARKED]
    positives, clean, matched = scores(MARKED, attack), scores(UNMARKED, CLEAN), scores(UNMARKED, attack)
    human, human_matched = scores(HUMAN, CLEAN), scores(HUMAN, attack)
    compared = (
        _against("clean", positives, clean, matched, rates),
        _against("matched", positives, matched, matched, rates),
        _against("human", positives, human, human_matched, rates),
        _against("human-matched", positives, human_matched, human_matched, rates),
    )
    return Cell(
        scheme=scheme,
        attack=attack,
        seeds=tuple(positives),
        texts=len(marked),
        tokens=float(np.median([row.tokens for row in marked])),
        against=tuple(each for each in compared if each is not None),
        shares=tuple(_shares(groups, scheme, attack, rates)),
        shift=_shift(clean, matched),
        kept=float(np.mean(kept)) if (kept := [row.kept for row in marked if row.kept is not None]) else None,
    )


def _by_seed(rows: Iterable[ScoreRow]) -> dict[int, F64]:
    scores: dict[int, list[float]] = {}
    for row in rows:
        scores.setdefault(row.seed, []).append(row.score)
    return {seed: np.array(scores[seed]) for seed in sorted(scores)}


def _against(
    name: str, positives: BySeed, negatives: BySeed, attacked: BySeed, rates: Sequence[float]
) -> Against | None:
    """Positives beside negatives of the seeds that both have; ``attacked`` are judged by the same bar."""
    seeds = [seed for seed in positives if seed in negatives]
    if not seeds:
        return None
    high, low = ({seed: side[seed] for seed in seeds} for side in (positives, negatives))
    areas = spread([auroc(high[seed], low[seed]) for seed in seeds])
    count = sum(map(len, high.values())), sum(map(len, low.values()))
    return Against(
        negatives=name,
        texts=count[1],
        auroc=areas,
        interval=auroc_interval(areas.mean, positives=count[0], negatives=count[1]),
        held_out=len(seeds) > 1,
        at=tuple(_operating(high, low, attacked, each) for each in rates),
    )


def _operating(positives: BySeed, negatives: BySeed, attacked: BySeed, nominal: float) -> Operating:
    judged = _judged(positives, negatives, nominal)
    thresholds = {seed.seed: seed.threshold for seed in judged}
    passed = _above(negatives, thresholds)
    real = _above(attacked, thresholds) if thresholds.keys() & attacked.keys() else None
    total = sum(map(len, negatives.values()))
    calibrating = min(total - len(own) for own in negatives.values()) if len(negatives) > 1 else total
    return Operating(
        rate=nominal,
        tpr=spread([seed.tpr for seed in judged]),
        fpr=spread([seed.fpr for seed in judged]),
        found=_above(positives, thresholds),
        passed=passed,
        attacked=real,
        shift_p=None if real is None else _fisher(real, passed),
        thresholds=tuple(thresholds.values()),
        few=calibrating * nominal < 1.0 - 1e-9,
    )


def _judged(positives: BySeed, negatives: BySeed, nominal: float) -> tuple[HeldOut, ...]:
    if len(positives) > 1:
        return leave_one_seed_out(positives, negatives, fpr=nominal).seeds
    ((seed, high),), ((_, low),) = positives.items(), negatives.items()
    bar = threshold_at(low, fpr=nominal)
    return (HeldOut(seed, bar, float(np.mean(high > bar)), float(np.mean(low > bar))),)


def _above(scores: BySeed, thresholds: Mapping[int | str, float]) -> Rate:
    """How many texts lie above their seed's threshold, of the seeds that have one."""
    known = [(values, thresholds[seed]) for seed, values in scores.items() if seed in thresholds]
    return rate(
        sum(int(np.count_nonzero(values > bar)) for values, bar in known),
        sum(len(values) for values, _ in known),
    )


def _fisher(real: Rate, passed: Rate) -> float:
    """P(as many of the texts above the bar are attacked ones), if both kinds pass it equally often."""
    from scipy.stats import fisher_exact

    table = [[each.hits, each.trials - each.hits] for each in (real, passed)]
    return float(fisher_exact(table, alternative="greater").pvalue)


def _shares(groups: Groups, scheme: str, attack: str, rates: Sequence[float]) -> Iterable[Share]:
    def p_values(kind: str) -> list[float]:
        return [row.p_value for row in groups.get((scheme, attack, kind), ()) if row.p_value is not None]

    def below(p: list[float], nominal: float) -> Rate | None:
        return rate(sum(each < nominal for each in p), len(p)) if p else None

    marked, unmarked, human = p_values(MARKED), p_values(UNMARKED), p_values(HUMAN)
    for nominal in rates:
        if (found := below(marked, nominal)) is not None:
            yield Share(nominal, found, below(unmarked, nominal), below(human, nominal))


def _shift(clean: BySeed, attacked: BySeed) -> float | None:
    """The mean over seeds of how far the attack moves the null, in its own standard deviations."""
    moved = [
        (float(attacked[seed].mean()) - float(own.mean())) / float(own.std(ddof=1))
        for seed, own in clean.items()
        if seed in attacked and len(own) > 1 and own.std() > 0.0
    ]
    return float(np.mean(moved)) if moved else None


def _notes(cells: Sequence[Cell]) -> Iterable[str]:
    """What a reader must know before comparing figures."""
    few: dict[float, dict[str, int]] = {}
    for cell in cells:
        for against in cell.against:
            for each in against.at:
                if each.few:
                    kinds = few.setdefault(each.rate, {})
                    kinds[against.negatives] = min(against.texts, kinds.get(against.negatives, against.texts))
    for nominal, kinds in few.items():
        yield (
            f"a {100 * nominal:g}% threshold needs {int(np.ceil(1 / nominal))} negatives besides those of "
            "the seed it judges, else it is merely their largest score; there are "
            + ", ".join(f"{number} {kind}" for kind, number in kinds.items())
        )
    single = {cell.scheme for cell in cells if any(not each.held_out for each in cell.against)}
    if single:
        everywhere = single == {cell.scheme for cell in cells}
        which = "" if everywhere else f" ({', '.join(sorted(single))})"
        yield f"one seed only{which}: thresholds are set on the same negatives that they are counted on"
    unmatched = {
        cell.attack
        for cell in cells
        if cell.attack != CLEAN and not any(each.negatives.endswith("matched") for each in cell.against)
    }
    if unmatched:
        yield (
            f"no negatives went through {', '.join(sorted(unmatched))}: "
            "robustness and a shifted null cannot be told apart there"
        )
