"""The same texts under many keys: no text is read twice, no context encoded twice.

A full key matrix W and a text's matrix M give z = ⟨M, W⟩/‖M‖, so that all texts under all keys are one
product of their matrices. Otherwise each key's projections are applied to the distinct units and contexts of
the texts, and the variance over keys, which depends on the texts alone, is computed once. Drawing the keys'
numbers is most of the work: it runs on as many threads as there are cores, and W is kept in memory for the
next texts.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy.special import ndtr

from dewmark.arrays import F32, F64
from dewmark.core.keys import Key
from dewmark.core.projections import draw_float32_matrix, draw_matrix, draw_projections
from dewmark.dew.detection import SIMULATION, TESTS, TextEvidence, mean_score, run_test
from dewmark.dew.expected import check_read_test, read
from dewmark.dew.reading import KeyIndependent, Reading, TokenReader
from dewmark.dew.text_matrix import text_matrix
from dewmark.encoders.token_tables import rows_of
from dewmark.scheme import UNITS_PER_CHUNK, check_test, check_texts, make_detection, text_chunks, token_scores
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import TINY, Statistic, effective_length, score_variance
from dewmark.types import Detection
from dewmark.workspace import Expectations, Progress, Tokenized

_KEYS_AT_ONCE = 64
_MATRIX_BYTES = 128 << 20  # of the matrices of texts


def detect_keys(
    shared: KeyIndependent,
    keys: Sequence[Key],
    texts: Sequence[str],
    *,
    prompts: Sequence[str | None] | None,
    fpr: float,
    test: str | None,
    progress: Progress,
    expectations: Expectations | None = None,
) -> list[list[Detection]]:
    """For each text one detection per key, in the order of the keys; only the best one has token scores."""
    test = check_test(test, TESTS)
    check_read_test(test, expectations)
    before = shared.reader.tokenize(check_texts(texts, prompts, fpr))
    tokenized = shared.reader.tokenize(texts)
    found: list[list[Detection]] = []
    for part in text_chunks(tokenized, units=UNITS_PER_CHUNK):
        reading = read(shared.reader, expectations, tokenized[part], before[part])
        named = None if expectations is None else expectations.name
        detect = _detect_by_matrix if shared.scheme.by_matrix and test == "key" else _detect
        found += detect(
            shared, keys, tokenized[part], reading, test=test, fpr=fpr, reader=named, progress=progress
        )
    return found


def _detect_by_matrix(
    shared: KeyIndependent,
    keys: Sequence[Key],
    texts: Sequence[Tokenized],
    reading: Reading,
    *,
    test: str,
    fpr: float,
    reader: str | None,
    progress: Progress,
) -> list[list[Detection]]:
    contexts = reading.context_rows
    assert contexts is not None
    at_once = max(_MATRIX_BYTES // (4 * shared.d_T * shared.d_C), 1)
    found: list[list[Detection]] = []
    for i in range(0, len(texts), at_once):
        part = slice(i, i + at_once)
        scored = list(TextEvidence.each(reading.texts[part], reading, contexts, shared.scheme, test=test))
        M = np.stack([text_matrix(each.blank) for each in scored])
        sums = _sums(shared, keys, M.reshape(len(M), -1), progress)
        for text, prepared, matrix, sum_ in zip(texts[part], scored, M, sums, strict=True):
            square = float(np.sum(np.square(matrix), dtype=np.float64))
            square = 0.0 if prepared.variance == 0.0 else square
            z = sum_ / math.sqrt(square) if square > TINY else np.zeros(len(keys))
            p_values = ndtr(-z) if square > TINY else np.ones(len(keys))
            best = int(np.argmax(z))
            W = _matrix(keys[best], shared=shared)
            used = prepared.pairs.used_rows
            rows = np.zeros((len(reading.token_rows), W.shape[1]), dtype=np.float32)
            rows[used] = reading.token_rows[used] @ W
            evidence = prepared.under(rows, contexts)
            effective = effective_length(prepared.blank, square) if square > TINY else 0.0
            row = [
                make_detection(
                    evidence,
                    Statistic(float(z[k]), float(p_values[k]), effective),
                    score=float(sum_[k]) / max(evidence.length, 1),
                    test=test,
                    fpr=fpr,
                    scheme=shared.scheme.name,
                    fingerprint=key.fingerprint,
                    reader=reader,
                )
                for k, key in enumerate(keys)
            ]
            row[best] = dataclasses.replace(row[best], tokens=token_scores(text, evidence))
            found.append(row)
    return found


def _sums(shared: KeyIndependent, keys: Sequence[Key], M: F32, progress: Progress) -> F64:
    """⟨M, W⟩ of texts' matrices (N, d_T d_C) under all keys, (N, keys)."""
    sums = np.empty((len(M), len(keys)))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for i in range(0, len(keys), _KEYS_AT_ONCE):
            progress("trying keys", i, len(keys))
            some = keys[i : i + _KEYS_AT_ONCE]
            W = np.stack([w.ravel() for w in pool.map(functools.partial(_matrix, shared=shared), some)])
            sums[:, i : i + _KEYS_AT_ONCE] = M @ W.T
    progress("trying keys", len(keys), len(keys))
    return sums


