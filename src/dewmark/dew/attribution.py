"""Whether the key's holder marked a text, or perhaps somebody who learned the mark from marked texts.

A forger estimates W from texts. In a public basis of leading coordinates, W_ab is learned from the products
t_a c_b of many texts, the sooner the larger their mean square σ_a² τ_b². So the coordinates are split by
σ_a² τ_b² into a *head* and a *tail* that has a given share of the energy. Over keys the scores of the two,

    z_head = ⟨M_head, W_head⟩/‖M_head‖,    z_tail = ⟨M_tail, W_tail⟩/‖M_tail‖,

are independent standard normals for unmarked text. The holder's mark follows W everywhere alike, so that a
genuine text has E z_tail = r E z_head with r = ‖M_tail‖/‖M_head‖; a forged text lives in the head.

A marked text is *attributable* if p_tail = 1 − Φ(z_tail), times the number of uses of the key that were tried
(`dewmark.dew.ring`), is at most the level: the tail alone finds the member. A forger who knows nothing of the
tail passes with that probability, however he chose the member; one who learned some of it from a few texts of
a member rarely gets that far, and the more members, the fewer texts of each he has.

p_alike = Φ((z_tail − r z_head)/√(1 + r²)) says how far the tail falls behind the head. It decides nothing:
strong genuine texts vary more in it than chance alone explains.

The tail has half of the energy, in rings of more than `LARGE` members two fifths. A large ring is for texts
with a strong mark (long ones, or at a high temperature): two or three of them teach a forger so much of the
outer half that only the deeper tail stops him, and such texts can spare the rest of their evidence.

The head may be published (`dewmark detector export --public`): anybody then detects by it and can forge it,
and the tail still decides who marked a text.
"""

from __future__ import annotations

import dataclasses
import math
import weakref

import numpy as np
from scipy.special import ndtr

from dewmark.arrays import F32, F64, Mask
from dewmark.dew.detection import TextEvidence
from dewmark.dew.reading import KeyIndependent, Reader
from dewmark.dew.settings import DewSettings
from dewmark.encoders.word_vectors import register_texts
from dewmark.types import ForgeryTest

__all__ = ["LARGE", "forgery_test", "head_of", "split"]

LARGE = 4096
"""Members up to which the tail has half of the energy."""
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


_HEADS: weakref.WeakKeyDictionary[Reader, dict[float, Mask]] = weakref.WeakKeyDictionary()


def head_of(shared: KeyIndependent, *, members: int = 1) -> Mask:
    """The head for texts as a reader sees them and a ring of this size, from the package's own texts."""
    reader = shared.reader
    if reader not in _HEADS:
        energies = _find_energies(reader, shared.scheme)
        _HEADS[reader] = {tail: split(*energies, tail=tail) for tail in (_TAIL, _DEEP_TAIL)}
    return _HEADS[reader][_TAIL if members <= LARGE else _DEEP_TAIL]


def _find_energies(reader: Reader, scheme: DewSettings) -> tuple[F64, F64]:
    """The mean squares of the coordinates of units (d_T,) and contexts (d_C,)."""
    texts = reader.tokenize(register_texts())
    reading = reader.read(texts, reader.tokenize([""] * len(texts)))
    contexts = reading.context_rows
    assert contexts is not None
    scheme = dataclasses.replace(scheme, flatten=None)  # only the pairs are wanted
    evidence = [
        TextEvidence.of(pairs, reading, contexts, scheme, test="key").blank for pairs in reading.texts
    ]
    units, around = (
        np.mean(np.concatenate([_squares(getattr(each, name)[: each.pairs]) for each in evidence]), axis=0)
        for name in ("T", "C")
    )
    return units, around


def forgery_test(M: F32, W: F32, head: Mask, *, level: float, tried: int = 1) -> ForgeryTest:
    """Test a marked text's matrix M (d_T, d_C) against the matrix W of the use that fits it, of ``tried``."""
    products, squares = (M * W)[head], np.square(M)
    energy, total = float(squares[head].sum(dtype=np.float64)), float(squares.sum(dtype=np.float64))
    in_head, in_tail = math.sqrt(energy), math.sqrt(max(total - energy, 0.0))
    if in_head == 0.0 or in_tail == 0.0:
        return ForgeryTest(attributable=False, z_head=0.0, z_tail=0.0, p_tail=1.0, p_alike=1.0)
    along = float(products.sum(dtype=np.float64))
    z_head = along / in_head
    z_tail = (float(np.sum(M * W, dtype=np.float64)) - along) / in_tail
    ratio = in_tail / in_head
    p_tail = min(float(ndtr(-z_tail)) * tried, 1.0)
    p_alike = float(ndtr((z_tail - ratio * z_head) / math.sqrt(1.0 + ratio * ratio)))
    return ForgeryTest(p_tail <= level, z_head=z_head, z_tail=z_tail, p_tail=p_tail, p_alike=p_alike)


def _squares(rows: object) -> F64:
    return np.square(np.asarray(rows, dtype=np.float64))
