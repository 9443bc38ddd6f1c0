"""DEW's parameters, and how they become a working watermark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from dewmark.core.keys import Key
from dewmark.core.projections import draw_projections, projection_dim
from dewmark.core.whitening import Whitening
from dewmark.dew.bound import BoundDEW
from dewmark.dew.folded import FoldedTable, StoredTable
from dewmark.dew.modes import HashedContexts, Mode, permuted_rows
from dewmark.embeddings.contexts import (
    ComposedContexts,
    Contexts,
    WindowContexts,
    load_statistics,
    token_vectors,
)
from dewmark.embeddings.encoders import load_encoder
from dewmark.embeddings.token_tables import token_table
from dewmark.errors import ArtifactError, ConfigError, VocabularyError
from dewmark.scheme import Needs, Scheme, State
from dewmark.workspace import HostInfo, Workspace

__all__ = ["DEW"]


@dataclass(frozen=True)
class DEW(Scheme):
    """Dual-Embedding Watermarking. Names and defaults are the paper's where it has them."""

    name: ClassVar[str] = "dew"
    summary: ClassVar[str] = "dual-embedding watermark: keyed alignment of token and context meaning"
    needs: ClassVar[Needs] = Needs(embeddings=True, encoder=True)

    lambda_: float = 2.0
    """Watermark strength λ: the largest bias that a logit can get."""
    gamma: float = 0.5
    """Saturation γ: how fast tanh(γu) reaches its ends."""
    k: int = 3
    """Context width: how many tokens before the one that is scored."""
    m: int = 32
    """How many of the likeliest candidates get a bias."""
    nucleus: float | None = None
    """If set, bias the smallest set of candidates that holds this much probability, instead of the top m."""
    n: int | None = None
    """Projection dimensionality; by default max(d_T, d_C), for orthogonal projections lcm(d_T, d_C)."""
    projection: Literal["gaussian", "orthogonal"] = "gaussian"
    """How R_T and R_C are drawn: section 3.1, or the isometric blocks of appendix B."""
    mode: Mode = "both"
    """Which semantics are used; the other three are the paper's ablation."""
    context: Literal["composed", "window"] = "composed"
    """How a context is embedded: mean of its tokens' vectors, or the encoder run on its text (the paper)."""
    contexts: Literal["white", "raw"] = "white"
    """Whether context vectors are whitened (ours) or used as they come (the paper)."""
    encoder: str = "use-m3"
    """The context encoder M_C: a packaged name, a folder, or a hub id of a sentence-transformers model."""
    statistics: str = "default"
    """Whitening statistics of the contexts: ``default``, or a folder written by ``dewmark models fit``."""
    token_whitening: bool = True
    """Whether token embeddings are whitened (the paper does)."""
    donor: str | None = None
    """Another model whose input embeddings stand in for the host's (appendix C.2)."""

    def validate(self) -> None:
        """Refuse values out of range."""
        checks = (
            (self.lambda_ > 0.0, "lambda", "be positive", self.lambda_),
            (self.gamma > 0.0, "gamma", "be positive", self.gamma),
            (self.k >= 1, "k", "be at least 1", self.k),
            (self.m >= 1, "m", "be at least 1", self.m),
            (self.nucleus is None or 0.0 < self.nucleus <= 1.0, "nucleus", "lie in (0, 1]", self.nucleus),
            (self.n is None or self.n >= 2, "n", "be at least 2", self.n),
        )
        for holds, name, rule, value in checks:
            if not holds:
                raise ConfigError(f"{name} must {rule}, got {value}")

    @property
    def token_semantics(self) -> bool:
        """Whether similar tokens get similar scores."""
        return self.mode in ("both", "token_only")

    @property
    def context_semantics(self) -> bool:
        """Whether similar contexts give similar scores."""
        return self.mode in ("both", "context_only")

    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> BoundDEW:
        """Draw the projections and open (or build) the token table and the contexts."""
        donor = None
        if self.donor is not None:
            if workspace.find_host is None:
                raise ConfigError(
                    f"the donor {self.donor!r} cannot be looked up here; bind through dewmark.load_scheme"
                )
            donor = workspace.find_host(self.donor)
        rows = token_table(host, whiten=self.token_whitening, donor=donor, workspace=workspace)
        contexts = self._contexts(key, host, workspace)
        n = projection_dim(rows.shape[1], contexts.dim, kind=self.projection, n=self.n)
        projections = draw_projections(key, d_T=rows.shape[1], d_C=contexts.dim, kind=self.projection, n=n)
        source = None
        if not self.token_semantics:
            source = permuted_rows(key, np.flatnonzero(np.any(rows != 0, axis=1)), host.vocab_size)
        table = FoldedTable(rows, projections, source=source)
        return BoundDEW(self, host, key.fingerprint, token_rows=rows, table=table, contexts=contexts)

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundDEW:
        """A detector from stored tables: no key, no host weights."""
        try:
            arrays = state.arrays
            table = StoredTable(arrays["Q"], np.asarray(arrays["G"]), int(state.meta["n"]))
            rows = arrays["token_rows"]
            contexts: Contexts
            if not self.context_semantics:
                contexts = HashedContexts(arrays["context_secret"].tobytes(), table.G.shape[0])
            elif self.context == "composed":
                contexts = ComposedContexts(arrays["context_rows"])
            else:
                encoder = load_encoder(self.encoder, progress=workspace.progress)
                if encoder.identity != state.meta["encoder"]:
                    raise VocabularyError(
                        f"the detector was made with encoder {state.meta['encoder']}, "
                        f"{encoder.identity} is here; export the detector again"
                    )
                white = self.contexts == "white"
                whitening = Whitening(np.array(arrays["mean"]), np.array(arrays["matrix"])) if white else None
                contexts = WindowContexts(encoder, host.tokenizer, whitening)
        except KeyError as missing:
            raise ArtifactError(f"the stored detector lacks {missing}; export it again") from None
        if len(rows) != host.vocab_size:
            raise VocabularyError(
                f"the stored table has {len(rows)} tokens, the vocabulary {host.vocab_size}"
            )
        return BoundDEW(self, host, fingerprint, token_rows=rows, table=table, contexts=contexts)

    def _contexts(self, key: Key, host: HostInfo, workspace: Workspace) -> Contexts:
        encoder = load_encoder(self.encoder, progress=workspace.progress)
        if not self.context_semantics:
            return HashedContexts(key.subkey("dew/token_only"), encoder.dim)
        whitening = None
        if self.contexts == "white":
            whitening = load_statistics(
                self.statistics,
                encoder=encoder,
                host=host,
                context=self.context,
                k=self.k,
                workspace=workspace,
            )
        if self.context == "window":
            return WindowContexts(encoder, host.tokenizer, whitening)
        return ComposedContexts(token_vectors(encoder, host, whitening=whitening, workspace=workspace))
