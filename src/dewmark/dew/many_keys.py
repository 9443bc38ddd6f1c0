"""The same texts under many keys: no text is read twice, no context encoded twice.

A key's projections are drawn as ever, but applied only to the distinct tokens and contexts of the texts, and
the variance over keys is the texts' own: it is computed once. Keys are drawn on as many threads as there are
cores, since drawing a key's projections is most of the work.
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
from dewmark.core.projections import draw_projections
from dewmark.dew.detection import TESTS, Scored, detection_of, statistic_of, token_scores
from dewmark.dew.reading import Public, Reading, TokenReader, chunks
from dewmark.encoders.token_tables import rows_of
from dewmark.scheme import check_test, check_texts
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import score_variance
from dewmark.types import Detection
from dewmark.workspace import Progress, Tokenized

__all__ = ["detect_keys"]


def detect_keys(
    public: Public,
    keys: Sequence[Key],
    texts: Sequence[str],
    *,
    prompts: Sequence[str | None] | None,
    fpr: float,
    test: str | None,
    progress: Progress,
) -> list[list[Detection]]:
    """For each text one detection per key, in the order of the keys; only the best one's has token scores."""
    test = check_test(test, TESTS)
    before = public.reader.tokenize(check_texts(texts, prompts, fpr))
    tokenized = public.reader.tokenize(texts)
    found: list[list[Detection]] = []
    for chunk in chunks(tokenized):
        some = [tokenized[i] for i in chunk]
        reading = public.reader.read(some, [before[i] for i in chunk])
        found += _detect(public, keys, some, reading, test=test, fpr=fpr, progress=progress)
    return found


def _detect(
    public: Public,
    keys: Sequence[Key],
    texts: Sequence[Tokenized],
    reading: Reading,
    *,
    test: str,
    fpr: float,
    progress: Progress,
) -> list[list[Detection]]:
    scheme = public.scheme
    contexts = reading.context_rows
    rows = np.zeros((len(reading.windows), 0), dtype=np.float32) if contexts is None else contexts
    scored = [Scored.of(pairs, reading, rows, scheme, test=test) for pairs in reading.texts]
    variances = [score_variance(s.blank) if test == "key" and len(s.blank) else None for s in scored]
    found: list[list[Detection]] = [[] for _ in texts]
    best: list[tuple[int, Evidence]] = [(0, s.blank) for s in scored]
    for number, evidences in enumerate(_evidences(public, keys, reading, scored)):
        if number % 50 == 0:
            progress("trying keys", number, len(keys))
        for i, evidence in enumerate(evidences):
            statistic = statistic_of(
                scored[i], evidence, scheme, test=test, n=public.n, variance=variances[i]
            )
            detection = detection_of(
                texts[i],
                evidence,
                statistic,
                scheme,
                test=test,
                fpr=fpr,
                fingerprint=keys[number].fingerprint,
                tokens=False,
            )
            if not found[i] or detection.z > found[i][best[i][0]].z:
                best[i] = (number, evidence)
            found[i].append(detection)
    progress("trying keys", len(keys), len(keys))
    for text, row, (number, evidence) in zip(texts, found, best, strict=True):
        row[number] = dataclasses.replace(row[number], tokens=token_scores(text, evidence))
    return found


def _evidences(
    public: Public,
    keys: Sequence[Key],
    reading: Reading,
    scored: Sequence[Scored],
) -> Iterator[list[Evidence]]:
    """For each key the evidence of every text.

    In turns: some keys are drawn on all cores, then their products are taken, by a BLAS that has threads of
    its own. At the same time the two would fight for the cores and take three times as long.
    """
    draw = functools.partial(_drawn, public=public)
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        for i in range(0, len(keys), 8 * workers):
            some = keys[i : i + 8 * workers]
            for key, (R_T, R_C) in zip(some, list(pool.map(draw, some)), strict=True):
                tokens, sources = reading.token_rows, public.sources_of(key)
                if sources is not None and isinstance(public.reader, TokenReader):
                    tokens = rows_of(public.reader.token_rows, sources[reading.ids])
                hashed, rows = public.contexts_of(key), reading.context_rows
                rows = hashed.vectors(reading.windows) if hashed is not None else rows
                assert rows is not None
                P_T, P_C = _unit(tokens @ R_T), _unit(rows @ R_C)
                P_T *= np.float32(math.sqrt(public.n))
                yield [text.under(P_T, P_C) for text in scored]


def _drawn(key: Key, *, public: Public) -> tuple[F32, F32]:
    """R_T and R_C of one key."""
    drawn = draw_projections(key, d_T=public.d_T, d_C=public.d_C, kind=public.scheme.projection, n=public.n)
    return drawn.R_T.astype(np.float32), drawn.R_C.astype(np.float32)


def _unit(rows: F32) -> F32:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: F32 = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0.0)
    return unit
