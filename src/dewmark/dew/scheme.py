"""DEW's parameters, and how they become a working watermark."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from dewmark.core.keys import Key
from dewmark.core.projections import draw_projections
from dewmark.dew.bound import BoundDEW
from dewmark.dew.folded import Fold
from dewmark.dew.modes import HashedContexts, Mode
from dewmark.dew.public import open_public, restored_public
from dewmark.dew.sweep import detect_keys
from dewmark.errors import ArtifactError, ConfigError
from dewmark.scheme import DEFAULT_FPR, Needs, Scheme, State
from dewmark.types import Detection
from dewmark.workspace import HostInfo, Workspace

__all__ = ["DEW"]


@dataclass(frozen=True)
class DEW(Scheme):
    """Dual-Embedding Watermarking. Names and defaults are the paper's where it has them."""

    name: ClassVar[str] = "dew"
    summary: ClassVar[str] = "dual-embedding watermark: keyed alignment of token and context meaning"
    needs: ClassVar[Needs] = Needs(embeddings=True, encoder=True)

    units: Literal["token", "word"] = "word"
    """What is scored: the host's tokens (the paper), or words, which need nothing of the host to detect."""
    sampler: Literal["bias", "gumbel"] = "gumbel"
    """How the mark is put in: a bias on the logits (the paper), or keyed noise in Gumbel sampling (ours)."""
    lambda_: float = 2.0
    """Strength λ of the bias: the most that a logit can get."""
    alpha: float = 0.5
    """Share of the Gumbel sampler's randomness that comes from the key."""
    fresh_on_repeat: bool = True
    """Whether the Gumbel sampler leaves the key aside where a context recurs in a text word for word."""
    gamma: float = 0.5
    """Saturation γ: how fast tanh(γu) reaches its ends."""
    k: int = 3
    """Context width: how many tokens (or words) before the one that is scored."""
    m: int | None = None
    """How many of the likeliest candidates are scored; by default 32 with a bias, 256 with Gumbel."""
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
    centre: Literal["running", "rare"] = "running"
    """Where words are centred: at running text, for the stronger mark, or at rare words."""
    centred: bool | None = None
    """Whether the key test subtracts the text's mean unit from each: by default tokens (ours), not words."""
    score: Literal["tanh", "linear"] | None = None
    """What the key test sums: tanh(γu), by default with a bias, or u itself, by default with Gumbel."""
    donor: str | None = None
    """Another model whose input embeddings stand in for the host's (appendix C.2)."""

    def validate(self) -> None:
        """Refuse values out of range."""
        checks = (
            (self.lambda_ > 0.0, "lambda", "be positive", self.lambda_),
            (self.gamma > 0.0, "gamma", "be positive", self.gamma),
            (self.k >= 1, "k", "be at least 1", self.k),
            (0.0 < self.alpha <= 1.0, "alpha", "lie in (0, 1]", self.alpha),
            (self.m is None or self.m >= 1, "m", "be at least 1", self.m),
            (self.nucleus is None or 0.0 < self.nucleus <= 1.0, "nucleus", "lie in (0, 1]", self.nucleus),
            (self.n is None or self.n >= 2, "n", "be at least 2", self.n),
        )
        for holds, name, rule, value in checks:
            if not holds:
                raise ConfigError(f"{name} must {rule}, got {value}")
        if self.units == "word" and (self.mode != "both" or self.donor is not None):
            what = f"mode={self.mode}" if self.mode != "both" else f"donor={self.donor}"
            raise ConfigError(f"{what} is about a host's token table, which units=word does without")

    @property
    def needs_as_set(self) -> Needs:
        """The Gumbel sampler chooses the token, so it must see the final distribution."""
        return dataclasses.replace(self.needs, final=self.sampler == "gumbel")

    @property
    def host_free(self) -> bool:
        """Words are cut without the host's tokenizer."""
        return self.units == "word"

    @property
    def candidates(self) -> int:
        """How many of the likeliest candidates are scored."""
        return self.m if self.m is not None else 256 if self.sampler == "gumbel" else 32

    @property
    def scores_linearly(self) -> bool:
        """Whether the key test sums u itself."""
        return self.score == "linear" or (self.score is None and self.sampler == "gumbel")

    @property
    def subtracts_mean(self) -> bool:
        """Whether the key test subtracts the text's mean unit."""
        return self.centred if self.centred is not None else self.units == "token"

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
        public = open_public(self, host, workspace)
        projections = draw_projections(key, d_T=public.d_T, d_C=public.d_C, kind=self.projection, n=public.n)
        return BoundDEW(
            public,
            key.fingerprint,
            fold=Fold.of(projections),
            source=public.sources_of(key),
            hashed=public.contexts_of(key),
            progress=workspace.progress,
        )

    def detect_keys(
        self,
        keys: Sequence[Key],
        texts: Sequence[str],
        host: HostInfo,
        workspace: Workspace,
        *,
        prompts: Sequence[str | None] | None = None,
        fpr: float = DEFAULT_FPR,
        test: str | None = None,
    ) -> list[list[Detection]]:
        """Score texts under many keys, reading them once."""
        public = open_public(self, host, workspace)
        return detect_keys(
            public, keys, texts, prompts=prompts, fpr=fpr, test=test, progress=workspace.progress
        )

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundDEW:
        """A detector from stored tables: no key, no host weights."""
        arrays = state.arrays
        try:
            public = restored_public(self, state, host, workspace)
            fold = Fold.stored(arrays, public.n)
            source = None if self.token_semantics else arrays["source"]
            hashed = (
                None
                if self.context_semantics
                else HashedContexts(arrays["context_secret"].tobytes(), public.d_C)
            )
        except KeyError as missing:
            raise ArtifactError(f"the stored detector lacks {missing}; export it again") from None
        return BoundDEW(public, fingerprint, fold=fold, source=source, hashed=hashed)
