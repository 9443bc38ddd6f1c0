"""Where a marked text comes from: the member, payload and epoch that fit it, and whether the holder wrote it.

`find_uses` joins what `dewmark.dew.ring` finds to the evidence and the result of the key test. Attribution
asks whether the key's holder marked a text, or perhaps somebody who learned the mark from marked texts.

A forger learns W_ab from the products t_a c_b of many texts, the sooner the larger their mean square
σ_a² τ_b². So the coordinates are split by it into a *head* and a *tail* that has a given share of the energy.
Over keys the scores of the two,

    z_head = ⟨M_head, W_head⟩/‖M_head‖,    z_tail = ⟨M_tail, W_tail⟩/‖M_tail‖,

are independent standard normals for unmarked text. The holder's mark has E z_tail = r E z_head with
r = ‖M_tail‖/‖M_head‖; a forged text lives in the head. ``docs/rings.md`` says what that is worth.

A marked text is *attributable* if the tail of the use that fits it (`dewmark.dew.ring`) is significant at
that use's share of the level: p_tail = (1 − Φ(z_tail))/share is at most the level. The shares of all uses sum
to 1 and depend on the heads alone: use j has ∝ exp(z_best z_j), its posterior probability. Tails are
independent of heads, so this is a weighted Bonferroni correction, whatever a forger knows of the heads.

p_alike = Φ((z_tail − r z_head)/√(1 + r²)) says how far the tail falls behind the head. It decides nothing:
strong genuine texts vary more in it than chance alone explains.

In rings of more than `LARGE` members the tail is smaller, and all uses have the same share: two or three long
texts of a member teach a forger so much that only the deeper tail, found among all members, stops him.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from dewmark.arrays import F32, F64, Mask
from dewmark.dew.matrix import KeyedEvidence, TextMatrix, TwoSums, differences, testable
from dewmark.dew.reading import LexiconReader
from dewmark.dew.ring import CONFIDENCE, FoundUse, KeyMatrices
from dewmark.encoders.contexts import register_texts
from dewmark.stats.key_test import NOTHING, Statistic
from dewmark.types import Detection, ForgeryTest
from dewmark.verdict import LEAST_P, names_origin

LARGE = 16_384
"""Members up to which the tail has half of the energy before flattening, and heads weigh the members."""
_TAIL, _DEEP_TAIL = 0.5, 0.4


def split(units: F64, contexts: F64, *, tail: float = _TAIL) -> Mask:
    """The head (d_T, d_C), from the mean squares σ² (d_T,) and τ² (d_C,) of coordinates.

    ``tail`` is the share of the energy that it leaves out.
    """
    energy = np.outer(units, contexts)
    order = np.argsort(-energy, axis=None, kind="stable")
    within = np.cumsum(energy.ravel()[order]) <= (1.0 - tail) * energy.sum()
    head = np.zeros(energy.size, dtype=bool)
    head[order[within]] = True
    return head.reshape(energy.shape)


_HEADS: weakref.WeakKeyDictionary[LexiconReader, dict[float, Mask]] = weakref.WeakKeyDictionary()


def head_of(reader: LexiconReader, *, members: int = 1) -> Mask:
    """The head for texts as a reader sees them and a ring of this size, from the package's own texts."""
    if reader not in _HEADS:
        texts = reader.tokenize(register_texts())
        reading = reader.read(texts, reader.tokenize([""] * len(texts)))
        units = [differences(pairs, reading.token_rows) for pairs in reading.texts]
        contexts = [reading.context_rows[pairs.windows] for pairs in reading.texts]
        squares = [np.square(np.concatenate(rows).astype(np.float64)) for rows in (units, contexts)]
        energies = [np.asarray(np.mean(square, axis=0)) for square in squares]
        _HEADS[reader] = {tail: split(*energies, tail=tail) for tail in (_TAIL, _DEEP_TAIL)}
    return _HEADS[reader][_TAIL if members <= LARGE else _DEEP_TAIL]


def level_share(M: F32, W: F32, head: Mask, uses: KeyMatrices) -> float:
    """The share of the level for the use with matrix W (d_T, d_C), by the heads of all uses in a text's M."""
    if uses.count == 1:
        return 1.0
    in_head = M * head
    norm = float(np.linalg.norm(in_head))
    if uses.current.members > LARGE or norm == 0.0:
        return 1.0 / uses.count
    own = float(np.sum(in_head * W, dtype=np.float64)) / norm
    return share_among(own, uses.sums(in_head).astype(np.float64) / norm)


