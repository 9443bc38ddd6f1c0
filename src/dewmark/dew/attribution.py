"""Whether the key's holder marked a text, or perhaps somebody who learned the mark from marked texts.

A forger estimates W from texts. In a public basis of leading coordinates, W_ab is learned from the products
t_a c_b of many texts, the sooner the larger their mean square σ_a² τ_b². So the coordinates are split by
σ_a² τ_b² into a *head* and a *tail* with half of the energy each. Over keys the scores of the two,

    z_head = ⟨M_head, W_head⟩/‖M_head‖,    z_tail = ⟨M_tail, W_tail⟩/‖M_tail‖,

are independent standard normals for unmarked text. The holder's mark follows W everywhere alike, so that a
genuine text has E z_tail = r E z_head with r = ‖M_tail‖/‖M_head‖; a forged text lives in the head.

A marked text is *attributable* if both hold:

- p_tail = 1 − Φ(z_tail) is at most the level. A forger who knows nothing of the tail passes with that
  probability. With several uses of the key (`dewmark.dew.ring`) the best was chosen by its score in head and
  tail together, so half of the level pays for the choice and half for the tail;
- p_alike = Φ((z_tail − r z_head)/√(1 + r²)) is at least 1%: genuine texts fail with that probability. It
  stops forgers who know some of the tail, but less than of the head.

The head may be published (`dewmark detector export --public`): anybody then detects by it and can forge it,
and the tail still decides who marked a text.
"""

from __future__ import annotations

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

__all__ = ["forgery_test", "head_of", "split"]

ALIKE = 0.01
"""The share of genuine texts whose head and tail differ too much."""


def split(units: F64, contexts: F64) -> Mask:
    """The head (d_T, d_C), from the mean squares σ² (d_T,) and τ² (d_C,) of coordinates."""
    energy = np.outer(units, contexts)
    order = np.argsort(-energy, axis=None, kind="stable")
    within = np.cumsum(energy.ravel()[order]) <= 0.5 * energy.sum()
    head = np.zeros(energy.size, dtype=bool)
    head[order[within]] = True
    return head.reshape(energy.shape)


_HEADS: weakref.WeakKeyDictionary[Reader, Mask] = weakref.WeakKeyDictionary()


def head_of(shared: KeyIndependent) -> Mask:
    """The head for texts as a reader sees them, from the package's own texts; found once."""
    reader = shared.reader
    if reader not in _HEADS:
        _HEADS[reader] = _find_head(reader, shared.scheme)
    return _HEADS[reader]


def _find_head(reader: Reader, scheme: DewSettings) -> Mask:
    texts = reader.tokenize(register_texts())
    reading = reader.read(texts, reader.tokenize([""] * len(texts)))
    contexts = reading.context_rows
    assert contexts is not None
    evidence = [
        TextEvidence.of(pairs, reading, contexts, scheme, test="key").blank for pairs in reading.texts
    ]
    units, around = (
        np.mean(np.concatenate([_squares(getattr(each, name)[: each.pairs]) for each in evidence]), axis=0)
        for name in ("T", "C")
    )
    return split(units, around)


def forgery_test(M: F32, W: F32, head: Mask, *, level: float) -> ForgeryTest:
    """Test a marked text's matrix M (d_T, d_C) against the matrix W of the use that fits it."""
    products, squares = (M * W)[head], np.square(M)
    energy, total = float(squares[head].sum(dtype=np.float64)), float(squares.sum(dtype=np.float64))
    in_head, in_tail = math.sqrt(energy), math.sqrt(max(total - energy, 0.0))
    if in_head == 0.0 or in_tail == 0.0:
        return ForgeryTest(attributable=False, z_head=0.0, z_tail=0.0, p_tail=1.0, p_alike=1.0)
    along = float(products.sum(dtype=np.float64))
    z_head = along / in_head
    z_tail = (float(np.sum(M * W, dtype=np.float64)) - along) / in_tail
    ratio = in_tail / in_head
    p_tail = float(ndtr(-z_tail))
    p_alike = float(ndtr((z_tail - ratio * z_head) / math.sqrt(1.0 + ratio * ratio)))
    attributable = p_tail <= level and p_alike >= ALIKE
    return ForgeryTest(attributable, z_head=z_head, z_tail=z_tail, p_tail=p_tail, p_alike=p_alike)


def _squares(rows: object) -> F64:
    return np.square(np.asarray(rows, dtype=np.float64))
