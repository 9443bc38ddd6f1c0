"""The same texts under many keys: no text is read twice, no context encoded twice.

Each key's projections are applied only to the distinct units and contexts of the texts, and the variance over
keys depends on the texts alone, so it is computed once. Drawing a key's projections is most of the work, so
it runs on as many threads as there are cores.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dewmark.arrays import F32
from dewmark.core.keys import Key
from dewmark.core.projections import draw_matrix, draw_projections
from dewmark.dew.detection import SIMULATION, TESTS, TextEvidence, mean_score, run_test
from dewmark.dew.reading import KeyIndependent, Reading, TokenReader
from dewmark.encoders.token_tables import rows_of
from dewmark.scheme import UNITS_PER_CHUNK, check_test, check_texts, make_detection, text_chunks, token_scores
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import score_variance
from dewmark.types import Detection
from dewmark.workspace import Progress, Tokenized

__all__ = ["detect_keys"]


def detect_keys(
    shared: KeyIndependent,
    keys: Sequence[Key],
    texts: Sequence[str],
    *,
    prompts: Sequence[str | None] | None,
    fpr: float,
    test: str | None,
    progress: Progress,
) -> list[list[Detection]]:
    """For each text one detection per key, in the order of the keys; only the best one has token scores."""
    test = check_test(test, TESTS)
    before = shared.reader.tokenize(check_texts(texts, prompts, fpr))
    tokenized = shared.reader.tokenize(texts)
    found: list[list[Detection]] = []
    for part in text_chunks(tokenized, units=UNITS_PER_CHUNK):
        reading = shared.reader.read(tokenized[part], before[part])
        found += _detect(shared, keys, tokenized[part], reading, test=test, fpr=fpr, progress=progress)
    return found


def _detect(
    shared: KeyIndependent,
    keys: Sequence[Key],
    texts: Sequence[Tokenized],
    reading: Reading,
    *,
    test: str,
    fpr: float,
    progress: Progress,
) -> list[list[Detection]]:
    scheme = shared.scheme
    contexts = reading.context_rows
    rows = np.zeros((len(reading.windows), 0), dtype=np.float32) if contexts is None else contexts
    scored = [TextEvidence.of(pairs, reading, rows, scheme, test=test) for pairs in reading.texts]
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
