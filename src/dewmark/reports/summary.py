"""What an experiment shows, in a few sentences that are computed from its results.

Who finds most under each attack, by thresholds that the attack has not moved; how far the unattacked
thresholds mislead; what the attacks did to the words; whether schemes stand in the paper's order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dewmark.evaluation.results import Evaluation
from dewmark.evaluation.scores import CLEAN
from dewmark.reports.columns import SHIFTED, attack_name, is_cut
from dewmark.reports.paper import PaperTable
from dewmark.reports.paper_beside import pairs_beside
from dewmark.reports.run_files import RunFiles
from dewmark.stats.metrics import Rate

__all__ = ["findings"]

_NAMED = 4  # schemes that a sentence names; of more it gives the number
_LEAST = 4  # schemes that an order is compared of
_NULLS = ("matched", "human-matched", "clean", "human")


def findings(run: RunFiles, paper: PaperTable | None) -> list[str]:
    """The sentences, those of most weight first."""
    if run.evaluation is None:
        return []
    order = [] if paper is None else list(_order(run, paper))
    return [*_most_found(run.evaluation), *_shifted(run.evaluation), *_words(run.evaluation), *order]


def _most_found(evaluation: Evaluation) -> Iterator[str]:
    rate = evaluation.rates[0]
    for attack in (each for each in evaluation.attacks if not is_cut(each)):
        found: dict[str, Rate] = {}
        for scheme in evaluation.schemes:
            cell = evaluation.cell(scheme, attack)
            at = next((at for null in _NULLS if cell and (at := cell.at(null, rate))), None)
            if at is not None:
                found[scheme] = at.found
        if len(found) < 2:
            continue
        best = max(found, key=lambda scheme: found[scheme].rate)
        top = found[best]
        near = [scheme for scheme, each in found.items() if each.high >= top.low and scheme != best]
        lowest = min(found, key=lambda scheme: found[scheme].rate)
        null = "" if attack == CLEAN else ", negatives attacked likewise"
        yield (
            f"{attack_name(attack)}: most marked texts are found by {best}, {_share(top)} at {100 * rate:g}%"
            f"{null}{_also(near)}; fewest by {lowest}, {_share(found[lowest])}"
        )


def _share(rate: Rate) -> str:
    return f"{rate.rate:.3f} [{rate.low:.3f}, {rate.high:.3f}]"


def _also(near: Sequence[str]) -> str:
    if not near:
        return " (more than by any other, beyond their intervals)"
    names = ", ".join(near) if len(near) <= _NAMED else f"{len(near)} others"
    return f" (not told apart from it: {names})"


def _shifted(evaluation: Evaluation) -> Iterator[str]:
    """The worst of the shifted nulls: what a table of shares would hide."""
    attacked = [
        (cell, at)
        for cell in evaluation.cells
        for rate in evaluation.rates
        if cell.attack != CLEAN and not is_cut(cell.attack)
        if (at := cell.at("clean", rate)) is not None and at.attacked is not None
    ]
    shifted = [
        (at.attacked.rate / at.rate, cell, at)
        for cell, at in attacked
        if at.attacked is not None and at.shift_p is not None and at.shift_p < SHIFTED
    ]
    cells = len({(cell.scheme, cell.attack) for cell, _ in attacked})
    if shifted:
        moved = len({(cell.scheme, cell.attack) for _, cell, _ in shifted})
        times, cell, at = max(shifted, key=lambda each: each[0])
        yield (
            f"in {moved} of {cells} attacked cells unmarked texts pass an unattacked threshold more often "
            f"after the attack (p < {SHIFTED:g}), at most {100 * times * at.rate:.0f}% of them at "
            f"{100 * at.rate:g}% ({cell.scheme} under {cell.attack}): compare schemes by the matched null"
        )
    elif attacked:
        texts = min(at.attacked.trials for _, at in attacked if at.attacked is not None)
        yield (
            f"no attack makes unmarked texts pass an unattacked threshold significantly more often (p < "
            f"{SHIFTED:g}, from {texts} texts a cell)"
        )


def _words(evaluation: Evaluation) -> Iterator[str]:
    lost = {}
    for attack in evaluation.attacks:
        kept = [cell.kept for cell in evaluation.cells if cell.attack == attack and cell.kept is not None]
        if kept:
            lost[attack] = 1.0 - math.fsum(kept) / len(kept)
    if lost:
        told = ", ".join(f"{share:.2f} by {attack}" for attack, share in lost.items())
        yield f"words of marked texts that were replaced or removed: {told}"


def _order(run: RunFiles, paper: PaperTable) -> Iterator[str]:
    """Rank correlations with the paper's columns."""
    from scipy.stats import spearmanr

    told, schemes = [], set[str]()
    for heading, pairs in pairs_beside(run, paper):
        ours, theirs = [pair[0] for pair in pairs.values()], [pair[1] for pair in pairs.values()]
        if len(pairs) >= _LEAST and len(set(ours)) > 1 and len(set(theirs)) > 1:
            told.append(f"{heading} {spearmanr(ours, theirs).statistic:+.2f}")
            schemes |= set(pairs)
    if told:
        yield (
            f"the order of the schemes that the paper's {paper.source} has too ({len(schemes)}), rank "
            f"correlation with it: {', '.join(told)}"
        )
