"""What detectors say of texts, as plain values; exported detectors and what their folders hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tests.golden.api.numbers import array_facts
from tests.golden.api.worlds import MARKS, Json, World, secret

from dewmark import capabilities
from dewmark.core.keys import Key
from dewmark.errors import ConfigError
from dewmark.registry import SCHEMES
from dewmark.scheme import BoundScheme
from dewmark.stats.key_test import score_variance
from dewmark.storage import load_bundle
from dewmark.types import Detection, Looks
from dewmark.verdict import decide


def numbers_of(found: Detection) -> dict[str, Json]:
    """A detection without its tokens."""
    return {
        "verdict": str(found.verdict.value),
        "p": found.p_value,
        "z": found.z,
        "score": found.score,
        "effective length": found.effective_length,
        "scored": found.tokens_scored,
    }


def tokens_of(found: Detection) -> dict[str, Json]:
    """A detection's token scores, and the places of all tokens as one digest."""
    places = [(token.start, token.end, token.scored) for token in found.tokens]
    return {
        "units": len(found.tokens),
        "places": hashlib.sha256(repr(places).encode()).hexdigest()[:16],
        "scores": [token.score for token in found.tokens if token.scored],
    }


def all_of(found: Detection) -> dict[str, Json]:
    """A detection with its tokens."""
    return {**numbers_of(found), **tokens_of(found)}


def many_keys(world: World, mark: str, texts: Sequence[str], keys: Sequence[int]) -> list[dict[str, Json]]:
    """For each text its p-value and z under every key, and the verdict over all of them."""
    scheme, settings = MARKS[mark]
    host = world.host(mark)
    chosen, secrets = SCHEMES[scheme]().with_settings(dict(settings)), [Key(secret(key)) for key in keys]
    bounds = list(chosen.bind_keys(secrets, host.info, world.workspace(host)))
    cut = bounds[0].tokenize(list(texts)), bounds[0].tokenize([""] * len(texts))
    readings = bounds[0].read(*cut)
    rows = chosen.whole_under(secrets, readings, fpr=0.01, workspace=world.workspace(host))
    if rows is None:
        columns = [each.whole(readings, test=each.tests[0], fpr=0.01) for each in bounds]
        rows = [list(row) for row in zip(*columns, strict=True)]
    made = [decide(row, fpr=0.01, looks=Looks(keys=len(row))) for row in rows]
    return [
        {
            "p": one.p_value,
            "best": one.index,
            "verdict": str(one.verdict.value),
            "p of keys": [each.p_value for each in row],
            "z of keys": [each.z for each in row],
            "best tokens": len(row[one.index].tokens),
        }
        for one, row in zip(made, rows, strict=True)
    ]


def evidence_of(bound: BoundScheme, texts: Sequence[str]) -> list[dict[str, Json]] | None:
    """Sums over the evidence of texts, or None where a scheme offers none."""
    cut = bound.tokenize(list(texts))
    try:
        found = capabilities.evidence_of(bound, cut, bound.tokenize([""] * len(cut)))
    except ConfigError:
        return None
    return [
        {
            "pairs": len(one),
            "length": one.length,
            "total": one.total,
            "variance of one": one.variance,
            "variance of the sum": score_variance(one) if len(one) else 0.0,
            "squares": float(np.sum(np.square(one.scores))),
        }
        for one in found
    ]


def stored_facts(folder: Path) -> dict[str, Json]:
    """What a detector's folder holds, whatever its files are called: arrays, and values that are no paths."""
    bundle = load_bundle(folder / "state")
    index = json.loads((folder / "detector.json").read_text(encoding="utf-8"))
    arrays = sorted((array_facts(np.asarray(one)) for one in bundle.arrays.values()), key=json.dumps)
    return {
        "fingerprint": index["key_fingerprint"],
        "host": None if index["host"] is None else [index["host"]["identity"], index["host"]["vocab_size"]],
        "tokenizer": index["tokenizer"],
        "beside the arrays": sorted(value for value in map(str, bundle.meta.values()) if "/" not in value),
        "arrays": arrays,
    }
