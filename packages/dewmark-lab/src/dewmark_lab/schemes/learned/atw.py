"""ATW (Liu and Bu 2024): scales the logits of a half of the vocabulary that the text's meaning picks.

At a position whose entropy under the host is at least α, the meaning of the text so far goes through a
trained network T to K signs; each token has a keyed place among them, and is green if its sign, times a
keyed sign of its own, is positive. The first M tokens have too little context: there every position is
marked, with a fixed secret half. docs/schemes/atw.md has the equations and what differs from the authors'
code.

The meaning of a prefix is *composed*, the normalized mean of its tokens' whitened vectors, so that no
encoder runs while a text is written or read; or it is *encoded*: the encoder runs on the text of the prefix.
Which of the two it is belongs to the artifact. The network

    h ← relu(x W + b),    h ← h + relu(h W₁ + b₁),    h ← h + relu(h W₂ + b₂),    T = h V + c

runs in numpy, so that marking and detection get the same signs on every device.

The test ``weighted`` gives the positions weights that depend on the text alone: a text that repeats a word
ten times after nearly equal contexts has one observation there. With weights n / Var(Y_x) for a token with n
positions, z is largest if all positions lean by the same amount.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F16, F32, F64, I8, I64
from dewmark.core.whitening import Whitening, normalize_rows
from dewmark.decoding import Decoding
from dewmark.encoders.base import Encoder
from dewmark.encoders.contexts import token_vectors
from dewmark.errors import ArtifactError, VocabularyError
from dewmark.mark import Session
from dewmark.sampling import check_logits, filter_logits
from dewmark.scheme import Needs, State
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic, key_test
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import HostInfo, Texts, Tokenized, Tokenizer, Workspace
from dewmark_lab.artifacts import Artifact, load_artifact, named_encoder, stored_encoder
from dewmark_lab.schemes.host_reading import HostReadings, ReadingScheme, WeightedBound, entropy, open_model
from dewmark_lab.schemes.learned.keyed_signs import (
    LAYER_ARRAYS,
    Layers,
    apply_layers,
    context_rows,
    exact_tail,
    keyed_places,
    keyed_signs,
    read_layers,
)
from dewmark_lab.schemes.token_schemes import PromptBatch, secret_of

HIDDEN, OUTPUTS = 512, 384
LONGEST = 1 << 14  # sum of weights with an exact distribution, whose cost grows with its square

_ROWS_AT_ONCE = 4096
_ENCODED = 64  # prefixes that are encoded at once
_LEVELS = 16

_open_maps: weakref.WeakValueDictionary[tuple[object, ...], SemanticMap] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class ATW(ReadingScheme):
    """The adaptive watermark."""

    name: ClassVar[str] = "atw"
    summary: ClassVar[str] = "entropy-gated scaling of a half of the vocabulary that the text's meaning picks"
    needs: ClassVar[Needs] = Needs(encoder=True, artifact=True, host_at_detection=True)

    artifact: str | None = None
    """Folder that ``dewmark train atw`` wrote; by default the packaged one for SmolLM2-135M."""
    alpha: Annotated[float, "at least 0"] = 3.0
    """Entropy α, in nats, from which a position is marked and counted."""
    delta: Annotated[float, "positive"] = 0.35
    """Gain δ: the logits of green tokens are multiplied by 1 + δ."""
    opening: Annotated[int, "at least 0"] = 10
    """M: the first M + 1 tokens are marked with the fixed secret half, whatever their entropy."""
    opening_delta: Annotated[float, "at least 0"] = 0.2
    """Gain δ₀ in the opening."""
    refresh: Annotated[int, "at least 1"] = 10
    """Number of tokens after which the meaning of the text so far is computed anew."""
    repetition_penalty: Annotated[float, "at least 1"] = 1.1
    """Divisor of the positive logits of tokens that the text already has, and factor of the negative ones."""
    top_k: int = 50
    """The likeliest tokens that are kept after marking; 0 keeps all."""
    top_p: float = 0.9
    """Probability of the likeliest tokens that are kept after marking; 1 keeps all."""

    def validate(self) -> None:
        self.filters  # noqa: B018 - checks them

    @property
    def filters(self) -> Decoding:
        """What is kept after marking."""
        return Decoding(top_k=self.top_k, top_p=self.top_p)

    def context_length(self, written: int) -> int:
        """How many of ``written`` tokens make up the context; −1 in the opening."""
        return -1 if written <= self.opening else written - written % self.refresh

    def bind_secret(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundATW:
        artifact = load_artifact(self.artifact, scheme=self.name)
        artifact.require_tokenizer(host)
        semantics = open_map(artifact, host, workspace)
        return BoundATW(self, host, fingerprint, secret=secret, semantics=semantics, workspace=workspace)

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundATW:
        secret, artifact = secret_of(state), str(state.meta["artifact"])
        encoded = None
        if "prefix_mean" in state.arrays:
            encoder = stored_encoder(state, workspace)
            encoded = EncodedPrefixes(encoder, state.arrays["prefix_mean"], host.tokenizer)
        semantics = SemanticMap.of(state.arrays["context_rows"], state.arrays, artifact, host, encoded)
        return BoundATW(self, host, fingerprint, secret=secret, semantics=semantics, workspace=workspace)


class BoundATW(WeightedBound):
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
        self.readings = HostReadings(open_model(workspace, None, scheme=scheme.name))
        self.artifact_identity = semantics.artifact
        self.semantics = semantics
        self.places = keyed_places(self.pair_hash, host.vocab_size, semantics.outputs)
        self.flips = keyed_signs(self.pair_hash, "signs", host.vocab_size)
        self.opening = keyed_signs(self.pair_hash, "opening", host.vocab_size)

    def start_session(self, prompts: PromptBatch) -> Session:
        return AdaptiveSession(prompts, self)

    def weigh(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits (n, vocab) to 1 where the entropy is at least α, else 0: (n,)."""
        return (entropy(logits) >= self.scheme.alpha).float()

    def pair_scores(self, contexts: I8 | I64, tokens: I64) -> F64:
        """Contexts as signs (N, K), zeros for the opening, and tokens (N,) to scores ±1, (N,)."""
        signs: I8 | I64 = contexts[np.arange(len(tokens)), self.places[tokens]]
        return np.where(signs == 0, self.opening[tokens], signs * self.flips[tokens]).astype(np.float64)

    def green(self, prefixes: Sequence[Sequence[int]], length: int) -> NDArray[np.bool_]:
        """Which tokens are green after the first ``length`` ids of each row; in the opening (1, vocab)."""
        if length < 0:
            return self.opening[None] > 0
        vectors = self.semantics.rows([row[:length] for row in prefixes])
        return self.semantics.signs(vectors)[:, self.places] * self.flips > 0

    def _read(self, texts: Texts, prompts: Texts) -> list[Evidence]:
        """The scores of the texts' distinct (context, token) pairs, weighted by how often each occurs."""
        gates = self.position_weights(texts, prompts)
        return [self._evidence(text, gate) for text, gate in zip(texts, gates, strict=True)]

    def _evidence(self, text: Tokenized, gate: F64 | None) -> Evidence:
        semantics = self.semantics
        tokens = np.array(text.ids, dtype=np.int64)
        scored = self.scorable(tokens)
        lengths = np.array([self.scheme.context_length(i) for i in range(len(tokens))], dtype=np.int64)
        if gate is not None:
            scored &= (gate > 0.0) | (lengths < 0)
        rows = np.column_stack((lengths[scored], tokens[scored]))
        distinct, inverse, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
        positions = np.full(len(tokens), -1, dtype=np.int64)
        positions[scored] = inverse
        contexts, which = np.unique(distinct[:, 0], return_inverse=True)
        signs = np.zeros((len(contexts), semantics.outputs), dtype=np.int8)
        later = contexts[contexts >= 0].tolist()
        vectors = semantics.prefixes(text.ids, later)
        signs[len(contexts) - len(later) :] = semantics.signs(vectors)
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

    def evidence_of(self, texts: Texts, prompts: Texts, test: str | None) -> list[Evidence]:
        """The same pairs for all tests; ``weighted`` gives them other weights."""
        found = self._read(texts, prompts)
        return [balanced(evidence) for evidence in found] if test == "weighted" else found

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """``weighted``, ``count``: the weighted sum's distribution over keys; ``key``: its normal limit.

        The first two differ in the weights of the evidence. Beyond `LONGEST` both use the normal
        approximation.
        """
        normal = key_test(evidence)
        if test == "key" or not 0 < evidence.length <= LONGEST:
            return normal
        return Statistic(normal.z, exact_tail(evidence), normal.effective_length)

    def state(self) -> State:
        semantics = self.semantics
        arrays = {**super().state().arrays, **semantics.arrays(), "context_rows": semantics.table}
        meta = {"artifact": self.artifact_identity}
        if semantics.encoded is not None:
            meta |= named_encoder(semantics.encoded.encoder)
            arrays["prefix_mean"] = semantics.encoded.mean
        return State(meta=meta, arrays=arrays)


