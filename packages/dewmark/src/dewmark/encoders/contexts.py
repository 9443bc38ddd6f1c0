"""Contexts of DEW: from the last k tokens to a unit vector ê_C.

``window`` (the paper): e_C = M_C(text of the last k tokens). Every distinct window is encoded once.
``composed`` (ours): e_C = mean of M_C(token) over the last k tokens. Every token is encoded once ever, the
table is cached on disk, and no encoder runs during generation or detection.

Whitened contexts are centred and whitened before normalisation: raw context vectors share a large common
component, which a fixed key turns into a standing preference for some tokens. Whitening is linear, so for
composed contexts it is applied to the table once. The paper uses raw contexts.

A batch has far fewer distinct tokens than windows. Where contexts are sums of a few vectors
(`SummedContexts`), a product that is linear in the context is taken once per token and summed per window:
with s = Σ_j x_j the quadratic form s G sᵀ is s · Σ_j (x_j G).
"""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from dewmark.arrays import F16, F32, I64
from dewmark.core.whitening import Whitening, normalize_rows
from dewmark.encoders.base import Encoder
from dewmark.encoders.token_tables import rows_of
from dewmark.errors import ArtifactError, ConfigError
from dewmark.storage import load_bundle, save_bundle
from dewmark.text.windows import ABSENT, window_texts, windows_of
from dewmark.workspace import HostInfo, Tokenizer, Workspace

__all__ = ["WindowContexts", "load_context_whitening", "ordinary_texts", "token_vectors"]

_MEMO_LIMIT = 200_000
_CHUNK = 2048


@dataclass(frozen=True)
class SummedContexts:
    """W contexts as sums of up to k of P vectors: ``rows`` (P, d), ``index`` (W, k) padded with -1.

    With ``unit`` the rows are the contexts themselves.
    """

    rows: F32
    index: I64
    unit: bool = False

    @property
    def vectors(self) -> F32:
        """Unit rows (W, d); a sum of (nearly) zero length gives exactly zero."""
        return self._normalised[0]

    @functools.cached_property
    def _normalised(self) -> tuple[F32, F32]:
        """Unit rows (W, d), and the length of each sum (W,), infinity for an empty one."""
        if self.unit:
            return self.rows, np.ones(len(self.rows), dtype=np.float32)
        sums = self.sums(self.rows)
        lengths = np.linalg.norm(sums, axis=1)
        lengths[lengths <= 1e-12] = np.inf
        sums /= lengths[:, None]
        return sums, lengths

    def sums(self, rows: F32) -> F32:
        """Σ_j rows[index_j], (W, d), for any rows (P, d) in place of the vectors."""
        extended = np.concatenate((rows, np.zeros((1, rows.shape[1]), dtype=np.float32)))  # for index -1
        if not self.index.shape[1]:
            return np.zeros((len(self.index), rows.shape[1]), dtype=np.float32)
        total = extended[self.index[:, 0]]
        for column in self.index.T[1:]:
            total += extended[column]
        return total

    def squares(self, G: F32) -> F32:
        """c G cᵀ of each unit context c, (W,); G (d, d) symmetric."""
        vectors, lengths = self._normalised
        return np.asarray(np.einsum("ij,ij->i", vectors, self.sums(self.rows @ G)) / lengths)


class Contexts(ABC):
    """Maps windows of token ids to unit vectors.

    ``table`` (vocab_size, dim) holds the vectors that contexts are sums of, where they are such sums.
    """

    dim: int
    table: F16 | None = None

    @abstractmethod
    def vectors(self, windows: I64) -> F32:
        """Windows (N, k) of ids or `ABSENT` to ê_C (N, dim), unit rows; empty windows give zero rows."""

    def summed(self, windows: I64) -> SummedContexts:
        """The same contexts as sums of a few vectors each, in general of one."""
        return SummedContexts(self.vectors(windows), np.arange(len(windows))[:, None], unit=True)


class ComposedContexts(Contexts):
    """Sums the vectors of a window's tokens; ``table`` (vocab_size, d_C) has zero rows for special tokens."""

    def __init__(self, table: F16) -> None:
        self.table = self._rows = table
        self.dim = int(table.shape[1])

    def vectors(self, windows: I64) -> F32:
        """Windows (N, k) to unit rows (N, dim)."""
        return self.summed(windows).vectors

    def summed(self, windows: I64) -> SummedContexts:
        """Windows (N, k) as sums of their tokens' vectors."""
        ids, index = np.unique(windows, return_inverse=True)
        index = index.reshape(windows.shape)
        if len(ids) and ids[0] == ABSENT:
            ids, index = ids[1:], index - 1
        return SummedContexts(rows_of(self._rows, ids), index)


class WindowContexts(Contexts):
    """Encodes the text of each distinct window once, and caches it."""

    def __init__(self, encoder: Encoder, tokenizer: Tokenizer, whitening: Whitening | None) -> None:
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.whitening = whitening
        self.dim = encoder.dim
        self._memo: dict[bytes, F32] = {}

    def vectors(self, windows: I64) -> F32:
        """Windows (N, k) to unit rows (N, dim); one encoder call for all new ones."""
        windows = np.ascontiguousarray(windows, dtype=np.int64)
        keys = [row.tobytes() for row in windows]
        new = {key: i for i, key in enumerate(keys) if key not in self._memo}
        found = {key: self._memo[key] for key in keys if key not in new}
        if new:
            fresh = _encode_windows(self.encoder, self.tokenizer, windows[list(new.values())])
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
        raw = _encode_vocabulary(encoder, host, workspace)
        save_bundle(
            path,
            meta={"encoder": encoder.identity, "tokenizer": host.tokenizer.identity},
            arrays={"rows": raw},
        )
    rows = np.zeros(raw.shape, dtype=np.float16)
    for i in range(0, len(raw), _CHUNK):
        block = np.asarray(raw[i : i + _CHUNK], dtype=np.float32)
        present = np.any(block != 0.0, axis=1)
        rows[i : i + _CHUNK][present] = whitening.apply(block[present]) if whitening else block[present]
    return rows


