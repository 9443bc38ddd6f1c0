"""ATW: where the next token is open, half of the vocabulary, chosen by what the text means so far, gains.

Liu and Bu 2024 (adaptive text watermark). At a place whose entropy under a measurement model is at least α,
the meaning of what was written so far goes through a trained network T (`_atw_network`) to K signs; each
token has a keyed place among them, and is green if its sign is positive. Logits of green tokens are scaled
up. The first M tokens have no context to speak of: there every place is marked, with a fixed secret half.

Two things differ from the authors' code. The gain: they multiply logits by 1 + δ, which lowers those that are
negative, and which way it goes depends on a constant that the softmax ignores. Here a green token's logit
gains δ · max(log(p V), 0), δ times how much likelier it is than a uniform guess: what the authors' scaling
does where it works, with the origin in a defined place. And the key: their secret is the map of tokens to
places; here each token also has a keyed sign of its own. Over keys every token is then green with chance 1/2
after every context, different tokens are independent, and the number of green ones has a law that is computed
exactly (`_atw_law`), for every text, however repetitive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F64, I64
from dewmark.artifacts import load_artifact
from dewmark.baselines._atw_law import LONGEST, balanced, context_rows, exact_tail
from dewmark.baselines._atw_network import SemanticMap, open_map, prefix_vectors
from dewmark.baselines._entropy import EntropyScheme, WeighedBound
from dewmark.baselines._tests import check
from dewmark.baselines._tokens import stored_secret
from dewmark.errors import ArtifactError, ConfigError, VocabularyError
from dewmark.evidence import Evidence
from dewmark.scheme import Needs, Session, State
from dewmark.stats.key_test import Statistic, key_test
from dewmark.workspace import Follower, HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

__all__ = ["ATW"]


@dataclass(frozen=True)
class ATW(EntropyScheme):
    """The adaptive watermark."""

    name: ClassVar[str] = "atw"
    summary: ClassVar[str] = "entropy-gated scaling of a half of the vocabulary that the text's meaning picks"
    needs: ClassVar[Needs] = Needs(encoder=True, artifact=True, host_at_detection=True)

    artifact: str | None = None
    """A folder that ``dewmark train atw`` wrote; by default the one for SmolLM2-135M that comes along."""
    alpha: float = 3.0
    """Entropy α, in nats, from which on a place is marked and counted."""
    delta: float = 0.2
    """What green tokens gain, δ, as a share of the logarithm of how much likelier than a guess they are."""
    opening: int = 10
    """How many tokens at the start, M, are marked with the fixed secret half, whatever their entropy."""
    opening_delta: float = 0.2
    """The gain in the opening, δ₀."""
    refresh: int = 10
    """After how many tokens the meaning of what was written is taken anew."""
    measure: str | None = None
    """The measurement model, which must share the host's tokenizer; by default the host itself."""

    def validate(self) -> None:
        """Refuse values out of range."""
        check(
            (self.alpha >= 0.0, "alpha", "not be negative", self.alpha),
            (self.delta > 0.0, "delta", "be positive", self.delta),
            (self.opening >= 0, "opening", "not be negative", self.opening),
            (self.opening_delta >= 0.0, "opening_delta", "not be negative", self.opening_delta),
            (self.refresh >= 1, "refresh", "be at least 1", self.refresh),
        )

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundATW:
        """ATW with a secret, a vocabulary and its network."""
        artifact = load_artifact(self.artifact, scheme=self.name)
        artifact.require_tokenizer(host)
        semantics = open_map(artifact, host, workspace)
        return BoundATW(self, host, fingerprint, secret=secret, semantics=semantics, workspace=workspace)

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundATW:
        """Take secret, table and network from a stored detector; the host's weights are opened to detect."""
        secret = stored_secret(state)
        try:
            table, artifact = state.arrays["context_rows"], str(state.meta["artifact"])
        except KeyError as missing:
            raise ArtifactError(f"the stored detector lacks {missing}; export it again") from None
        semantics = SemanticMap.of(table, state.arrays, artifact, host)
        return BoundATW(self, host, fingerprint, secret=secret, semantics=semantics, workspace=workspace)


