"""The key test of the same texts under many keys: no text is read twice.

All texts under all keys are one product of their matrices (`dewmark.dew.matrix`). Drawing the keys' numbers
is most of the work: it runs on as many threads as there are cores, and W is kept in memory for the next
texts.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dewmark.arrays import F32, F64
from dewmark.core.keys import Key
from dewmark.core.projections import draw_float32_matrix
from dewmark.dew.form import AllForms, FormKey
from dewmark.dew.matrix import UseKey, WordReading, statistic, z_scores
from dewmark.dew.origin import with_origin
from dewmark.scheme import make_detection, token_scores
from dewmark.stats.two_sums import larger_of
from dewmark.types import Detection
from dewmark.workspace import Progress

_KEYS_AT_ONCE = 64


def whole_under(
    scheme: str,
    keys: Sequence[Key],
    readings: Sequence[WordReading],
    *,
    form: bool,
    fpr: float,
    reader: str | None,
    progress: Progress,
) -> list[list[Detection]]:
    """For each text one detection per key, in the order of the keys; only the best one has token scores.

    ``form`` says whether words carry h.
    """
    rows = []
    for reading, z, z_form in zip(readings, *_z_under(keys, readings, progress, form=form), strict=True):
        matrix = reading.matrix
        best = int(np.argmax(larger_of(z, z_form)[0]))
        own = UseKey(_matrix(keys[best], matrix.F.shape), _form(keys[best]) if form else None)
        evidence = matrix.under(own)
        length, scored = matrix.effective_length, max(evidence.length, 1)
        tested = [
            statistic(*both, matrix.square, length) for both in zip(z.tolist(), z_form.tolist(), strict=True)
        ]
        found = [
            make_detection(
                evidence,
                result,
                score=float(each) * matrix.square**0.5 / scored,
                test="key",
                fpr=fpr,
                scheme=scheme,
                fingerprint=key.fingerprint,
                reader=reader,
                carrying=reading.carrying,
            )
            for result, each, key in zip(tested, z, keys, strict=True)
        ]
        found = [*map(with_origin, found, tested)]
        found[best] = dataclasses.replace(found[best], tokens=token_scores(reading.text, evidence))
        rows.append(found)
    return rows


def _z_under(
    keys: Sequence[Key], readings: Sequence[WordReading], progress: Progress, *, form: bool
) -> tuple[F64, F64]:
    """z of meaning and of form of texts under all keys, (texts, keys) each; NaN without ``form``."""
    F = np.stack([each.matrix.F for each in readings])
    square = np.array([each.matrix.square for each in readings])
    z, z_form = np.empty((len(F), len(keys))), np.full((len(F), len(keys)), np.nan)
    words = AllForms.of([each.matrix.form for each in readings])
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for i in range(0, len(keys), _KEYS_AT_ONCE):
            progress("trying keys", i, len(keys))
            some = slice(i, i + _KEYS_AT_ONCE)
            W = np.stack(list(pool.map(functools.partial(_matrix, shape=F.shape[1:]), keys[some])))
            z[:, some] = z_scores(F, square, W)
            if form:
                z_form[:, some] = np.stack([*pool.map(words.z, map(_form, keys[some]))], axis=1)
    progress("trying keys", len(keys), len(keys))
    return z, z_form


@functools.lru_cache(maxsize=4096)  # 256 MB of 128 coordinates
def _matrix(key: Key, shape: tuple[int, ...]) -> F32:
    """W (d_T, d_C) of a key."""
    return draw_float32_matrix(key, d_T=shape[0], d_C=shape[1])


@functools.lru_cache(maxsize=4096)
def _form(key: Key) -> FormKey:
    """What gives a key's h."""
    return FormKey.of(key)
