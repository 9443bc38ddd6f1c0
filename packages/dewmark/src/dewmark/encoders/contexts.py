"""Contexts of `dew-paper`, from the last k tokens to a unit vector ê_C; `lexicon` has those of `dew`.

``window`` (the paper): e_C = M_C(text of the last k tokens). Every distinct window is encoded once.
``composed`` (ours): e_C = mean of M_C(token) over the last k tokens. Every token is encoded once ever, the
table is cached on disk, and no encoder runs during generation or detection.

Whitened contexts are centred and whitened before normalisation: raw context vectors share a large common
component, which a fixed key turns into a standing preference for some tokens. Whitening is linear, so for
composed contexts it is applied to the table once. The paper uses raw contexts.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import defaultdict
from importlib import resources
from pathlib import Path

import numpy as np

from dewmark.arrays import F16, F32, I64
from dewmark.core.whitening import Whitening, normalize_rows
from dewmark.encoders.base import Encoder
from dewmark.encoders.lexicon import sums_of
from dewmark.encoders.token_tables import rows_of
from dewmark.errors import ArtifactError
from dewmark.storage import load_bundle, save_bundle
from dewmark.text.windows import ABSENT, window_texts, windows_of
from dewmark.workspace import HostInfo, Tokenizer, Workspace

__all__ = [
    "WindowContexts",
    "load_context_whitening",
    "ordinary_texts",
    "package_texts",
    "register_texts",
    "token_vectors",
]

_MEMO_LIMIT = 200_000
_CHUNK = 2048


class Contexts(ABC):
    """Maps windows of token ids to unit vectors.

    ``table`` (vocab_size, dim) holds the vectors that contexts are sums of, where they are such sums. Where
    an ``encoder`` runs on a window's text, its vectors may be whitened by ``whitening``.
    """

    dim: int
    table: F16 | None = None
    encoder: Encoder | None = None
    whitening: Whitening | None = None

    @abstractmethod
    def vectors(self, windows: I64) -> F32:
        """Windows (N, k) of ids or `ABSENT` to ê_C (N, dim), unit rows; empty windows give zero rows."""


class ComposedContexts(Contexts):
    """Sums the vectors of a window's tokens; ``table`` (vocab_size, d_C) has zero rows for special tokens."""

    def __init__(self, table: F16) -> None:
        self.table = self._rows = table
        self.dim = int(table.shape[1])

    def vectors(self, windows: I64) -> F32:
        """Windows (N, k) to unit rows (N, dim)."""
        ids, index = np.unique(windows, return_inverse=True)
        index = index.reshape(windows.shape)
        if len(ids) and ids[0] == ABSENT:
            ids, index = ids[1:], index - 1
        return sums_of(rows_of(self._rows, ids), index)


class WindowContexts(Contexts):
    """Encodes the text of each distinct window once, and caches it."""

    def __init__(self, encoder: Encoder, tokenizer: Tokenizer, whitening: Whitening | None) -> None:
        self.encoder: Encoder = encoder
        self.tokenizer, self.whitening = tokenizer, whitening
        self.dim = encoder.dim
        self._memo: dict[bytes, F32] = {}

    def vectors(self, windows: I64) -> F32:
        """Windows (N, k) to unit rows (N, dim); one encoder call for all new ones."""
        windows = np.ascontiguousarray(windows, dtype=np.int64)
        keys = [row.tobytes() for row in windows]
        new = {key: i for i, key in enumerate(keys) if key not in self._memo}
        found = {key: self._memo[key] for key in keys if key not in new}
        if new:
            fresh = self.encoder.encode(window_texts(self.tokenizer, windows[list(new.values())].tolist()))
            unit = normalize_rows(self.whitening.apply(fresh) if self.whitening else fresh)
            unit[(windows[list(new.values())] == ABSENT).all(axis=1)] = 0.0
            found.update(zip(new, unit, strict=True))
            if len(self._memo) + len(new) > _MEMO_LIMIT:
                self._memo = {}
            self._memo.update((key, found[key]) for key in new)
        return np.stack([found[key] for key in keys]) if keys else np.zeros((0, self.dim), dtype=np.float32)


