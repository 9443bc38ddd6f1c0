"""SIR and X-SIR with a key: scores, their law over keys, verdicts, and what a detector stores.

The key gives every label x (a token, or a cluster of tokens) a place π(x) among the K outputs of the network
and a sign σ(x), uniform and independent. After a context with signs t a token with label x scores

    s = σ(x) t[π(x)] ∈ {−1, 1},

and marking adds δ s to its logit. The text fixes all t; over keys scores have mean 0, labels are
independent, and the same label after two contexts has covariance ⟨t, t'⟩/K. That is all that the tests need.

A label that recurs under a context that means the same tells nothing new. So a pair (context, label) counts
once, with the weight 1 / Σ_j max(0, ρ_ij) over all pairs of its label, ρ_ii = 1: ten times "the" in one topic
weigh about as much as one. Weights depend on the text alone.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F64, I8, I64
from dewmark.artifacts import Artifact, load_artifact
from dewmark.baselines._atw_law import context_rows, exact_tail
from dewmark.baselines._sir_chunks import chunks_before, context_of
from dewmark.baselines._sir_network import Transform, open_transform
from dewmark.baselines._tests import check
from dewmark.baselines._tokens import TokenBound, TokenScheme, stored_secret
from dewmark.embeddings import encoders
from dewmark.embeddings.streams import Spelling
from dewmark.errors import ArtifactError, VocabularyError
from dewmark.evidence import Evidence
from dewmark.scheme import Session, State
from dewmark.stats.key_test import Statistic, key_test
from dewmark.workspace import HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

__all__ = ["BoundSIR", "InvariantScheme"]


_GRID = 8  # weights are rounded to eighths for the exact law
_EXACT_LIMIT = 1000.0  # of the sum of weights; beyond, the normal law is as good


@dataclass(frozen=True)
class InvariantScheme(TokenScheme):
    """What SIR and X-SIR share; defaults after the paper's comparison."""

    artifact: str | None = None
    """Folder of the trained artifact; by default the one that comes with the package."""
    delta: float = 1.0
    """What is added to a logit or taken from it, δ."""
    chunk: int = 10
    """After how many words the meaning of the text so far is taken anew."""
    reach: int = 20
    """How many chunks back the text so far reaches."""

    def validate(self) -> None:
        """Refuse values out of range."""
        check(
            (self.delta > 0.0, "delta", "be positive", self.delta),
            (self.chunk >= 1, "chunk", "be at least 1", self.chunk),
            (self.reach >= 1, "reach", "be at least 1", self.reach),
        )

    @abstractmethod
    def labels(self, arrays: dict[str, NDArray[Any]], host: HostInfo) -> I64:
        """The label of every id, (vocab,), from the arrays of an artifact or a stored detector."""

    def require(self, artifact: Artifact, host: HostInfo) -> None:
        """Refuse an artifact that was not made for this host."""

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundSIR:
        """The scheme with a secret, a vocabulary and its artifact."""
        artifact = load_artifact(self.artifact, scheme=self.name)
        self.require(artifact, host)
        encoder = encoders.load_encoder(artifact.encoder, progress=workspace.progress)
        artifact.require_encoder(encoder.identity, name=encoder.name)
        arrays = dict(artifact.arrays)
        transform = open_transform(encoder, artifact.identity, arrays)
        return BoundSIR(
            self,
            host,
            fingerprint,
            secret=secret,
            transform=transform,
            labels=self.labels(arrays, host),
            artifact=artifact.identity,
        )

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundSIR:
        """Take secret, network and labels from a stored detector; the encoder is loaded by its name."""
        try:
            name, identity = str(state.meta["encoder"]), str(state.meta["encoder_identity"])
            artifact, arrays = str(state.meta["artifact"]), dict(state.arrays)
            labels = np.asarray(arrays["labels"], dtype=np.int64)
        except KeyError as missing:
            raise ArtifactError(f"the stored detector lacks {missing}; export it again") from None
        encoder = encoders.load_encoder(name, progress=workspace.progress)
        if encoder.identity != identity:
            raise ArtifactError(
                f"the encoder {name} is not the one the detector was made with: export it again"
            )
        return BoundSIR(
            self,
            host,
            fingerprint,
            secret=stored_secret(state),
            transform=open_transform(encoder, artifact, arrays),
            labels=labels,
            artifact=artifact,
        )


