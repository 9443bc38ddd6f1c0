"""Numbers of keys, words and statistics, and nested values made plain."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tests.evaluation.synthetic import scored as synthetic_scores
from tests.golden.api.worlds import Json, secret

from dewmark.core.keys import Key
from dewmark.core.projections import draw_projections, projection_dim
from dewmark.scheme import BoundScheme
from dewmark.stats.audit import audit
from dewmark.stats.calibration import Calibration
from dewmark.stats.multiple_testing import benjamini_hochberg, holm, sidak_min
from dewmark.text.languages import guess_language
from dewmark.text.words import words
from dewmark.types import Detection
from dewmark_lab.evaluation.power import choose_cuts, measure_power
from dewmark_lab.evaluation.protocol import evaluate
from dewmark_lab.evaluation.retention import pair_retentions, summarise
from dewmark_lab.schemes.pair_hash import PairHash


def plain(value: object) -> Json:
    """Dataclasses, arrays and tuples as plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    return value.item() if isinstance(value, np.generic) else value


def leaves(value: object) -> list[float]:
    """All numbers in a nested value, in their order: what is compared when names may change."""
    if isinstance(value, Mapping):
        return [number for each in value.values() for number in leaves(each)]
    if isinstance(value, (list, tuple)):
        return [number for each in value for number in leaves(each)]
    return [value] if isinstance(value, (bool, int, float)) else []


def key_numbers() -> dict[str, Json]:
    """What is drawn from one key: its fingerprint, streams, projections, keyed hashes."""
    key = Key(secret(0))
    pairs = PairHash(key.subkey("golden"), 500)
    contexts = np.arange(12).reshape(6, 2)
    drawn = {
        kind: draw_projections(key, d_T=12, d_C=8, kind=kind, n=projection_dim(12, 8, kind=kind, n=None))
        for kind in ("gaussian", "orthogonal")
    }
    return {
        "fingerprint": key.fingerprint,
        "sub-key": key.subkey("golden").hex(),
        "words": [int(word) for word in key.stream("golden").words(4)],
        "uniforms": key.stream("golden").uniforms(4),
        "normals": key.stream("golden").normals(2, 3),
        "permutation": key.stream("golden").permutation(20),
        "projections": {
            kind: [made[0].shape[1], *(array_facts(np.asarray(one)) for one in made)]
            for kind, made in drawn.items()
        },
        "keyed hash": [int(word) for word in pairs.words(contexts, np.arange(6))],
    }


def words_of(text: str) -> list[Json]:
    """The words of a text: where they stand, and their forms."""
    return [[word.start, word.end, word.form] for word in words(text)]


def language_of(text: str) -> str:
    """The language that a text is guessed to be in."""
    return guess_language(text)


def audit_numbers(detections: Sequence[Detection], languages: Sequence[str]) -> dict[str, Json]:
    """The audit of unmarked texts: the outcome, and the numbers of all cells."""
    kept = [
        (one, name) for one, name in zip(detections, languages, strict=True) if one.effective_length >= 16
    ]
    found = audit(
        [one.p_value for one, _ in kept],
        languages=[name for _, name in kept],
        lengths=[one.tokens_scored for one, _ in kept],
    )
    return {"outcome": found.outcome.value, "texts": found.texts, "cells": leaves(found.to_dict()["cells"])}


def retention_numbers(bound: BoundScheme, pairs: Sequence[tuple[str, str]]) -> dict[str, Json]:
    """What share of z rewrites keep, pair by pair and in the mean."""
    cut = bound.tokenize([text for pair in pairs for text in pair])
    evidence = bound.evidence(cut, bound.tokenize([""] * len(cut)))
    kept, unrelated = pair_retentions(evidence[::2], evidence[1::2])
    return {"kept": kept, "unrelated": unrelated, "summary": leaves(summarise(kept, unrelated).to_dict())}


def calibration_numbers(
    negatives: Sequence[Detection], detections: Sequence[Detection], folder: Path
) -> dict[str, Json]:
    """Thresholds and ranks among negatives, before and after the calibration was stored."""
    made = Calibration.from_detections(negatives, config_hash="golden")
    made.save(folder / "calibration.json")
    again = Calibration.load(folder / "calibration.json")
    return {
        "negatives": again.z,
        "too short": again.too_short,
        "thresholds": [again.threshold(rate) for rate in (0.05, 0.1, 0.5)],
        "p": [again.p_value(one.z) for one in detections],
        "verdicts": [again.apply(one).verdict.value for one in detections],
    }


def evaluation_numbers() -> list[float]:
    """The protocol on scores of an imaginary run: two schemes, an attack, three seeds, human texts."""
    attacks = {"none": (1.0, 0.0), "shifted": (0.5, 0.3)}
    rows = synthetic_scores({"one": 3.0, "two": 1.0}, attacks, texts=60, human=True)
    return leaves(evaluate(rows).to_dict())


def multiple_numbers(p_values: Sequence[float]) -> dict[str, Json]:
    """Corrections for many tests."""
    return {
        "p by Holm": holm(p_values),
        "p by Benjamini and Hochberg": benjamini_hochberg(p_values),
        "p by Šidák": [sidak_min(p, tests=len(p_values)) for p in p_values],
    }


def power_numbers() -> list[float]:
    """Power by length, from z-scores of imaginary texts."""
    cuts = choose_cuts([50, 100], 120)
    rng = np.random.default_rng(0)
    z = 0.35 * np.sqrt(np.array(cuts)) + rng.normal(size=(12, len(cuts)))
    found = measure_power(z, np.tile(cuts, (12, 1)) * 0.5, cuts, fpr=0.01, least_effective=16.0)
    model = [found.model.slope, found.model.noise, found.model.between]
    rows = [leaves(plain(found.row(length).to_dict())) for length in (50, 100, 400)]
    return [*model, *leaves(rows), *leaves(list(found.shortest.values()))]


def array_facts(array: np.ndarray) -> dict[str, Json]:
    """Type, shape, a digest of the bytes (compared only where numbers must be exact), and sums."""
    values = array.astype(np.float64)
    data = np.ascontiguousarray(array).tobytes()
    return {
        "type": str(array.dtype),
        "shape": list(array.shape),
        "sha256": hashlib.sha256(data).hexdigest(),
        "sum": float(values.sum()),
        "root of squares": math.sqrt(float(np.square(values).sum())),
    }
