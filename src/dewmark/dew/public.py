"""The part of DEW that no key enters: how texts are read, and dimensions. All keys of a process share it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dewmark.arrays import I64
from dewmark.core.keys import Key
from dewmark.core.projections import projection_dim
from dewmark.core.whitening import Whitening
from dewmark.dew.modes import HashedContexts, permuted_rows
from dewmark.dew.reading import Reader, TokenReader
from dewmark.dew.words import open_words, restored_words
from dewmark.embeddings import encoders
from dewmark.embeddings.contexts import (
    ComposedContexts,
    Contexts,
    WindowContexts,
    load_statistics,
    token_vectors,
)
from dewmark.embeddings.token_tables import token_table
from dewmark.errors import ConfigError, VocabularyError
from dewmark.scheme import State
from dewmark.workspace import HostInfo, Workspace

if TYPE_CHECKING:
    from dewmark.dew.scheme import DEW

__all__ = ["Public", "open_public", "restored_public"]


@dataclass(frozen=True)
class Public:
    """How texts are read, the width of both embeddings, and n."""

    scheme: DEW
    host: HostInfo
    reader: Reader
    d_T: int
    d_C: int
    n: int

    def contexts_of(self, key: Key) -> HashedContexts | None:
        """The contexts that a key makes itself; None where they come from the text's meaning."""
        if self.scheme.context_semantics:
            return None
        return HashedContexts(key.subkey("dew/token_only"), self.d_C)

    def sources_of(self, key: Key) -> I64 | None:
        """For each token the row of Ê_T that it uses under this key, (vocab,); None where it is its own."""
        if self.scheme.token_semantics or not isinstance(self.reader, TokenReader):
            return None
        markable = np.flatnonzero(np.any(self.reader.token_rows != 0, axis=1))
        return permuted_rows(key, markable, self.host.vocab_size)


# Opening checks and whitens tables for about a second, and a table takes tens of megabytes: keys that are
# bound at the same time share them, and nothing outlives the last one.
_OPEN: weakref.WeakValueDictionary[tuple[object, ...], Public] = weakref.WeakValueDictionary()


def open_public(scheme: DEW, host: HostInfo, workspace: Workspace) -> Public:
    """Open (or build) what reading needs."""
    tokenizer = "" if scheme.host_free else host.tokenizer.identity
    name = (scheme, host.identity, tokenizer, str(workspace.cache))
    public = _OPEN.get(name)
    if public is None:
        public = _OPEN[name] = _open(scheme, host, workspace)
    return public


def _open(scheme: DEW, host: HostInfo, workspace: Workspace) -> Public:
    if scheme.units == "word":
        words = open_words(scheme, workspace)
        return _public(scheme, host, words, d_T=words.vectors.dim, d_C=words.vectors.dim)
    donor = None
    if scheme.donor is not None:
        if workspace.find_host is None:
            raise ConfigError(
                f"the donor {scheme.donor!r} cannot be looked up here; bind through dewmark.load_scheme"
            )
        donor = workspace.find_host(scheme.donor)
    rows = token_table(host, whiten=scheme.token_whitening, donor=donor, workspace=workspace)
    contexts, d_C = _contexts(scheme, host, workspace)
    reader = TokenReader(host, rows, contexts, k=scheme.k)
    return _public(scheme, host, reader, d_T=rows.shape[1], d_C=d_C)


def _public(scheme: DEW, host: HostInfo, reader: Reader, *, d_T: int, d_C: int) -> Public:
    n = projection_dim(d_T, d_C, kind=scheme.projection, n=scheme.n)
    return Public(scheme, host, reader, d_T=d_T, d_C=d_C, n=n)


def _contexts(scheme: DEW, host: HostInfo, workspace: Workspace) -> tuple[Contexts | None, int]:
    encoder = encoders.load_encoder(scheme.encoder, progress=workspace.progress)
    if not scheme.context_semantics:
        return None, encoder.dim
    whitening = None
    if scheme.contexts == "white":
        whitening = load_statistics(
            scheme.statistics,
            encoder=encoder,
            host=host,
            context=scheme.context,
            k=scheme.k,
            workspace=workspace,
        )
    if scheme.context == "window":
        return WindowContexts(encoder, host.tokenizer, whitening), encoder.dim
    table = token_vectors(encoder, host, whitening=whitening, workspace=workspace)
    return ComposedContexts(table), encoder.dim


def restored_public(scheme: DEW, state: State, host: HostInfo, workspace: Workspace) -> Public:
    """The public part of a detector that was stored."""
    arrays, n = state.arrays, int(state.meta["n"])
    d_T, d_C = arrays["fold_product"].shape
    if scheme.units == "word":
        words = restored_words(scheme, state, workspace)
        return Public(scheme, host, words, d_T=d_T, d_C=d_C, n=n)
    rows = arrays["token_rows"]
    if len(rows) != host.vocab_size:
        raise VocabularyError(f"the stored table has {len(rows)} tokens, the vocabulary {host.vocab_size}")
    contexts = _restored_contexts(scheme, state, host, workspace)
    return Public(scheme, host, TokenReader(host, rows, contexts, k=scheme.k), d_T=d_T, d_C=d_C, n=n)


def _restored_contexts(scheme: DEW, state: State, host: HostInfo, workspace: Workspace) -> Contexts | None:
    arrays = state.arrays
    if not scheme.context_semantics:
        return None
    if scheme.context == "composed":
        return ComposedContexts(arrays["context_rows"])
    encoder = encoders.load_encoder(scheme.encoder, progress=workspace.progress)
    if encoder.identity != state.meta["encoder"]:
        raise VocabularyError(
            f"the detector was made with encoder {state.meta['encoder']}, "
            f"{encoder.identity} is here; export the detector again"
        )
    whitening = None
    if scheme.contexts == "white":
        whitening = Whitening(np.array(arrays["mean"]), np.array(arrays["matrix"]))
    return WindowContexts(encoder, host.tokenizer, whitening)
