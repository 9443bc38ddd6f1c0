"""Numbers of keys and words, and nested values made plain."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping

import numpy as np
from tests.golden.api.worlds import Json, secret

from dewmark.core.keys import Key
from dewmark.core.projections import draw_projections, projection_dim
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