class AdaptiveSession(Session):
    """Keeps each row's green tokens until its context changes."""

    def __init__(self, prompts: PromptBatch, bound: BoundATW) -> None:
        self._bound, self._scheme = bound, bound.scheme
        self._vocab_size = prompts.host.vocab_size
        self._markable = torch.from_numpy(prompts.host.markable)
        self._start = prompts.ids.shape[1]
        self._green: tuple[int, torch.Tensor] | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab), those of green tokens multiplied by 1 + δ at uncertain positions."""
        check_logits(scores, self._vocab_size)
        scheme, written = self._scheme, input_ids.shape[1] - self._start
        green = self._green_after(input_ids, written, scores.device)
        if written <= scheme.opening:
            gain = torch.full((len(scores), 1), scheme.opening_delta, device=scores.device)
        else:
            gain = scheme.delta * (entropy(scores) >= scheme.alpha).float().unsqueeze(1)
        logits = penalized(scores.float(), input_ids[:, self._start :], scheme.repetition_penalty)
        logits = torch.where(torch.isfinite(logits), logits * (1.0 + gain * green), logits)
        return filter_logits(logits, scheme.filters).to(scores.dtype)

    def _green_after(self, input_ids: torch.Tensor, written: int, device: torch.device) -> torch.Tensor:
        """Which tokens are green after ``written`` tokens, (batch or 1, vocab) of 0 and 1, float32."""
        length = self._scheme.context_length(written)
        if self._green is None or self._green[0] != length:
            rows = input_ids[:, self._start : self._start + length].tolist() if length >= 0 else []
            listed = torch.from_numpy(self._bound.green(rows, length)).logical_and_(self._markable)
            self._green = (length, listed.view(torch.uint8).float().to(device))
        return self._green[1]


def penalized(scores: torch.Tensor, written: torch.Tensor, penalty: float) -> torch.Tensor:
    """Logits (batch, vocab) with those of written ids (batch, n) divided, or multiplied if negative."""
    if penalty == 1.0 or written.shape[1] == 0:
        return scores
    written = written.to(scores.device)
    seen = scores.gather(1, written)
    return scores.scatter(1, written, torch.where(seen < 0.0, seen * penalty, seen / penalty))


def balanced(evidence: Evidence) -> Evidence:
    """The same pairs, with weights multiplied by n / Var(Y_x), rounded to `_LEVELS` integers or fewer."""
    if len(evidence) == 0:
        return evidence
    _, token = np.unique(evidence.T, return_inverse=True)
    sums = np.zeros((int(token.max()) + 1, evidence.C.shape[1]))
    np.add.at(sums, token, evidence.C * evidence.weights[:, None])
    n = np.bincount(token, weights=evidence.weights)
    best = n / np.maximum((sums**2).sum(axis=1), 0.5 * n)  # contexts that nearly cancel earn no more
    levels = min(_LEVELS, max(LONGEST // evidence.length, 1))
    steps = np.maximum(np.rint(best * (levels / best.max())), 1.0)
    return dataclasses.replace(evidence, weights=evidence.weights * steps[token])


@dataclass(frozen=True, eq=False)
class EncodedPrefixes:
    """Runs an encoder on prefixes; ``mean`` (d_C,) is that of its unit vectors in training."""

    encoder: Encoder
    mean: F32
    tokenizer: Tokenizer

    def __call__(self, prefixes: Sequence[Sequence[int]]) -> F32:
        """Prefixes as ids to centred unit vectors (N, d_C)."""
        if not prefixes:
            return np.zeros((0, self.encoder.dim), dtype=np.float32)
        texts = self.tokenizer.decode([list(ids) for ids in prefixes])
        parts = [self.encoder.encode(texts[i : i + _ENCODED]) for i in range(0, len(texts), _ENCODED)]
        return normalize_rows(normalize_rows(np.concatenate(parts)) - self.mean)


@dataclass(frozen=True, eq=False)
class SemanticMap:
    """``layers`` are the network's weights and biases; ``table`` (vocab, d_C) the vectors of the tokens.

    If prefixes are ``encoded``, the table is empty.
    """

    table: F16
    layers: Layers
    artifact: str
    encoded: EncodedPrefixes | None = None

    @classmethod
    def of(
        cls,
        table: F16,
        arrays: Mapping[str, NDArray[Any]],
        artifact: str,
        host: HostInfo,
        encoded: EncodedPrefixes | None = None,
    ) -> SemanticMap:
        """From the named arrays of an artifact or a stored detector."""
        layers = read_layers(arrays, np.float32)
        if encoded is None and len(table) != host.vocab_size:
            raise VocabularyError(f"the table has {len(table)} tokens, the vocabulary {host.vocab_size}")
        return cls(table, layers, artifact, encoded)

    @property
    def outputs(self) -> int:
        """K."""
        return len(self.layers[-1][1])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The network's arrays by name, as `of` takes them."""
        flat = (array for layer in self.layers for array in layer)
        return dict(zip(LAYER_ARRAYS, flat, strict=True))

    def prefixes(self, ids: Sequence[int], lengths: Sequence[int]) -> F32:
        """Unit vectors (n, d_C) of the first ids of a text, for each of n ascending lengths."""
        if self.encoded is None:
            return prefix_vectors(self.table, ids, lengths)
        return self.encoded([ids[:length] for length in lengths])

    def rows(self, prefixes: Sequence[Sequence[int]]) -> F32:
        """Unit vectors (N, d_C) of prefixes of different texts."""
        if self.encoded is None:
            return np.concatenate([prefix_vectors(self.table, ids, [len(ids)]) for ids in prefixes])
        return self.encoded(prefixes)

    def signs(self, prefixes: F32) -> I8:
        """Unit vectors of prefixes (N, d_C) to the signs of T, (N, K), each −1 or 1."""
        found = np.empty((len(prefixes), self.outputs), dtype=np.int8)
        for i in range(0, len(prefixes), _ROWS_AT_ONCE):
            scaled = prefixes[i : i + _ROWS_AT_ONCE] * math.sqrt(prefixes.shape[1])
            found[i : i + _ROWS_AT_ONCE] = np.where(
                apply_layers(self.layers, scaled, rectified=True) > 0.0, 1, -1
            )
        return found


