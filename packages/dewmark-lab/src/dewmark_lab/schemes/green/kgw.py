"""KGW: after each context, a keyed share γ of the vocabulary is green, and green logits gain δ.

Kirchenbauer et al. 2023 (A Watermark for Large Language Models; On the Reliability of Watermarks).
``hashing`` decides what the green list depends on:

- ``left``: the h preceding ids, in order;
- ``additive``: their sum;
- ``skip``: the id h positions back;
- ``min``: the preceding id with the lowest keyed rank;
- ``self``: the id with the lowest keyed rank among h − 1 preceding ids and the candidate itself. (Algorithm 3
  of the first paper multiplies each rank by the candidate's own before taking the minimum. Either way one id
  of the window and the candidate decide; here all candidates of a step are judged in one pass.)

Contexts that agree in this respect share a green list, so it is this reduced context that, with the token,
makes a pair. Ranks and green lists are independent over keys: given the ranks, the distribution of green
tokens is exact.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import I64, U32
from dewmark.config import check_rules
from dewmark.sampling import Session
from dewmark.workspace import HostInfo, Workspace
from dewmark_lab.schemes.green.green_list import GreenBound, GreenListSession
from dewmark_lab.schemes.token_schemes import PromptBatch, TokenScheme
from dewmark_lab.schemes.vocabulary_hash import VocabularyHash, below

# default h: the papers' own, except for "left", where the first paper uses 1
_WIDTHS = {"left": 3, "additive": 3, "skip": 5, "min": 4, "self": 4}


@dataclass(frozen=True)
class KGW(TokenScheme):
    """The green-list watermark."""

    name: ClassVar[str] = "kgw"
    summary: ClassVar[str] = "a keyed green list after every context, and a bias towards it"

    gamma: float = 0.5
    """Share γ of the vocabulary that is green."""
    delta: float = 2.0
    """Bias δ added to green logits."""
    hashing: Literal["left", "self", "min", "skip", "additive"] = "left"
    """Which part of the context decides the green list."""
    prefix: int | None = None
    """Context width h; by default 3 for left and additive, 4 for min and self, 5 for skip."""

    def validate(self) -> None:
        """Check that all values are in range."""
        least = 2 if self.hashing == "self" else 1
        check_rules(
            (0.0 < self.gamma < 1.0, "gamma", "lie in (0, 1)", self.gamma),
            (self.delta > 0.0, "delta", "be positive", self.delta),
            (self.h >= least, "prefix", f"be at least {least} for {self.hashing} hashing", self.h),
        )

    @property
    def h(self) -> int:
        """The context width in use."""
        return _WIDTHS[self.hashing] if self.prefix is None else self.prefix

    def bind_secret(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundKGW:
        """Bind KGW to a secret and a vocabulary."""
        width = self.h - (self.hashing == "self")
        return BoundKGW(self, host, fingerprint, secret=secret, gamma=self.gamma, width=width)


class BoundKGW(GreenBound):
    """KGW for one key and one vocabulary."""

    scheme: KGW

    def start_session(self, prompts: PromptBatch) -> Session:
        """Start marking a batch of prompts."""
        green_alone = self._green_alone if self.scheme.hashing == "self" else None
        return HashedSession(
            prompts,
            self.vocabulary_hash,
            self.limit,
            delta=self.scheme.delta,
            hashing=self.hashing,
            green_alone=green_alone,
        )

    def contexts_of(self, windows: I64, tokens: I64) -> I64:
        """The part of the windows (N, h) before tokens (N,) that decides the green list, (N, w)."""
        contexts = self.hashing.contexts(windows)
        if self.scheme.hashing != "self":
            return contexts
        return np.asarray(np.minimum(contexts, self.hashing.ranks[tokens, None]), dtype=np.int64)

    @functools.cached_property
    def hashing(self) -> WindowHashing:
        """How contexts are hashed, with the keyed ranks of the vocabulary."""
        ranked = self.scheme.hashing in ("min", "self")
        ranks = self.pair_hash.table("ranks", self.host.vocab_size + 1 if ranked else 0)
        return WindowHashing(self.scheme.hashing, ranks)

    @functools.cached_property
    def _green_alone(self) -> NDArray[np.bool_]:
        """Whether each id is green where, in self-hashing, it ranks below its whole context: (vocab,)."""
        ids = np.arange(self.host.vocab_size)
        return self.pair_scores(self.hashing.ranks[ids, None].astype(np.int64), ids) > 0.0


@dataclass(frozen=True, eq=False, repr=False)
class WindowHashing:
    """Reduces a window to the part that decides the green list.

    ``ranks`` (vocab + 1,) are the keyed ranks of all ids, the last one that of `ABSENT`; only ``min`` and
    ``self`` need them.
    """

    method: str
    ranks: U32

    def contexts(self, windows: I64) -> I64:
        """Windows (N, h) to contexts (N, w), as far as they do not depend on the candidate."""
        if self.method in ("min", "self"):
            return np.asarray(self.ranks[windows].min(axis=1, keepdims=True), dtype=np.int64)
        if self.method == "additive":
            return np.asarray(windows.sum(axis=1, keepdims=True))
        return windows[:, :1] if self.method == "skip" else windows


class HashedSession(GreenListSession):
    """Reduces windows before it looks up green lists.

    ``green_alone`` (vocab,), for self-hashing only, says which ids are green if they rank below their
    context.
    """

    def __init__(
        self,
        prompts: PromptBatch,
        vocabulary_hash: VocabularyHash,
        limit: np.uint32,
        *,
        delta: float,
        hashing: WindowHashing,
        green_alone: NDArray[np.bool_] | None,
    ) -> None:
        super().__init__(prompts, vocabulary_hash, limit, delta=delta)
        self._hashing = hashing
        self._alone = None if green_alone is None else torch.from_numpy(green_alone[None])
        self._ranks = torch.from_numpy(hashing.ranks[None, :-1].view(np.int32))

    def listed(self, windows: torch.Tensor) -> torch.Tensor:
        """The tokens on each window's green list, special or not: (batch, vocab) bool."""
        device = windows.device
        contexts = self._hashing.contexts(windows.cpu().numpy())
        listed = super().listed(torch.from_numpy(contexts).to(device))
        if self._alone is None:
            return listed
        # a candidate that ranks below all preceding ids is its own context, whatever they are
        self._ranks, self._alone = self._ranks.to(device), self._alone.to(device)
        lowest = below(self._ranks, contexts.astype(np.uint32))
        # the same as where(lowest, alone, listed), but faster
        return (listed ^ self._alone).logical_and_(lowest).logical_xor_(listed)
