"""The findings of an experiment: a few sentences computed from its results.

Which schemes find most under each attack, by thresholds that the attack has not moved; how far unattacked
thresholds mislead; how many words the attacks changed; whether schemes rank as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dewmark.stats.rates import Rate
from dewmark_lab.evaluation.results import CLEAN, Evaluation
from dewmark_lab.reports.paper import PaperTable, paired_with_paper
from dewmark_lab.reports.run_results import (
    SHIFTED,
    RunResults,
    attack_label,
    is_truncation,
    preferred_operating_point,
    rewriting_attacks,
)

_MAX_NAMED = 4  # schemes listed by name in a sentence; beyond, it gives their number
_MIN_RANKED = 4  # schemes needed for a rank correlation


def findings(run: RunResults, paper: PaperTable | None) -> list[str]:
    """The sentences, the most important first."""
    if run.evaluation is None:
        return []
    ranks = [] if paper is None else list(_rank_correlations(run, paper))
    return [
        *_best_schemes(run.evaluation),
        *_shifted_thresholds(run.evaluation),
        *_words_changed(run.evaluation),
        *ranks,
    ]


def _best_schemes(evaluation: Evaluation) -> Iterator[str]:
    rate = evaluation.rates[0]
    for attack in rewriting_attacks(evaluation):
        found: dict[str, Rate] = {}
        for scheme in evaluation.schemes:
            cell = evaluation.cell(scheme, attack)
            if cell is not None and (at := preferred_operating_point(cell, rate)) is not None:
                found[scheme] = at.found
        if len(found) < 2:
            continue
        best, worst = (end(found, key=lambda scheme: found[scheme].rate) for end in (max, min))
        near = [scheme for scheme, each in found.items() if each.high >= found[best].low and scheme != best]
        null = "" if attack == CLEAN else ", against negatives after the same attack"
        yield (
            f"{attack_label(attack)}: {best} finds most marked texts, {_share(found[best])} at "
            f"{100 * rate:g}%{null}{_also(near)}; {worst} finds fewest, {_share(found[worst])}"
        )


def _share(rate: Rate) -> str:
    return f"{rate.rate:.3f} [{rate.low:.3f}, {rate.high:.3f}]"


def _also(near: Sequence[str]) -> str:
    if not near:
        return " (its interval lies above all others)"
    names = ", ".join(near) if len(near) <= _MAX_NAMED else f"{len(near)} others"
    return f" (its interval overlaps those of {names})"


def _shifted_thresholds(evaluation: Evaluation) -> Iterator[str]:
    """How often an attack makes unmarked texts pass unattacked thresholds, and the worst case."""
    attacked = [
        (cell, at, at.attacked)
        for cell in evaluation.cells
        for rate in evaluation.rates
        if cell.attack != CLEAN and not is_truncation(cell.attack)
        if (at := cell.at("clean", rate)) is not None and at.attacked is not None
    ]
    shifted = [
        (passed.rate / at.rate, cell, at)
        for cell, at, passed in attacked
        if at.shift_p is not None and at.shift_p < SHIFTED
    ]
    if shifted:
        moved = len({(cell.scheme, cell.attack) for _, cell, _ in shifted})
        cells = len({(cell.scheme, cell.attack) for cell, *_ in attacked})
        times, cell, at = max(shifted, key=lambda each: each[0])
        yield (
            f"in {moved} of {cells} attacked cells, unmarked texts pass an unattacked threshold more often "
            f"after the attack (p < {SHIFTED:g}), up to {100 * times * at.rate:.0f}% of them at "
            f"{100 * at.rate:g}% ({cell.scheme} under {cell.attack}): compare schemes by the matched null"
        )
    elif attacked:
        texts = min(passed.trials for *_, passed in attacked)
        yield (
            f"no attack makes unmarked texts pass an unattacked threshold significantly more often (p < "
            f"{SHIFTED:g}, from {texts} texts per cell)"
        )


def _words_changed(evaluation: Evaluation) -> Iterator[str]:
    lost = {}
    for attack in evaluation.attacks:
        kept = [cell.kept for cell in evaluation.cells if cell.attack == attack and cell.kept is not None]
        if kept:
            lost[attack] = 1.0 - math.fsum(kept) / len(kept)
    if lost:
        shares = ", ".join(f"{share:.2f} by {attack}" for attack, share in lost.items())
        yield f"share of marked texts' words replaced or removed: {shares}"


def _rank_correlations(run: RunResults, paper: PaperTable) -> Iterator[str]:
    from scipy.stats import spearmanr

    correlations, schemes = [], set[str]()
    for heading, pairs in paired_with_paper(run, paper):
        ours, theirs = [pair[0] for pair in pairs.values()], [pair[1] for pair in pairs.values()]
        if len(pairs) >= _MIN_RANKED and len(set(ours)) > 1 and len(set(theirs)) > 1:
            correlations.append(f"{heading} {spearmanr(ours, theirs).statistic:+.2f}")
            schemes |= set(pairs)
    if correlations:
        yield (
            f"rank correlation with the paper's {paper.source} over the schemes that it shares with this run "
            f"({len(schemes)}): {', '.join(correlations)}"
        )
