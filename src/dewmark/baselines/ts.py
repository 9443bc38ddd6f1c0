"""TS: green lists whose share γ and bias δ two small networks choose after each token.

Huo et al. 2024 (token-specific watermarking). KGW with one token of context, but γ_t and δ_t come from that
token's input embedding in the host (`_ts_networks`), trained for detectability and meaning at once. A token
is green after another if the pair's keyed word lies below γ_t·2³², so one pair costs one hash.

Detection works γ_t out again from the text: all it keeps of the networks is γ of every id. Fix the text and
let the key be random: its distinct pairs are green independently, each with its own γ_i, and

    z = (G − Σγ_i) / √Σγ_i(1 − γ_i).

``exact`` is the law of G itself, a sum of independent Bernoulli(γ_i), built by convolution for up to
`EXACT_LIMIT` pairs; beyond, and for ``z``, the normal law stands in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dewmark.arrays import F64, I64
from dewmark.artifacts import load_artifact
from dewmark.baselines._tests import check, z_test
from dewmark.baselines._tokens import TokenBound, TokenScheme, stored_secret
from dewmark.baselines._ts_networks import Tables, token_tables
from dewmark.embeddings.contexts import windows_of
from dewmark.errors import ArtifactError
from dewmark.evidence import Evidence
from dewmark.scheme import Needs, Session, State
from dewmark.stats.key_test import Statistic
from dewmark.workspace import HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

__all__ = ["TS", "bernoulli_law"]

EXACT_LIMIT = 4096


@dataclass(frozen=True)
class TS(TokenScheme):
    """The token-specific green list."""

    name: ClassVar[str] = "ts"
    summary: ClassVar[str] = "green lists whose share and bias are learned for each token before"
    needs: ClassVar[Needs] = Needs(embeddings=True, artifact=True)

    artifact: str | None = None
    """A folder that ``dewmark train ts`` wrote; by default the one for SmolLM2-135M that comes along."""
    strength: float = 1.0
    """What every learned δ is multiplied with."""

    def validate(self) -> None:
        """Refuse values out of range."""
        check((self.strength > 0.0, "strength", "be positive", self.strength))

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundTS:
        """TS with a secret, a vocabulary and its networks."""
        artifact = load_artifact(self.artifact, scheme=self.name)
        artifact.require_host(host)
        tables = token_tables(artifact, host, workspace)
        return BoundTS(self, host, fingerprint, secret=secret, tables=tables, artifact=artifact.identity)

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundTS:
        """Take secret and tables from a stored detector: neither artifact nor weights are needed."""
        secret = stored_secret(state)
        try:
            tables = Tables(np.array(state.arrays["gamma"]), np.array(state.arrays["delta"]))
            artifact = str(state.meta["artifact"])
        except KeyError as missing:
            raise ArtifactError(f"the stored detector lacks {missing}; export it again") from None
        return BoundTS(self, host, fingerprint, secret=secret, tables=tables, artifact=artifact)


class BoundTS(TokenBound):
    """TS for one key and one vocabulary. A pair scores (green − γ) / √γ(1−γ), and weighs √γ(1−γ)."""

    tests = ("exact", "z")
    scheme: TS
    width = 1

    def __init__(
        self, scheme: TS, host: HostInfo, fingerprint: str, *, secret: bytes, tables: Tables, artifact: str
    ) -> None:
        super().__init__(scheme, host, fingerprint, secret=secret)
        self.tables = tables
        self.artifact_identity = artifact
        self.limits = np.rint(tables.gamma * 2.0**32).astype(np.uint32)
        self._deviation = np.sqrt(tables.gamma * (1.0 - tables.gamma))

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts (batch, length)."""
        from dewmark.baselines._ts_session import TokenSpecificSession

        return TokenSpecificSession(self, prompt_ids, attention_mask)

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """Standardised: √((1−γ)/γ) for green pairs, −√(γ/(1−γ)) for the others, (N,)."""
        before = contexts[:, 0]
        green = self.hash.words(contexts, tokens) < self.limits[before]
        return np.asarray((green - self.tables.gamma[before]) / self._deviation[before])

    def position_weights(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> Iterator[F64]:
        """For each text √γ(1−γ) of its places (L,): weighted so, scores sum up to G − Σγ."""
        for text, prompt in zip(texts, prompts, strict=True):
            before = prompt.ids[-1:]
            windows = windows_of(before + text.ids, k=1, host=self.host)[len(before) :]
            yield self._deviation[windows[:, 0]]

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``exact``: the law of the number of green pairs; ``z``: its normal approximation."""
        normal = z_test(evidence)
        if test == "z" or not 0 < len(evidence) <= EXACT_LIMIT:
            return normal
        green = evidence.scores > 0.0
        law = bernoulli_law(green - evidence.scores * evidence.weights)
        return Statistic(normal.z, min(float(law[int(green.sum()) :].sum()), 1.0), normal.effective_length)

    def state(self) -> State:
        """The secret and both tables. As secret as the key."""
        secret = super().state()
        arrays = {**secret.arrays, "gamma": self.tables.gamma, "delta": self.tables.delta}
        return State(meta={"artifact": self.artifact_identity}, arrays=arrays)


def bernoulli_law(shares: F64) -> F64:
    """The probabilities of Σ B_i = 0, 1, …, N for independent B_i ~ Bernoulli(shares[i]), (N + 1,).

    Halves are convolved directly: all terms are positive, so the smallest tail keeps its relative precision.
    """
    if len(shares) <= 1:
        return np.array([1.0 - shares[0], shares[0]]) if len(shares) else np.ones(1)
    middle = len(shares) // 2
    return np.convolve(bernoulli_law(shares[:middle]), bernoulli_law(shares[middle:]))