class BoundATW(WeighedBound):
    """ATW for one key and one vocabulary. A token scores 1 if it is green and −1 if not."""

    tests = ("weighted", "count", "key")
    scheme: ATW
    width = 0

    def __init__(
        self,
        scheme: ATW,
        host: HostInfo,
        fingerprint: str,
        *,
        secret: bytes,
        semantics: SemanticMap,
        workspace: Workspace,
    ) -> None:
        super().__init__(scheme, host, fingerprint, secret=secret)
        self._workspace = workspace
        self.measure = scheme.measure
        self.semantics = semantics
        self.artifact_identity = semantics.artifact
        words = self.hash.table("places", host.vocab_size).astype(np.uint64)
        self.places = ((words * np.uint64(semantics.outputs)) >> np.uint64(32)).astype(np.int64)
        self.flips = self._keyed_signs("signs")
        self.opening_signs = self._keyed_signs("opening")
        if scheme.measure is not None and workspace.find_host is not None:
            other = workspace.find_host(scheme.measure)
            if other.tokenizer.identity != host.tokenizer.identity:
                raise VocabularyError(
                    f"the measurement model {other.name} has another tokenizer than {host.name}: "
                    "choose one of the same family, or none"
                )

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts (batch, length)."""
        from dewmark.baselines._atw_session import AdaptiveSession

        if self.scheme.measure is None:
            return AdaptiveSession(self, prompt_ids, attention_mask, None)
        model = self._model()
        if not isinstance(model, Follower):
            raise ConfigError(f"{self.scheme.measure} cannot be run token by token here: leave measure out")
        return AdaptiveSession(self, prompt_ids, attention_mask, model.follow)

    def weigh(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits (n, vocab) to 1 where the entropy is at least α, else 0, (n,)."""
        from dewmark.baselines._green_session import entropy

        return (entropy(logits) >= self.scheme.alpha).float()

    def cut(self, written: int) -> int:
        """How many tokens make up the context after ``written`` of them; −1 in the opening."""
        scheme = self.scheme
        return -1 if written < scheme.opening else written - written % scheme.refresh

    def pair_scores(self, contexts: NDArray[np.int8] | I64, tokens: I64) -> F64:
        """Contexts as signs (N, K), a row of zeros for the opening, and tokens (N,) to scores ±1, (N,)."""
        signs: NDArray[np.int8] | I64 = contexts[np.arange(len(tokens)), self.places[tokens]]
        later = signs * self.flips[tokens]
        return np.where(signs == 0, self.opening_signs[tokens], later).astype(np.float64)

    def evidence(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> list[Evidence]:
        """The scores of texts' distinct (context, token) pairs; a pair weighs as often as it occurs."""
        gates = self.position_weights(texts, prompts)
        return [self._evidence(text, gate) for text, gate in zip(texts, gates, strict=True)]

    def _evidence(self, text: Tokenized, gate: F64 | None) -> Evidence:
        tokens = np.array(text.ids, dtype=np.int64)
        scored = np.append(self.markable, False)[np.minimum(tokens, len(self.markable))]
        cuts = np.array([self.cut(i) for i in range(len(tokens))], dtype=np.int64)
        if gate is not None:
            scored &= (gate > 0.0) | (cuts < 0)
        rows = np.column_stack((cuts[scored], tokens[scored]))
        distinct, inverse, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
        positions = np.full(len(tokens), -1, dtype=np.int64)
        positions[scored] = inverse
        contexts, which = np.unique(distinct[:, 0], return_inverse=True)
        signs = np.zeros((len(contexts), self.semantics.outputs), dtype=np.int8)
        later = contexts[contexts >= 0].tolist()
        vectors = prefix_vectors(self.semantics.table, text.ids, later)
        signs[len(contexts) - len(later) :] = self.semantics.signs(vectors)
        scores = self.pair_scores(signs[which], distinct[:, 1])
        return Evidence(
            scores=scores,
            alignments=scores,
            weights=counts.astype(np.float64),
            positions=positions,
            T=distinct[:, 1],
            C=context_rows(signs)[which],
            kernel=(1.0,),
        )

    def evidence_for(
        self, test: str, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]
    ) -> list[Evidence]:
        """For ``weighted`` the same pairs with other weights."""
        found = self.evidence(texts, prompts)
        return [balanced(evidence) for evidence in found] if test == "weighted" else found

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``weighted`` and ``count``: the law of the weighted sum over keys; ``key``: the normal one.

        The two differ in the weights that the evidence comes with. Beyond `LONGEST` both take the normal law.
        """
        normal = key_test(evidence)
        if test == "key" or not 0 < evidence.length <= LONGEST:
            return normal
        return Statistic(normal.z, exact_tail(evidence), normal.effective_length)

    def state(self) -> State:
        """The secret, the tokens' vectors and the network. As secret as the key."""
        arrays = {**super().state().arrays, **self.semantics.arrays(), "context_rows": self.semantics.table}
        return State(meta={"artifact": self.artifact_identity}, arrays=arrays)

    def _keyed_signs(self, purpose: str) -> NDArray[np.int8]:
        """A sign for every id, (vocab,), each −1 or 1."""
        return np.where(self.hash.table(purpose, self.host.vocab_size) >> np.uint32(31), 1, -1).astype(
            np.int8
        )