class BoundSIR(TokenBound):
    """SIR or X-SIR for one key and one vocabulary."""

    tests = ("exact", "key")
    scheme: InvariantScheme
    width = 0

    def __init__(
        self,
        scheme: InvariantScheme,
        host: HostInfo,
        fingerprint: str,
        *,
        secret: bytes,
        transform: Transform,
        labels: I64,
        artifact: str,
    ) -> None:
        super().__init__(scheme, host, fingerprint, secret=secret)
        if len(labels) != host.vocab_size:
            raise VocabularyError(f"there are labels of {len(labels)} ids, {host.name} has {host.vocab_size}")
        self.transform = transform
        self.labels = labels
        self.artifact_identity = artifact
        number = int(labels.max(initial=0)) + 1
        words = self.hash.table("places", number).astype(np.uint64)
        places = ((words * np.uint64(transform.outputs)) >> np.uint64(32)).astype(np.int64)
        signs = np.where(self.hash.table("signs", number) >> np.uint32(31), 1, -1).astype(np.int8)
        self.places, self.flips = places[labels], signs[labels]

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts (batch, length)."""
        from dewmark.baselines._sir_session import ChunkSession

        return ChunkSession(self, prompt_ids, attention_mask)

    @functools.cached_property
    def spelling(self) -> Spelling:
        """The text of every token, for sessions that read along."""
        return Spelling(self.host.tokenizer, self.host.vocab_size)

    def pair_scores(self, contexts: I8 | I64, tokens: I64) -> F64:
        """Contexts as signs (N, K) and tokens (N,) to scores ±1, (N,)."""
        chosen = contexts[np.arange(len(tokens)), self.places[tokens]]
        return (chosen * self.flips[tokens]).astype(np.float64)

    def evidence(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> list[Evidence]:
        """The scores of texts' distinct (context, label) pairs; all contexts are encoded at once."""
        size, reach = self.scheme.chunk, self.scheme.reach
        read = []
        contexts: dict[str, int] = {}
        for text, prompt in zip(texts, prompts, strict=True):
            at = len(prompt.text)
            starts = [at + start for start, _ in text.offsets]
            words, chunks = chunks_before(prompt.text + text.text, starts, size=size)
            known = {
                count: contexts.setdefault(context_of(words, count, size=size, reach=reach), len(contexts))
                for count in np.unique(chunks[chunks > 0]).tolist()
            }
            read.append(np.array([known.get(count, -1) for count in chunks.tolist()], dtype=np.int64))
        signs = self.transform.signs(list(contexts))
        return [self._evidence(text, which, signs) for text, which in zip(texts, read, strict=True)]

    def _evidence(self, text: Tokenized, which: I64, signs: I8) -> Evidence:
        """Evidence of one text whose tokens have the contexts ``which`` (L,), −1 for none."""
        tokens = np.array(text.ids, dtype=np.int64)
        scored = np.append(self.markable, False)[np.minimum(tokens, len(self.markable))] & (which >= 0)
        rows = np.column_stack((which[scored], self.labels[tokens[scored]]))
        distinct, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        positions = np.full(len(tokens), -1, dtype=np.int64)
        positions[scored] = inverse
        mine = signs[distinct[:, 0]]
        scores = self.pair_scores(mine, tokens[scored][first])
        return Evidence(
            scores=scores,
            alignments=scores,
            weights=_weights(distinct[:, 0], distinct[:, 1], signs),
            positions=positions,
            T=distinct[:, 1],
            C=context_rows(mine),
            kernel=(1.0,),
        )

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``exact``: the law of the weighted sum over keys; ``key``: its normal approximation."""
        normal = key_test(evidence)
        if test == "key" or not 0.0 < evidence.weights.sum() <= _EXACT_LIMIT:
            return normal
        on_grid = dataclasses.replace(evidence, weights=np.maximum(np.rint(_GRID * evidence.weights), 1.0))
        return Statistic(normal.z, exact_tail(on_grid), normal.effective_length)

    def state(self) -> State:
        """The secret, the network and the labels. As secret as the key."""
        encoder = self.transform.encoder
        meta = {
            "encoder": encoder.name,
            "encoder_identity": encoder.identity,
            "artifact": self.artifact_identity,
        }
        return State(
            meta=meta, arrays={**super().state().arrays, **self.transform.arrays, "labels": self.labels}
        )


def _weights(contexts: I64, labels: I64, signs: I8) -> F64:
    """1 / Σ_j max(0, ρ_ij) over the pairs j of i's label: contexts and labels (N,) to (N,)."""
    rows, which = np.unique(contexts, return_inverse=True)
    mine = signs[rows].astype(np.float32)
    similar = np.maximum(mine @ mine.T / signs.shape[1], 0.0)
    weights = np.ones(len(labels))
    order = np.argsort(labels, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        if len(members) > 1:
            here = which[members]
            weights[members] = 1.0 / similar[np.ix_(here, here)].sum(axis=1)
    return weights
