"""Ê_T: one unit vector per host token, whitened, ready for projection.

The table is public (it depends on the host, not on the key), built once per host and cached. Rows are rounded
to float16 *before* anything is derived from them, so that marking, detection and an exported detector start
from the same numbers. Tokens that cannot carry a mark have a zero row: special tokens, ids unknown to the
tokenizer (padded vocabularies), tokens without an embedding.

With a donor (appendix C.2) a token's vector is the mean of the donor's input embeddings over the donor's
tokens for the token's text, in the donor's whitened space.

The tables of a stored detector are memory-mapped files shared by all processes. `rows_of` copies rows in
blocks and releases the mapping after each, so that the whole table never counts towards this process.
"""

from __future__ import annotations

import hashlib
import mmap

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F16, F32, I64
from dewmark.core.whitening import Whitening, normalize_rows
from dewmark.errors import ArtifactError, NumericalError, VocabularyError
from dewmark.storage import load_bundle, save_bundle
from dewmark.workspace import HostInfo, Workspace

__all__ = ["token_table"]

_FORMAT = 1
_BLOCK = 8192
_MAPPED_ROWS = 16  # per block: the kernel may map two megabytes around each row
_ADDED_TOKENS = 256  # a tokenizer may have a few more ids than its model (Gemma 3's image token)


def rows_of(table: NDArray[np.floating], ids: I64) -> F32:
    """Rows (N, d) of a table (V, d), memory-mapped or not, as float32."""
    mapped = getattr(table, "_mmap", None)
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return np.asarray(table[ids], dtype=np.float32)
    out = np.empty((len(ids), table.shape[1]), dtype=np.float32)
    plain = np.asarray(table)
    for i in range(0, len(ids), _MAPPED_ROWS):
        out[i : i + _MAPPED_ROWS] = plain[ids[i : i + _MAPPED_ROWS]]
        mapped.madvise(mmap.MADV_DONTNEED)
    return out


def token_table(host: HostInfo, *, whiten: bool, donor: HostInfo | None, workspace: Workspace) -> F16:
    """Ê_T (vocab_size, d_T) from the cache, else built and cached."""
    name = "|".join(
        (str(_FORMAT), host.identity, host.tokenizer.identity, str(whiten), donor.identity if donor else "")
    )
    path = workspace.cache / "tokens" / hashlib.sha256(name.encode()).hexdigest()[:20]
    if path.exists():
        try:
            rows: F16 = load_bundle(path).arrays["rows"]
            if rows.shape[0] == host.vocab_size:
                return rows
        except (ArtifactError, KeyError):
            pass  # a damaged cache entry is built again
    workspace.progress("building the token table", 0, 1)
    rows = build_token_table(host, whiten=whiten, donor=donor)
    save_bundle(path, meta={"host": host.identity}, arrays={"rows": rows})
    workspace.progress("building the token table", 1, 1)
    return rows


def build_token_table(host: HostInfo, *, whiten: bool = True, donor: HostInfo | None = None) -> F16:
    """Ê_T (vocab_size, d_T), float16, with zero rows for tokens that cannot carry a mark."""
    source = donor or host
    E = source.embeddings()
    if E.ndim != 2 or len(E) != source.vocab_size:
        raise VocabularyError(
            f"{source.name}: the embedding table has shape {E.shape}, "
            f"the vocabulary has {source.vocab_size} entries"
        )
    markable = markable_ids(source)
    if not np.isfinite(E[markable]).all():
        raise NumericalError(f"{source.name}: the input embeddings contain NaN or infinite values")
    markable = markable[np.linalg.norm(E[markable], axis=1) > 1e-9]
    whitening = Whitening.fit(E[markable]) if whiten else None
    ids, raw = markable, E[markable]
    if donor is not None:  # the mean of the donor's rows over its tokens for each token's text
        ids = markable_ids(host)
        pieces = donor.tokenizer.encode(host.tokenizer.decode([[i] for i in ids.tolist()]))
        lengths = np.array([len(piece.ids) for piece in pieces])
        ids, lengths = ids[lengths > 0], lengths[lengths > 0]
        flat = np.fromiter((i for piece in pieces for i in piece.ids), dtype=np.int64)
        starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        raw = np.empty((len(ids), E.shape[1]), dtype=np.float32)
        for i in range(0, len(ids), _BLOCK):
            last = min(i + _BLOCK, len(ids))
            span = E[flat[starts[i] : starts[last - 1] + lengths[last - 1]]]
            raw[i:last] = np.add.reduceat(span, starts[i:last] - starts[i], axis=0) / lengths[i:last, None]
    rows = np.zeros((host.vocab_size, E.shape[1]), dtype=np.float16)
    for i in range(0, len(ids), _BLOCK):
        block = raw[i : i + _BLOCK]
        rows[ids[i : i + _BLOCK]] = normalize_rows(whitening.apply(block) if whitening else block)
    return rows


def markable_ids(host: HostInfo) -> I64:
    """The ids that have text and that the host can generate, ascending."""
    if host.tokenizer.size > host.vocab_size + _ADDED_TOKENS:
        raise VocabularyError(
            f"{host.name}: the tokenizer has {host.tokenizer.size} tokens, "
            f"the model only {host.vocab_size}; they do not belong together"
        )
    return np.flatnonzero(host.markable)
