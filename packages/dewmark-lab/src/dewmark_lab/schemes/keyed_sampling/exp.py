"""EXP, or Gumbel sampling (Aaronson 2022): the key samples the token, from the host's own distribution.

After a context c, token i has the number u_i = PRF(key, c, i), uniform in (0, 1) over keys. With p the host's
final distribution, the next token is argmax_i u_i^(1/p_i), which is i with probability exactly p_i over keys.
Chosen tokens have large u. On unmarked text −ln(1 − u) is exponential, so the sum over N distinct pairs
follows the Gamma distribution of shape N, for any text.

Given key and context nothing is left to chance: a context that recurs would force the same token again, and a
text that loops once would loop forever. By default (``repeats="skip"``) later occurrences of a context are
sampled by the host as usual; the text as a whole then follows the host's distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from dewmark.arrays import F64, I64
from dewmark.decoding import Decoding
from dewmark.mark import ChoosingSession
from dewmark.room import log_probability
from dewmark.sampling import Choice, RandomStreams, fresh_seeds, race, warp
from dewmark.scheme import Needs
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import Workspace
from dewmark_lab.schemes.distortion_free import DistortionFreeBound, Repeats
from dewmark_lab.schemes.engines.engine_scheme import support
from dewmark_lab.schemes.independent_sums import gamma_test, z_test
from dewmark_lab.schemes.pair_hash import torch_uniforms
from dewmark_lab.schemes.token_schemes import PromptBatch, TokenScheme, TokenWindows


class BoundEXP(DistortionFreeBound):
    """EXP for one key and one vocabulary. A pair scores −ln(1 − u) − 1."""

    tests = ("gamma", "z")
    scheme: EXP

    def prepare(self, workspace: Workspace) -> None:
        self.width, self.repeats = self.scheme.prefix, self.scheme.repeats

    def start_session(self, prompts: PromptBatch) -> RaceSession:
        return RaceSession(prompts, self)

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """−ln(1 − u) − 1 for each pair (N,)."""
        return -np.log1p(-self.pair_hash.uniforms(contexts, tokens)) - 1.0

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """``gamma``: the exact distribution of the sum; ``z``: its normal approximation."""
        return gamma_test(evidence) if test == "gamma" else z_test(evidence)


@dataclass(frozen=True)
class EXP(TokenScheme):
    """Exponential-minimum (Gumbel-max) sampling with keyed numbers."""

    name: ClassVar[str] = "exp"
    summary: ClassVar[str] = "Gumbel-max sampling with keyed noise: distortion-free, exact Gamma test"
    needs: ClassVar[Needs] = Needs(final_distribution=True)
    bound = BoundEXP

    prefix: Annotated[int, "at least 1"] = 4
    """Context width: the number of preceding tokens that key the choice."""
    repeats: Repeats = "skip"
    """Whether a context seen before in the text is left to the host (skip) or keyed again (keep)."""


class RaceSession(ChoosingSession):
    """Draws tokens by the keyed race, or after a repeated context with the row's own noise."""

    def __init__(self, prompts: PromptBatch, bound: DistortionFreeBound) -> None:
        self._windows = TokenWindows(prompts)
        self._hash = bound.vocabulary_hash
        self._repeated = bound.repeated(len(prompts))
        self._seeds = fresh_seeds(len(prompts), prompts.seeds)
        self._noise: RandomStreams | None = None
        self._step = 0

    def contexts(self, windows: torch.Tensor) -> torch.Tensor:
        """The contexts that key the race, from windows (batch, h); called once per step."""
        return windows

    def choose(self, input_ids: torch.Tensor, scores: torch.Tensor, decoding: Decoding) -> Choice:
        contexts = self.contexts(self._windows(input_ids, scores))
        logits = warp(scores.float(), decoding)
        if logits.device.type == "mps":  # Metal has no float64
            contexts, logits = contexts.cpu(), logits.cpu()
        candidates = support(logits)
        few = logits if candidates is None else logits.gather(1, candidates)
        chosen, sound = keyed_race(few, self._hash.words(contexts, candidates))
        if candidates is not None:
            chosen = candidates.gather(1, chosen.unsqueeze(1)).squeeze(1)
        repeated = self._repeated(contexts) if self._repeated is not None else []
        if any(repeated):
            if self._noise is None:
                self._noise = RandomStreams(self._seeds, device=logits.device)
            own, own_sound = race(logits, self._noise.exponentials(self._step, logits.shape[1]))
            rows = torch.tensor(repeated, device=logits.device)
            chosen, sound = torch.where(rows, own, chosen), torch.where(rows, own_sound, sound)
        carries = ~torch.tensor(repeated) if repeated else None
        self.measure(log_probability(logits, chosen), carries)
        self._step += 1
        return chosen, sound


def keyed_race(scores: torch.Tensor, words: torch.Tensor) -> Choice:
    """The winners (batch,) for logits and words, both (batch, m), and whether each row had a winner.

    argmax u^(1/p) is the token with the largest p/E, where E = −ln u.
    """
    return race(scores, torch_uniforms(words).log_().neg_())