class _MatrixCache:
    """W of the keys used last, float32, up to ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes = limit, 0
        self._kept: OrderedDict[tuple[Key, int, int], F32] = OrderedDict()
        self._lock = threading.Lock()

    def matrix(self, key: Key, *, d_T: int, d_C: int) -> F32:
        """W (d_T, d_C) of a key."""
        name = (key, d_T, d_C)
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        drawn = draw_float32_matrix(key, d_T=d_T, d_C=d_C)
        with self._lock:
            if name not in self._kept:
                self._kept[name] = drawn
                self._bytes += drawn.nbytes
            while self._bytes > self._limit:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
        return drawn


_MATRICES = _MatrixCache(256 << 20)


def _matrix(key: Key, *, shared: KeyIndependent) -> F32:
    return _MATRICES.matrix(key, d_T=shared.d_T, d_C=shared.d_C)


def _detect(
    shared: KeyIndependent,
    keys: Sequence[Key],
    texts: Sequence[Tokenized],
    reading: Reading,
    *,
    test: str,
    fpr: float,
    reader: str | None,
    progress: Progress,
) -> list[list[Detection]]:
    scheme = shared.scheme
    contexts = reading.context_rows
    rows = np.zeros((len(reading.windows), 0), dtype=np.float32) if contexts is None else contexts
    scored = list(TextEvidence.each(reading.texts, reading, rows, scheme, test=test))
    variances = [score_variance(s.blank) if test == "key" and len(s.blank) else None for s in scored]
    found: list[list[Detection]] = [[] for _ in texts]
    best: list[tuple[int, Evidence]] = [(0, s.blank) for s in scored]
    for number, evidences in enumerate(_evidences(shared, keys, reading, scored)):
        if number % 50 == 0:
            progress("trying keys", number, len(keys))
        for i, evidence in enumerate(evidences):
            statistic = run_test(
                scored[i],
                evidence,
                scheme,
                test=test,
                n=shared.n,
                fpr=fpr,
                secret=keys[number].subkey(SIMULATION),
                variance=variances[i],
            )
            detection = make_detection(
                evidence,
                statistic,
                score=mean_score(evidence, scheme),
                test=test,
                fpr=fpr,
                scheme=scheme.name,
                fingerprint=keys[number].fingerprint,
                reader=reader,
            )
            if not found[i] or detection.z > found[i][best[i][0]].z:
                best[i] = (number, evidence)
            found[i].append(detection)
    progress("trying keys", len(keys), len(keys))
    for text, row, (number, evidence) in zip(texts, found, best, strict=True):
        row[number] = dataclasses.replace(row[number], tokens=token_scores(text, evidence))
    return found


def _evidences(
    shared: KeyIndependent,
    keys: Sequence[Key],
    reading: Reading,
    scored: Sequence[TextEvidence],
) -> Iterator[list[Evidence]]:
    """For each key the evidence of every text.

    Drawing keys on all cores and multiplying with a threaded BLAS take turns: at the same time they would
    compete for the cores and take three times as long.
    """
    draw = functools.partial(_drawn, shared=shared)
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        for i in range(0, len(keys), 8 * workers):
            some = keys[i : i + 8 * workers]
            for key, drawn in zip(some, list(pool.map(draw, some)), strict=True):
                tokens, sources = reading.token_rows, shared.sources_of(key)
                if sources is not None and isinstance(shared.reader, TokenReader):
                    tokens = rows_of(shared.reader.token_rows, sources[reading.ids])
                hashed, rows = shared.contexts_of(key), reading.context_rows
                rows = hashed.vectors(reading.windows) if hashed is not None else rows
                assert rows is not None
                P_T, P_C = _project(tokens, rows, drawn)
                yield [text.under(P_T, P_C) for text in scored]


def _drawn(key: Key, *, shared: KeyIndependent) -> tuple[F32, F32 | None]:
    """R_T and R_C of one key, or its W alone."""
    kind = shared.scheme.key_matrix
    if kind == "full":
        return draw_matrix(key, d_T=shared.d_T, d_C=shared.d_C).astype(np.float32), None
    drawn = draw_projections(key, d_T=shared.d_T, d_C=shared.d_C, kind=kind, n=shared.n)
    return drawn.R_T.astype(np.float32), drawn.R_C.astype(np.float32)


def _project(tokens: F32, contexts: F32, drawn: tuple[F32, F32 | None]) -> tuple[F32, F32]:
    """Units (V, d_T) and contexts (W, d_C) to rows whose products are u under a key."""
    R_T, R_C = drawn
    if R_C is None:
        return tokens @ R_T, contexts
    return _unit(tokens @ R_T) * np.float32(math.sqrt(R_T.shape[1])), _unit(contexts @ R_C)


def _unit(rows: F32) -> F32:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: F32 = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0.0)
    return unit