def prefix_vectors(table: F16, ids: Sequence[int], lengths: Sequence[int]) -> F32:
    """Unit vectors (n, d_C) of the first ids of a text, for each of n ascending lengths."""
    known = np.array([i if i < len(table) else -1 for i in ids], dtype=np.int64)
    total = np.zeros(table.shape[1], dtype=np.float64)
    found = np.empty((len(lengths), table.shape[1]), dtype=np.float64)
    start = 0
    for row, length in enumerate(lengths):
        chunk = known[start:length]
        total += table[chunk[chunk >= 0]].astype(np.float64).sum(axis=0)
        found[row] = total
        start = length
    return normalize_rows(found)


def open_map(artifact: Artifact, host: HostInfo, workspace: Workspace) -> SemanticMap:
    """The map of an artifact for a host's vocabulary; keys that are bound at the same time share it."""
    name = (artifact.identity, host.tokenizer.identity, host.vocab_size, str(workspace.cache))
    found = _open_maps.get(name)
    if found is None:
        encoder = artifact.open_encoder(workspace)
        encoded = None
        try:
            mean = np.asarray(artifact.arrays["mean"], np.float32)
            if artifact.card["parameters"].get("contexts") == "encoded":
                encoded = EncodedPrefixes(encoder, mean, host.tokenizer)
                table = np.zeros((0, encoder.dim), dtype=np.float16)
            else:
                whitening = Whitening(mean, np.asarray(artifact.arrays["matrix"], np.float32))
                table = token_vectors(encoder, host, whitening=whitening, workspace=workspace)
        except KeyError as missing:
            raise ArtifactError(f"the artifact {artifact.path} lacks {missing}: train it again") from None
        found = SemanticMap.of(table, artifact.arrays, artifact.identity, host, encoded)
        _open_maps[name] = found
    return found
