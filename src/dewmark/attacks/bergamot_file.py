"""Marian's binary model files, as the Bergamot project publishes its small translators: read into numpy.

A file of version 1 is, in little-endian order::

    version, n                                          2 × uint64
    n × (length of name, type, dimensions, bytes)       4 × uint64 each
    n names, each ended by a zero byte
    n shapes                                            int32 each
    padding, and that many bytes                        uint64
    n × data

Types are float32, int8 (texts such as the settings) and intgemm8: int8 elements q followed by the float32
multiplier m with which they were made, so that an element's value is q / m. Matrices of the last type lie
transposed in the file, except the embeddings. Boundary: bytes in, arrays out; no network, no torch.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dewmark.arrays import F32
from dewmark.errors import ModelError

__all__ = ["EMBEDDINGS", "FLOAT32", "INT8", "INTGEMM8", "SETTINGS", "MarianFile", "read_marian"]


FLOAT32, INT8, INTGEMM8 = 0x404, 0x101, 0x4101
EMBEDDINGS = "Wemb"
SETTINGS = "special:model.yml"
_VERSION = 1


@dataclass(frozen=True)
class MarianFile:
    """A model: its settings, and its arrays by name in the shapes that Marian calls them by."""

    settings: dict[str, Any]
    arrays: dict[str, F32]


def read_marian(path: Path) -> MarianFile:
    """Read a file whole."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    try:
        return _parse(data)
    except (struct.error, ValueError) as error:
        raise ModelError(
            f"{path.name} is no Marian model of version {_VERSION} ({error}): delete it and fetch it again"
        ) from error


def _parse(data: bytes) -> MarianFile:
    import yaml

    version, number = struct.unpack_from("<QQ", data, 0)
    if version != _VERSION:
        raise ValueError(f"version {version}")
    at = 16
    heads = list(struct.iter_unpack("<QQQQ", data[at : at + 32 * number]))
    if len(heads) != number:
        raise ValueError("cut short")
    at += 32 * number
    names, shapes = [], []
    for length, _, _, _ in heads:
        names.append(data[at : at + length].rstrip(b"\0").decode("utf-8"))
        at += length
    for _, _, dimensions, _ in heads:
        shapes.append(struct.unpack_from(f"<{dimensions}i", data, at))
        at += 4 * dimensions
    (padding,) = struct.unpack_from("<Q", data, at)
    at += 8 + padding
    arrays: dict[str, F32] = {}
    settings: dict[str, Any] = {}
    for name, (_, kind, _, size), shape in zip(names, heads, shapes, strict=True):
        item = data[at : at + size]
        at += size
        if name == SETTINGS:
            settings = yaml.safe_load(item.rstrip(b"\0").decode("utf-8"))
        elif kind != INT8:
            arrays[name] = _array(item, kind, shape, transposed=name != EMBEDDINGS)
    if at > len(data):
        raise ValueError("cut short")
    if not settings or not arrays:
        raise ValueError("it holds no settings or no arrays")
    return MarianFile(settings, arrays)


def _array(item: bytes, kind: int, shape: tuple[int, ...], *, transposed: bool) -> F32:
    count = math.prod(shape)
    if kind == FLOAT32:
        return np.frombuffer(item, "<f4", count).reshape(shape)
    if kind != INTGEMM8:
        raise ValueError(f"unknown type {kind:#x}")
    (multiplier,) = struct.unpack_from("<f", item, count)
    values = np.frombuffer(item, np.int8, count).astype(np.float32) / np.float32(multiplier)
    return values.reshape(shape[::-1]).T if transposed else values.reshape(shape)