def _encode_vocabulary(encoder: Encoder, host: HostInfo, workspace: Workspace) -> F16:
    ids = np.flatnonzero(host.markable).tolist()
    texts = host.tokenizer.decode([[i] for i in ids])
    rows = np.zeros((host.vocab_size, encoder.dim), dtype=np.float16)
    for i in range(0, len(ids), _CHUNK):
        workspace.progress("encoding the vocabulary", i, len(ids))
        rows[ids[i : i + _CHUNK]] = encoder.encode(texts[i : i + _CHUNK])
    workspace.progress("encoding the vocabulary", len(ids), len(ids))
    return rows


def fit_context_whitening(
    texts: Iterable[str],
    *,
    encoder: Encoder,
    host: HostInfo,
    encoding: str,
    k: int,
    workspace: Workspace,
    drop: int | None = None,
) -> Whitening:
    """Fit mean and whitening on the contexts of ordinary, unmarked texts; no key is involved.

    ``encoding`` is ``composed`` or ``window``. With ``drop`` contexts are only centred, and that many of
    their strongest directions removed.
    """
    windows = np.concatenate(
        [windows_of(t.ids, k=k, host=host)[k:] for t in host.tokenizer.encode(list(texts))]
    )
    if encoding == "composed":
        table = np.asarray(
            token_vectors(encoder, host, whitening=None, workspace=workspace), dtype=np.float32
        )
        return Whitening.fit(
            (table[windows[i : i + _CHUNK]].mean(axis=1) for i in range(0, len(windows), _CHUNK)), drop=drop
        )
    windows = np.unique(windows, axis=0)
    blocks = []
    for i in range(0, len(windows), _CHUNK):
        workspace.progress("encoding contexts", i, len(windows))
        blocks.append(_encode_windows(encoder, host.tokenizer, windows[i : i + _CHUNK]))
    workspace.progress("encoding contexts", len(windows), len(windows))
    return Whitening.fit(blocks, drop=drop)


def ordinary_texts() -> list[str]:
    """The package's own sentences in the languages of the default encoder, one text per language."""
    folder = resources.files("dewmark") / "data" / "ordinary"
    files = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".txt")), key=lambda file: file.name
    )
    return [file.read_text(encoding="utf-8") for file in files]


def load_context_whitening(
    source: str, *, encoder: Encoder, host: HostInfo, encoding: str, k: int, workspace: Workspace
) -> Whitening:
    """The whitening of contexts: from a folder written by ``dewmark models fit``, or the encoder's default.

    Defaults ship with the package for the packaged encoders. For any other encoder the whitening is fitted
    once on the package's own ordinary texts, and cached.
    """
    if source != "default":
        return _read_whitening(Path(source), encoder)
    shipped = Path(str(resources.files("dewmark") / "data" / "whitening" / f"{encoder.name}-{encoding}"))
    if (shipped / "bundle.json").exists():
        return _read_whitening(shipped, encoder)
    name = f"1|{encoder.identity}|{host.tokenizer.identity}|{encoding}|{k if encoding == 'window' else ''}"
    path = workspace.cache / "whitening" / hashlib.sha256(name.encode()).hexdigest()[:20]
    try:
        return _read_whitening(path, encoder)
    except ArtifactError:
        fitted = fit_context_whitening(
            ordinary_texts(), encoder=encoder, host=host, encoding=encoding, k=k, workspace=workspace
        )
        save_context_whitening(fitted, path, encoder=encoder)
        return fitted


def save_context_whitening(whitening: Whitening, path: Path, *, encoder: Encoder, note: str = "") -> None:
    """Write a fitted whitening for `load_context_whitening`."""
    arrays = {"mean": whitening.mean, "matrix": whitening.matrix}
    save_bundle(path, meta={"encoder": encoder.name, "dim": whitening.dim, "note": note}, arrays=arrays)


def _read_whitening(path: Path, encoder: Encoder) -> Whitening:
    bundle = load_bundle(path)
    try:
        mean, matrix = bundle.arrays["mean"], bundle.arrays["matrix"]
    except KeyError:
        raise ArtifactError(
            f"{path} contains no whitening statistics; write them with save_context_whitening"
        ) from None
    if mean.shape != (encoder.dim,):
        raise ConfigError(
            f"the statistics in {path} are for {mean.shape[0]} dimensions, {encoder.name} has {encoder.dim}"
        )
    return Whitening(mean=np.array(mean, dtype=np.float32), matrix=np.array(matrix, dtype=np.float32))


def _encode_windows(encoder: Encoder, tokenizer: Tokenizer, windows: I64) -> F32:
    """M_C of each window's text: (N, k) to (N, d_C), neither centred nor normalised."""
    return encoder.encode(window_texts(tokenizer, windows.tolist()))
