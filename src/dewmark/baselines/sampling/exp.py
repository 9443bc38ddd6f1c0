"""EXP, also called Gumbel sampling (Aaronson): the key chooses the token, the distribution stays the host's.

After a context c, token i has the number u_i = PRF(key, c, i), uniform in (0, 1) over keys. The host's final
distribution p gives the next token as argmax_i u_i^(1/p_i), which is i with probability exactly p_i over
keys. Chosen tokens have large u. On unmarked text −ln(1 − u) is exponential, so the sum over N distinct pairs
follows the Gamma law of shape N: no approximation, for any text.

Given key and context nothing is left to chance, so a context that comes back would force the same token
again, and a text that loops once loops for ever. By default (``repeats="skip"``) later occurrences of a
context are sampled by the host as usual; the text then follows the host's distribution as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dewmark.arrays import F64, I64
from dewmark.baselines.reweight.slots import Repeats, ReweightBound
from dewmark.baselines.token_schemes import TokenScheme, check, gamma_test, z_test
from dewmark.scheme import Needs, Session
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.workspace import HostInfo, Workspace

if TYPE_CHECKING:
    import torch

__all__ = ["EXP", "BoundEXP"]


@dataclass(frozen=True)
class EXP(TokenScheme):
    """Exponential-minimum (Gumbel-max) sampling with keyed numbers."""

    name: ClassVar[str] = "exp"
    summary: ClassVar[str] = "Gumbel-max sampling with keyed noise: distortion-free, exact Gamma test"
    needs: ClassVar[Needs] = Needs(final=True)

    prefix: int = 3
    """Context width: how many tokens before the one that is chosen."""
    repeats: Repeats = "skip"
    """Whether a context that occurred in the text before is left to the host (skip) or keyed again."""

    def validate(self) -> None:
        """Refuse values out of range."""
        check((self.prefix >= 1, "prefix", "be at least 1", self.prefix))

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundEXP:
        """The scheme with its secret and a host's vocabulary."""
        return BoundEXP(self, host, fingerprint, secret=secret, prefix=self.prefix, repeats=self.repeats)


class BoundEXP(ReweightBound):
    """EXP for one key and one vocabulary. A pair scores −ln(1 − u) − 1."""

    tests = ("gamma", "z")

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts (batch, length)."""
        from dewmark.baselines.sampling.race import RaceSession

        return RaceSession(self, prompt_ids, attention_mask)

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """−ln(1 − u) − 1 for each pair (N,)."""
        return -np.log1p(-self.hash.uniforms(contexts, tokens)) - 1.0

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``gamma``: the exact law of the sum; ``z``: its normal approximation."""
        return gamma_test(evidence) if test == "gamma" else z_test(evidence)
