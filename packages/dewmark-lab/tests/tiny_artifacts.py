"""Artifacts of a few kilobytes for the fake host and the bag encoder, one maker per scheme that needs one.

They stand in for the artifacts that come with the package, so that every test which goes through the registry
(the contract suite, the commands) runs each scheme with its defaults and no real model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.fakes import BagEncoder

from dewmark.workspace import HostInfo
from dewmark_lab.artifacts import save_artifact
from dewmark_lab.testing.trial import tiny_host

Parts = tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]  # parameters and arrays


MAKERS: dict[str, Callable[[HostInfo, BagEncoder], Parts]] = {}


def _ts(host: HostInfo, encoder: BagEncoder) -> Parts:
    """Networks of 4 hidden units around γ = 0.3 and δ = 2.5."""
    rng, width = np.random.default_rng(1), host.embeddings().shape[1]
    arrays = {}
    for net, centre in (("gamma", -1.1), ("delta", 2.4)):
        arrays[f"{net}.A"] = rng.normal(size=(width, 4)).astype(np.float32) / np.sqrt(width)
        arrays[f"{net}.a"] = np.zeros(4, dtype=np.float32)
        arrays[f"{net}.B"] = 0.3 * rng.normal(size=(4, 1)).astype(np.float32)
        arrays[f"{net}.b"] = np.array([centre], dtype=np.float32)
    return {}, arrays


MAKERS["ts"] = _ts


def _atw(host: HostInfo, encoder: BagEncoder) -> Parts:
    """A random network of 16 hidden units and 24 signs; contexts as they come."""
    rng, d = np.random.default_rng(2), encoder.dim
    arrays = {"mean": np.zeros(d, dtype=np.float32), "matrix": np.eye(d, dtype=np.float32)}
    shapes = {"input": (d, 16), "first": (16, 16), "second": (16, 16), "output": (16, 24)}
    for name, (rows, columns) in shapes.items():
        arrays[f"{name}.W"] = rng.normal(size=(rows, columns)).astype(np.float32) / np.sqrt(rows)
        arrays[f"{name}.b"] = np.zeros(columns, dtype=np.float32)
    return {}, arrays


MAKERS["atw"] = _atw


def _semstamp(host: HostInfo, encoder: BagEncoder) -> Parts:
    """The bag encoder's own space, around its constant part."""
    return {}, {
        "mean": np.full(encoder.dim, 0.5, np.float32),
        "matrix": np.eye(encoder.dim, dtype=np.float16),
    }


def _ksemstamp(host: HostInfo, encoder: BagEncoder) -> Parts:
    """The same with eight centroids on as many axes."""
    _, arrays = _semstamp(host, encoder)
    return {}, {**arrays, "centroids": np.eye(8, encoder.dim, dtype=np.float16)}


MAKERS["semstamp"] = _semstamp
MAKERS["ksemstamp"] = _ksemstamp


def _sir(host: HostInfo, encoder: BagEncoder) -> Parts:
    """A random network of 16 hidden units and 60 signs, around the bag encoder's constant part."""
    rng, d = np.random.default_rng(3), encoder.dim
    shapes = {"input": (d, 16), "first": (16, 16), "second": (16, 16), "output": (16, 60)}
    arrays: dict[str, NDArray[Any]] = {"mean": np.full(d, 0.15, dtype=np.float32)}
    for name, (rows, columns) in shapes.items():
        arrays[f"{name}.W"] = (rng.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float16)
        arrays[f"{name}.b"] = np.zeros(columns, dtype=np.float16)
    return {}, arrays


def _xsir(host: HostInfo, encoder: BagEncoder) -> Parts:
    """The same with every other id in a cluster of two."""
    _, arrays = _sir(host, encoder)
    ids = np.arange(host.vocab_size, dtype=np.int32)
    return {}, {**arrays, "labels": np.where(ids % 4 < 2, ids, ids - ids % 2).astype(np.int32)}


MAKERS["sir"] = _sir
MAKERS["xsir"] = _xsir


def card_of(
    scheme: str, host: HostInfo, encoder: BagEncoder, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """A card as training writes it."""
    return {
        "scheme": scheme,
        "host": {
            "name": host.name,
            "identity": host.identity,
            "tokenizer": host.tokenizer.identity,
            "vocab_size": host.vocab_size,
        },
        "encoder": {"name": encoder.name, "identity": encoder.identity, "dim": encoder.dim},
        "parameters": dict(parameters),
        "training": {"command": "none: made by a test", "seed": 0, "job": "test", "report": {}},
    }


def make_all(folder: Path) -> None:
    """Write every scheme's tiny artifact to ``folder``/<scheme>."""
    host, encoder = tiny_host().info, BagEncoder()
    for scheme, make in MAKERS.items():
        parameters, arrays = make(host, encoder)
        save_artifact(folder / scheme, card_of(scheme, host, encoder, parameters), arrays)
