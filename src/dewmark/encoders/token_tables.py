"""Ê_T: one unit vector per host token, whitened, ready to be projected.

The table is public (it depends on the host, not on the key), is built once per host and cached. Rows are
rounded to float16 *before* anything is derived from them, so that marking, detection and an exported
detector start from the same numbers. Tokens that carry no mark have a zero row: special tokens, ids that
the tokenizer does not know (padded vocabularies), tokens without an embedding.

With a donor (appendix C.2) a token's vector is the mean of the donor's input embeddings over the pieces
that the donor's tokenizer cuts the token's text into, in the donor's whitened space.

Rows of a table that may be larger than memory should be.

The tables of a stored detector are memory-mapped files, which all processes share. A row that is read makes
its page resident, and the kernel maps the pages around it too, so in time all of the table would count as
this process's. Rows are therefore copied out in blocks, and after each the mapping is given back: the pages
stay in the kernel's cache of files, where the next look finds them.
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

__all__ = ["build_token_table", "markable_ids", "rows_of", "token_table"]


_AT_ONCE = 16  # the kernel may map two megabytes around each row


def rows_of(table: NDArray[np.floating], ids: I64) -> F32:
    """Rows (N, d) of a table (V, d), memory-mapped or not, as float32."""
    mapped = getattr(table, "_mmap", None)
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return np.asarray(table[ids], dtype=np.float32)
    out = np.empty((len(ids), table.shape[1]), dtype=np.float32)
    plain = np.asarray(table)
    for i in range(0, len(ids), _AT_ONCE):
        out[i : i + _AT_ONCE] = plain[ids[i : i + _AT_ONCE]]
        mapped.madvise(mmap.MADV_DONTNEED)
    return out


_FORMAT = 1

_BLOCK = 8192

_ADDED_TOKENS = 256  # a tokenizer may know a few ids more than its model has (Gemma 3's image token)


def token_table(host: HostInfo, *, whiten: bool, donor: HostInfo | None, workspace: Workspace) -> F16:
    """Ê_T (vocab_size, d_T) from the cache, or built and cached."""
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
            pass  # a cache entry that does not check out is built again
    workspace.progress("building the token table", 0, 1)
    rows = build_token_table(host, whiten=whiten, donor=donor)
    save_bundle(path, meta={"host": host.identity}, arrays={"rows": rows})
    workspace.progress("building the token table", 1, 1)
    return rows


def build_token_table(host: HostInfo, *, whiten: bool = True, donor: HostInfo | None = None) -> F16:
    """Ê_T (vocab_size, d_T), float16, zero rows for tokens that carry no mark."""
    source = donor or host
    E = source.embeddings()
    if E.ndim != 2 or len(E) != source.vocab_size:
        raise VocabularyError(
            f"{source.name}: the embedding table has shape {E.shape}, "
            f"the vocabulary has {source.vocab_size} entries"
        )
    markable = markable_ids(source)
    if not np.isfinite(E[markable]).all():
        raise NumericalError(f"{source.name}: the input embeddings hold NaN or infinite values")
    markable = markable[np.linalg.norm(E[markable], axis=1) > 1e-9]
    whitening = Whitening.fit(E[markable]) if whiten else None
    ids, raw = (markable, E[markable]) if donor is None else _through_donor(host, donor, E)
    rows = np.zeros((host.vocab_size, E.shape[1]), dtype=np.float16)
    for i in range(0, len(ids), _BLOCK):
        block = raw[i : i + _BLOCK]
        rows[ids[i : i + _BLOCK]] = normalize_rows(whitening.apply(block) if whitening else block)
    return rows


def markable_ids(host: HostInfo) -> NDArray[np.int64]:
    """The ids that stand for text and that the host can write, ascending."""
    if host.tokenizer.size > host.vocab_size + _ADDED_TOKENS:
        raise VocabularyError(
            f"{host.name}: the tokenizer knows {host.tokenizer.size} tokens, "
            f"the model only {host.vocab_size}; they do not belong together"
        )
    known = np.arange(min(host.tokenizer.size, host.vocab_size), dtype=np.int64)
    return known[~np.isin(known, np.fromiter(host.tokenizer.special_ids, dtype=np.int64))]


def _through_donor(host: HostInfo, donor: HostInfo, E: F32) -> tuple[NDArray[np.int64], F32]:
    ids = markable_ids(host)
    pieces = donor.tokenizer.encode(host.tokenizer.decode([[i] for i in ids.tolist()]))
    lengths = np.array([len(piece.ids) for piece in pieces])
    ids, pieces, lengths = ids[lengths > 0], [p for p in pieces if p.ids], lengths[lengths > 0]
    flat = np.fromiter((i for piece in pieces for i in piece.ids), dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    means = np.empty((len(ids), E.shape[1]), dtype=np.float32)
    for i in range(0, len(ids), _BLOCK):
        last = min(i + _BLOCK, len(ids))
        span = E[flat[starts[i] : starts[last - 1] + lengths[last - 1]]]
        means[i:last] = np.add.reduceat(span, starts[i:last] - starts[i], axis=0) / lengths[i:last, None]
    return ids, means