def token_vectors(
    encoder: Encoder, host: HostInfo, *, whitening: Whitening | None, workspace: Workspace
) -> F16:
    """The table of composed contexts: M_C of every token's text, (vocab_size, d_C); cached on disk."""
    name = f"1|{encoder.identity}|{host.tokenizer.identity}|{host.vocab_size}"
    path = workspace.cache / "contexts" / hashlib.sha256(name.encode()).hexdigest()[:20]
    try:
        raw = load_bundle(path).arrays["rows"]
    except (ArtifactError, KeyError):
        ids = np.flatnonzero(host.markable).tolist()
        texts = host.tokenizer.decode([[i] for i in ids])
        raw = np.zeros((host.vocab_size, encoder.dim), dtype=np.float16)
        for i in range(0, len(ids), _CHUNK):
            workspace.progress("encoding the vocabulary", i, len(ids))
            raw[ids[i : i + _CHUNK]] = encoder.encode(texts[i : i + _CHUNK])
        workspace.progress("encoding the vocabulary", len(ids), len(ids))
        meta = {"encoder": encoder.identity, "tokenizer": host.tokenizer.identity}
        save_bundle(path, meta=meta, arrays={"rows": raw})
    rows = np.zeros(raw.shape, dtype=np.float16)
    for i in range(0, len(raw), _CHUNK):
        block = np.asarray(raw[i : i + _CHUNK], dtype=np.float32)
        present = np.any(block != 0.0, axis=1)
        rows[i : i + _CHUNK][present] = whitening.apply(block[present]) if whitening else block[present]
    return rows


def package_texts(folder: str) -> dict[str, str]:
    """The texts in a folder of the package's data, by the names of their files without suffix."""
    files = sorted((resources.files("dewmark") / "data" / folder).iterdir(), key=lambda file: file.name)
    return {file.name.partition(".")[0]: file.read_text(encoding="utf-8") for file in files}


def ordinary_texts() -> list[str]:
    """The package's own sentences in the languages of the default encoder, one text per language."""
    return list(package_texts("ordinary").values())


def register_texts() -> list[str]:
    """The package's own English texts, one per kind: registers of the web, and its openings by genre."""
    genres: dict[str, list[str]] = defaultdict(list)
    file = resources.files("dewmark") / "data" / "openings.jsonl"
    for opening in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        genres[opening["genre"]].append(opening["prompt"])
    return [*package_texts("registers").values(), *("\n".join(genres[genre]) for genre in sorted(genres))]


def load_context_whitening(
    encoder: Encoder, host: HostInfo, *, encoding: str, k: int, workspace: Workspace
) -> Whitening:
    """The whitening of contexts, ``composed`` or ``window``; no key is involved.

    It ships with the package for the packaged encoders. For any other encoder it is fitted once on the
    package's own ordinary texts, and cached.
    """
    path = Path(str(resources.files("dewmark") / "data" / "whitening" / f"{encoder.name}-{encoding}"))
    if not (path / "bundle.json").exists():
        width = k if encoding == "window" else ""
        name = f"1|{encoder.identity}|{host.tokenizer.identity}|{encoding}|{width}"
        path = workspace.cache / "whitening" / hashlib.sha256(name.encode()).hexdigest()[:20]
    try:
        arrays = load_bundle(path).arrays
        return Whitening(np.array(arrays["mean"]), np.array(arrays["matrix"]))
    except (ArtifactError, KeyError):
        pass
    texts = host.tokenizer.encode(ordinary_texts())
    windows = np.concatenate([windows_of(text.ids, k=k, host=host)[k:] for text in texts])
    if encoding == "composed":
        table = token_vectors(encoder, host, whitening=None, workspace=workspace).astype(np.float32)
        starts = range(0, len(windows), _CHUNK)
        fitted = Whitening.fit(table[windows[i : i + _CHUNK]].mean(axis=1) for i in starts)
    else:
        windows, blocks = np.unique(windows, axis=0), []
        for i in range(0, len(windows), _CHUNK):
            workspace.progress("encoding contexts", i, len(windows))
            blocks.append(encoder.encode(window_texts(host.tokenizer, windows[i : i + _CHUNK].tolist())))
        workspace.progress("encoding contexts", len(windows), len(windows))
        fitted = Whitening.fit(blocks)
    meta = {"encoder": encoder.name, "dim": fitted.dim}
    save_bundle(path, meta=meta, arrays={"mean": fitted.mean, "matrix": fitted.matrix})
    return fitted
