"""Which parts of a text are marked: the scan says what is significant, a posterior where it begins and ends.

`dewmark.stats.scan` gives every window a family-wise p-value. With probability at least 1 − fpr over keys all
windows with p ≤ fpr hold marked units, all at once; so any choice among them keeps that guarantee, and the
choice may be made for good boundaries. It is: the disjoint significant windows that maximise

    Σ_w ( Σ_{i in w} (π_i − ½) − COST ),    π_i = P(unit i is marked | scores),

found exactly, as a longest path. Neighbours are joined where that raises the same sum (what holds marked
units still does when it is made longer). π is the posterior of a two-state chain: scores are independent,
N(0, 1) in unmarked and N(μ, 1) in marked stretches, stretches have geometric lengths, and strength μ and mean
length are averaged over a grid. Where this picture is wrong the boundaries suffer, never the error rate.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dewmark.arrays import F64, I64
from dewmark.evidence import Evidence
from dewmark.stats.key_test import Statistic, key_test
from dewmark.stats.scan import Scan, Units, scan

__all__ = ["Segment", "locate", "posterior"]

Test = Callable[[Evidence], Statistic]

COST = 8.0

_STRENGTHS = (0.35, 0.5, 0.75, 1.1)  # μ in standard deviations of one score
_LENGTHS = (60.0, 200.0, 600.0)  # mean length of marked stretches, in units
_MARKED = 0.3  # the share of marked units that is expected beforehand


@dataclass(frozen=True, slots=True)
class Segment:
    """Units [start, end) of a text, with the evidence that they are marked.

    ``z``, ``p_value`` and ``effective_length`` are those of the test on these units alone. ``corrected`` is
    the family-wise p-value: for what share of keys some window of this text, if it were unmarked, would look
    as striking. ``share`` is the expected share of marked units among these.
    """

    start: int
    end: int
    z: float
    p_value: float
    corrected: float
    effective_length: float
    share: float


def locate(evidence: Evidence, *, fpr: float = 0.05, test: Test = key_test) -> list[Segment]:
    """The marked segments of a text, in order, none overlapping another.

    ``test`` is the scheme's own test of a whole text. Where it gives a window a larger p-value than the
    normal law does (an exact law of few or skewed scores), that one counts.
    """
    units, windows = Units.of(evidence), scan(evidence)
    corrected = windows.corrected
    if not np.any(corrected <= fpr):
        return []
    marked = posterior(evidence)
    gain = np.concatenate([[0.0], np.cumsum(marked - 0.5)])
    checked: set[int] = set()
    while True:
        chosen = _choose(windows, np.flatnonzero(corrected <= fpr), gain)
        unchecked = [w for w in chosen if w not in checked]
        if not unchecked:
            break
        for w in unchecked:
            own = test(_part(evidence, units[windows.start[w] : windows.end[w]]))
            corrected[w] = max(corrected[w], windows.correct(w, own.p_value))
        checked.update(unchecked)
    segments = []
    for members in _neighbours(windows, chosen, gain):
        start, end = int(windows.start[members[0]]), int(windows.end[members[-1]])
        own = test(_part(evidence, units[start:end]))
        segments.append(
            Segment(
                start=int(units.place[start]),
                end=int(units.place[end - 1]) + 1,
                z=own.z,
                p_value=own.p_value,
                corrected=float(corrected[members].min()),
                effective_length=own.effective_length,
                share=float(marked[start:end].mean()),
            )
        )
    return segments


def posterior(evidence: Evidence) -> F64:
    """π (n,): for each scored unit, in order, the probability that it is marked."""
    units = Units.of(evidence)
    if len(units) == 0:
        return np.zeros(0)
    x = evidence.scores[units.pair] / np.sqrt(evidence.variance)
    strength, length = np.array(list(itertools.product(_STRENGTHS, _LENGTHS))).T
    leave = 1.0 / length
    enter = leave * _MARKED / (1.0 - _MARKED)
    ratio = np.exp(x[:, None] * strength - strength**2 / 2.0)  # of the densities N(μ, 1) and N(0, 1)
    # forward: P(marked | scores up to i), and the likelihood of all scores; (n, grid)
    forward, likelihood = np.empty_like(ratio), np.zeros(len(strength))
    ahead = np.full(len(strength), _MARKED)
    for i, r in enumerate(ratio):
        total = ahead * r + 1.0 - ahead
        forward[i] = ahead * r / total
        ahead = forward[i] * (1.0 - leave) + (1.0 - forward[i]) * enter
        likelihood += np.log(total)
    # backward: the ratio of the likelihoods of what follows a marked and an unmarked unit
    backward = np.ones_like(ratio)
    for i in range(len(x) - 2, -1, -1):
        r = ratio[i + 1] * backward[i + 1]
        backward[i] = ((1.0 - leave) * r + leave) / (enter * r + 1.0 - enter)
    odds = forward * backward
    weight = np.exp(likelihood - likelihood.max())
    return np.asarray((odds / (odds + 1.0 - forward)) @ (weight / weight.sum()))


def _choose(windows: Scan, open_: I64, gain: F64) -> list[int]:
    """Of the windows ``open_`` to choice the disjoint ones with the greatest sum of gains, in order."""
    order = open_[np.argsort(windows.end[open_], kind="stable")]
    start, end = windows.start[order], windows.end[order]
    value = gain[end] - gain[start] - COST
    before = np.searchsorted(end, start, side="right")  # how many windows end before this one begins
    best = np.zeros(len(order) + 1)
    for i in range(len(order)):
        best[i + 1] = max(best[i], best[before[i]] + value[i])
    chosen, i = [], len(order)
    while i > 0:
        if best[i] > best[i - 1]:
            chosen.append(int(order[i - 1]))
            i = int(before[i - 1])
        else:
            i -= 1
    if not chosen and len(order):  # significant, but nowhere likely: the least unlikely window
        chosen = [int(order[np.argmax(value)])]
    return chosen[::-1]


def _neighbours(windows: Scan, chosen: list[int], gain: F64) -> list[list[int]]:
    """Group windows between which there is less to lose than a segment costs."""
    groups: list[list[int]] = []
    for w in chosen:
        if groups and gain[windows.start[w]] - gain[windows.end[groups[-1][-1]]] > -COST:
            groups[-1].append(w)
        else:
            groups.append([w])
    return groups


def _part(evidence: Evidence, units: Units) -> Evidence:
    """The evidence of some units alone; its positions are theirs."""
    pairs, inverse = np.unique(units.pair, return_inverse=True)
    return dataclasses.replace(
        evidence,
        scores=evidence.scores[pairs],
        alignments=evidence.alignments[pairs],
        weights=np.bincount(inverse, weights=units.weight, minlength=len(pairs)).astype(np.float64),
        positions=inverse,
        T=evidence.T[pairs],
        C=evidence.C[pairs],
    )
