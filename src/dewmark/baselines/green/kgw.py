"""KGW: after each context a keyed share γ of the vocabulary is green, and gets δ on its logits.

Kirchenbauer et al. 2023 (a watermark for large language models; on the reliability of watermarks). What the
green list depends on is the ``hashing``:

- ``left``: the h ids before, in their order;
- ``additive``: their sum;
- ``skip``: the one h places back;
- ``min``: the one with the least keyed rank;
- ``self``: the one with the least keyed rank among h - 1 ids before and the candidate itself. (The first
  paper's Algorithm 3 multiplies each rank with the candidate's own before it takes the least; either way one
  id of the window and the candidate decide, and here all candidates of a step are judged in one pass.)

Two contexts that agree in this respect share their list, so it is this, with the token, that counts once per
text. Ranks and green lists are independent over keys: given the ranks, the law of green tokens is exact.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import I64
from dewmark.baselines.green.lists import GreenBound
from dewmark.baselines.token_schemes import TokenScheme, check
from dewmark.scheme import Session
from dewmark.workspace import HostInfo, Workspace

if TYPE_CHECKING:
    import torch

__all__ = ["KGW"]

# h where none is given: the papers' own, and for "left" the comparison's (the first paper has 1)
_WIDTHS = {"left": 3, "additive": 3, "skip": 5, "min": 4, "self": 4}


@dataclass(frozen=True)
class KGW(TokenScheme):
    """The green-list watermark."""

    name: ClassVar[str] = "kgw"
    summary: ClassVar[str] = "a keyed green list after every context, and a bias towards it"

    gamma: float = 0.5
    """Share γ of the vocabulary that is green."""
    delta: float = 2.0
    """What is added to green logits, δ."""
    hashing: Literal["left", "self", "min", "skip", "additive"] = "left"
    """What of the context decides the green list."""
    prefix: int | None = None
    """Context width h; by default left and additive 3, min 4, self 4 (with the candidate), skip 5."""

    def validate(self) -> None:
        """Refuse values out of range."""
        least = 2 if self.hashing == "self" else 1
        check(
            (0.0 < self.gamma < 1.0, "gamma", "lie in (0, 1)", self.gamma),
            (self.delta > 0.0, "delta", "be positive", self.delta),
            (self.h >= least, "prefix", f"be at least {least} for {self.hashing} hashing", self.h),
        )

    @property
    def h(self) -> int:
        """The context width that is used."""
        return _WIDTHS[self.hashing] if self.prefix is None else self.prefix

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundKGW:
        """KGW with a secret and a vocabulary."""
        return BoundKGW(
            self,
            host,
            fingerprint,
            secret=secret,
            gamma=self.gamma,
            width=self.h - (self.hashing == "self"),
        )


class BoundKGW(GreenBound):
    """KGW for one key and one vocabulary."""

    scheme: KGW

    @functools.cached_property
    def ranks(self) -> NDArray[np.uint32]:
        """Keyed ranks of all ids, and last of `ABSENT`, (vocab + 1,)."""
        return self.hash.table("ranks", self.host.vocab_size + 1)

    @functools.cached_property
    def green_alone(self) -> NDArray[np.bool_]:
        """Whether each id is green where, in self-hashing, it ranks below its whole context, (vocab,)."""
        ids = np.arange(self.host.vocab_size)
        return self.pair_scores(self.ranks[ids, None].astype(np.int64), ids) > 0.0

    def reduce(self, windows: I64, tokens: I64) -> I64:
        """What of the windows (N, h) before tokens (N,) decides the green list, (N, w)."""
        contexts = self.contexts(windows)
        if self.scheme.hashing != "self":
            return contexts
        return np.asarray(np.minimum(contexts, self.ranks[tokens, None]), dtype=np.int64)

    def contexts(self, windows: I64) -> I64:
        """The same as far as it does not depend on the token."""
        hashing = self.scheme.hashing
        if hashing in ("min", "self"):
            return np.asarray(self.ranks[windows].min(axis=1, keepdims=True), dtype=np.int64)
        if hashing == "additive":
            return np.asarray(windows.sum(axis=1, keepdims=True))
        return windows[:, :1] if hashing == "skip" else windows

    def marker(self) -> Callable[[torch.Tensor, torch.Tensor | None], Session]:
        """What makes sessions."""
        from dewmark.baselines.green.lists import HashedSession

        return functools.partial(HashedSession, self)
