"""The part of DEW that no key enters: token rows, contexts, dimensions. All keys of a process share it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dewmark.core.keys import Key
from dewmark.core.projections import projection_dim
from dewmark.core.whitening import Whitening
from dewmark.dew.modes import HashedContexts, permuted_rows
from dewmark.embeddings.contexts import (
    ComposedContexts,
    Contexts,
    WindowContexts,
    load_statistics,
    token_vectors,
)
from dewmark.embeddings.encoders import load_encoder
from dewmark.embeddings.token_tables import token_table
from dewmark.errors import ConfigError, VocabularyError
from dewmark.scheme import State
from dewmark.workspace import HostInfo, Workspace

if TYPE_CHECKING:
    from dewmark.dew.scheme import DEW

__all__ = ["Public", "open_public", "restored_contexts"]

F16 = NDArray[np.float16]
I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Public:
    """Ê_T (vocab, d_T), the contexts (None where the key makes them itself), d_C and n."""

    scheme: DEW
    host: HostInfo
    token_rows: F16
    contexts: Contexts | None
    d_C: int
    n: int

    def contexts_of(self, key: Key) -> Contexts:
        """The contexts as one key sees them."""
        return self.contexts or HashedContexts(key.subkey("dew/token_only"), self.d_C)

    def sources_of(self, key: Key) -> I64 | None:
        """For each token the row of Ê_T that it uses under this key, (vocab,); None where it is its own."""
        if self.scheme.token_semantics:
            return None
        markable = np.flatnonzero(np.any(self.token_rows != 0, axis=1))
        return permuted_rows(key, markable, self.host.vocab_size)


# Opening checks and whitens tables for about a second, and a table takes tens of megabytes: keys that are
# bound at the same time share them, and nothing outlives the last one.
_OPEN: weakref.WeakValueDictionary[tuple[object, ...], Public] = weakref.WeakValueDictionary()


def open_public(scheme: DEW, host: HostInfo, workspace: Workspace) -> Public:
    """Open (or build) the token table and the contexts."""
    name = (scheme, host.identity, host.tokenizer.identity, str(workspace.cache))
    public = _OPEN.get(name)
    if public is None:
        public = _OPEN[name] = _open(scheme, host, workspace)
    return public


def _open(scheme: DEW, host: HostInfo, workspace: Workspace) -> Public:
    donor = None
    if scheme.donor is not None:
        if workspace.find_host is None:
            raise ConfigError(
                f"the donor {scheme.donor!r} cannot be looked up here; bind through dewmark.load_scheme"
            )
        donor = workspace.find_host(scheme.donor)
    rows = token_table(host, whiten=scheme.token_whitening, donor=donor, workspace=workspace)
    contexts, d_C = _contexts(scheme, host, workspace)
    n = projection_dim(rows.shape[1], d_C, kind=scheme.projection, n=scheme.n)
    return Public(scheme, host, token_rows=rows, contexts=contexts, d_C=d_C, n=n)


def _contexts(scheme: DEW, host: HostInfo, workspace: Workspace) -> tuple[Contexts | None, int]:
    encoder = load_encoder(scheme.encoder, progress=workspace.progress)
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


def restored_contexts(scheme: DEW, state: State, host: HostInfo, workspace: Workspace) -> Contexts:
    """The contexts of a detector that was stored."""
    arrays = state.arrays
    if not scheme.context_semantics:
        return HashedContexts(arrays["context_secret"].tobytes(), arrays["G"].shape[0])
    if scheme.context == "composed":
        return ComposedContexts(arrays["context_rows"])
    encoder = load_encoder(scheme.encoder, progress=workspace.progress)
    if encoder.identity != state.meta["encoder"]:
        raise VocabularyError(
            f"the detector was made with encoder {state.meta['encoder']}, "
            f"{encoder.identity} is here; export the detector again"
        )
    whitening = None
    if scheme.contexts == "white":
        whitening = Whitening(np.array(arrays["mean"]), np.array(arrays["matrix"]))
    return WindowContexts(encoder, host.tokenizer, whitening)