def share_among(own: float, z: F64) -> float:
    """The posterior probability of a use with z_head ``own``, among all uses with z (uses,)."""
    top = float(z.max())
    strength = max(top, 0.0)
    return min(math.exp(strength * (own - top)) / float(np.exp(strength * (z - top)).sum()), 1.0)


def forgery_test(M: F32, W: F32, head: Mask, *, level: float, share: float = 1.0) -> ForgeryTest:
    """Test a marked text's matrix M (d_T, d_C) against the matrix W of the use that fits it.

    ``share`` is that use's share of the level.
    """
    products, squares = np.multiply(M, W, dtype=np.float64), np.square(M, dtype=np.float64)
    in_head, in_tail = (math.sqrt(squares[part].sum()) for part in (head, ~head))
    if in_head == 0.0 or in_tail == 0.0:
        return ForgeryTest(attributable=False, z_head=0.0, z_tail=0.0, p_tail=1.0, p_alike=1.0)
    z_head, z_tail = float(products[head].sum()) / in_head, float(products[~head].sum()) / in_tail
    ratio = in_tail / in_head
    p_tail = max(min(float(ndtr(-z_tail)) / share, 1.0), LEAST_P) if share > 0.0 else 1.0
    p_alike = float(ndtr((z_tail - ratio * z_head) / math.sqrt(1.0 + ratio * ratio)))
    return ForgeryTest(p_tail <= level, z_head=z_head, z_tail=z_tail, p_tail=p_tail, p_alike=p_alike)


# The use that fits


@dataclass(frozen=True, slots=True)
class OriginStatistic(TwoSums):
    """The result of the key test with the use of the key that fits, and the test for forgery."""

    found: FoundUse | None = None
    forgery: ForgeryTest | None = None


@dataclass(frozen=True)
class UseEvidence(KeyedEvidence):
    """The evidence of a text under the use of the key that fits it best."""

    found: FoundUse | None = None


def tested_use(
    evidence: UseEvidence, uses: KeyMatrices, *, fpr: float, head: Callable[[], Mask] | None
) -> Statistic:
    """The result of a whole text under the use that fits it.

    ``head`` gives the coordinates that a forger learns first; without it, nothing is attributed. Nor are
    texts of an epoch whose key was no ring.
    """
    text, found = evidence.whole, evidence.found
    assert isinstance(text, TextMatrix)
    assert found is not None
    assert evidence.key is not None
    W = evidence.key.W
    F, square = text.F.astype(np.float32), float(np.sum(np.square(uses.visible(text.F))))
    if text.square == 0.0 or not testable(square, text.square):
        return NOTHING
    forgery = None
    if head is not None and names_origin(found.p_value, fpr) and uses.epoch(found.use.epoch).members > 1:
        share = level_share(F, W, head(), uses)
        forgery = forgery_test(F, W, head(), level=fpr, share=share)
    length = text.blank.effective_length(square)
    return OriginStatistic(found.z, found.p_value, length, found.z_meaning, found.z_form, found, forgery)


def with_origin(detection: Detection, result: Statistic, uses: KeyMatrices) -> Detection:
    """The detection with what is known of the text's origin, if it is marked beyond doubt."""
    if not isinstance(result, OriginStatistic) or result.found is None:
        return detection
    found = result.found
    detection = dataclasses.replace(detection, n_hypotheses=found.n_hypotheses)
    if not (detection.is_marked and names_origin(detection.p_value, detection.fpr)):
        return detection
    detection = dataclasses.replace(detection, forgery=result.forgery)
    epoch = uses.epoch(found.use.epoch)
    sure = {
        "epoch": len(uses.epochs) > 1 and found.epoch_confidence,
        "member": epoch.members > 1 and found.member_confidence,
        "payload": epoch.payload_bits > 0 and found.payload_confidence,
    }
    named = {name: getattr(found.use, name) for name, share in sure.items() if share >= CONFIDENCE}
    confidence = found.payload_confidence if epoch.payload_bits else None
    return dataclasses.replace(detection, **named, payload_confidence=confidence)
