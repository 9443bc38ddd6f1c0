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

The law over keys of ATW's statistic, for a text that is fixed.

A token x has a keyed place π(x) among K, a keyed sign σ(x), and for openings another, τ(x); all are uniform
and independent. After a context with signs t ∈ {−1, 1}^K it scores σ(x) t[π(x)], in the opening τ(x). So
scores have mean 0, different tokens are independent, and the same token after two contexts has covariance ⟨t,
t'⟩/K. The sum over a text is Σ_x Y_x with independent

    Y_x = σ(x) h_x[π(x)] + τ(x) n_x,    h_x = Σ of t over its places,    n_x = its count in the opening,

whose law is a histogram of h_x over its K entries, made symmetric, with ±n_x convolved in: nothing about it
is approximate. The convolution of all tokens' laws is the law of the sum.

Which weights the places have is the test's own choice, as long as they depend on the text alone. A text that
says the same word ten times after contexts that hardly differ has one observation there, not ten: with
weights n / Var(Y_x) for a token of n places, z is largest if all places lean by the same amount.

ATW's semantic part: what was written so far becomes a vector, and a trained network turns that into signs.

The vector of a prefix is the mean of its tokens' vectors (the encoder applied to each token once ever,
whitened with statistics that the artifact carries), of unit length: no encoder runs while a text is written
or read. The network

    h ← relu(x W + b),    h ← h + relu(h W₁ + b₁),    h ← h + relu(h W₂ + b₂),    T = h V + c

has d_C inputs, 512 hidden units and K = 384 outputs; only their signs are used.

Boundary: numpy only, so marking and scoring get the same signs on every device; no key enters.
`dewmark.lab.training.atw` trains the same network.

How ATW marks: where the next token is open, likely tokens of the context's half of the vocabulary gain.

Where the measurement model is the host itself, the gate reads the logits that the session is given: no second
pass. Another model goes along with a KV cache of its own.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F16, F32, F64, I8, I64
from dewmark.artifacts import Artifact, load_artifact
from dewmark.baselines.green.entropy import EntropyScheme, WeighedBound
from dewmark.baselines.green.lists import entropy
from dewmark.baselines.token_schemes import TokenSession, check, stored_secret
from dewmark.core.whitening import Whitening, normalize_rows
from dewmark.encoders import load_encoder
from dewmark.encoders.contexts import token_vectors
from dewmark.errors import ArtifactError, ConfigError, VocabularyError
from dewmark.scheme import Needs, Session, State
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic, key_test
from dewmark.workspace import Follower, HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

__all__ = [
    "ATW",
    "HIDDEN",
    "LAYERS",
    "LONGEST",
    "OUTPUTS",
    "AdaptiveSession",
    "SemanticMap",
    "balanced",
    "context_rows",
    "exact_tail",
    "open_map",
    "prefix_vectors",
]


LONGEST = 1 << 14  # of a law: the work grows with its square

_LEVELS = 16


def context_rows(signs: NDArray[np.int8]) -> F32:
    """Signs (N, K), a row of zeros for the opening, to unit rows (N, K + 1) whose products are ⟨t, t'⟩/K.

    The opening is a context of its own: it has the last coordinate to itself.
    """
    rows = np.empty((len(signs), signs.shape[1] + 1), dtype=np.float32)
    rows[:, :-1] = signs / np.sqrt(np.float32(signs.shape[1]))
    rows[:, -1] = ~signs.any(axis=1)
    return rows


def balanced(evidence: Evidence) -> Evidence:
    """The same pairs, each weighing n / Var(Y_x) more, in up to `_LEVELS` whole levels."""
    if len(evidence) == 0:
        return evidence
    _, token = np.unique(evidence.T, return_inverse=True)
    sums = np.zeros((int(token.max()) + 1, evidence.C.shape[1]))
    np.add.at(sums, token, evidence.C * evidence.weights[:, None])
    n = np.bincount(token, weights=evidence.weights)
    best = n / np.maximum((sums**2).sum(axis=1), 0.5 * n)  # contexts that all but cancel earn no more
    levels = min(_LEVELS, max(LONGEST // evidence.length, 1))
    steps = np.maximum(np.rint(best * (levels / best.max())), 1.0)
    return dataclasses.replace(evidence, weights=evidence.weights * steps[token])


def exact_tail(evidence: Evidence) -> float:
    """P(Σ ≥ observed) over keys; ``evidence`` has tokens as T, `context_rows` as C and whole weights."""
    weights = np.rint(evidence.weights).astype(np.int64)
    _, token, occurrences = np.unique(evidence.T, return_inverse=True, return_counts=True)
    alone = occurrences[token] == 1  # one context: the law is two points, ±weight
    laws = [_two_points(int(weight)) for weight in weights[alone]]
    K = evidence.C.shape[1] - 1
    order = np.argsort(token, kind="stable")
    ends = np.cumsum(occurrences)
    for end, count in zip(ends[occurrences > 1], occurrences[occurrences > 1], strict=True):
        members = order[end - count : end]
        signs = np.rint(evidence.C[members, :K] * np.sqrt(K)).astype(np.int64)
        opening = int(weights[members] @ np.rint(evidence.C[members, K]).astype(np.int64))
        laws.append(np.convolve(_symmetric(weights[members] @ signs), _two_points(opening)))
    law = _convolved(laws)
    middle = len(law) // 2
    observed = int(np.rint(weights @ evidence.scores))
    return min(float(law[middle + observed :].sum()), 1.0)


def _two_points(size: int) -> F64:
    """The law of ±size with equal chances, on −size … size; of 0 if it is 0."""
    law = np.zeros(2 * size + 1)
    law[0] += 0.5
    law[-1] += 0.5
    return law


def _symmetric(values: I64) -> F64:
    """The law of a random entry of ``values`` with a random sign, on −most … most."""
    most = int(np.abs(values).max())
    counts = np.bincount(values + most, minlength=2 * most + 1)
    return np.asarray((counts + counts[::-1]) / (2.0 * len(values)))


def _convolved(laws: list[F64]) -> F64:
    """The law of a sum of independent numbers; terms are positive, so small tails keep their precision."""
    if len(laws) <= 1:
        return laws[0] if laws else np.ones(1)
    middle = len(laws) // 2
    return np.convolve(_convolved(laws[:middle]), _convolved(laws[middle:]))


HIDDEN, OUTPUTS = 512, 384

LAYERS = ("input", "first", "second", "output")

_ROWS = 4096


@dataclass(frozen=True, eq=False)
class SemanticMap:
    """``table`` (vocab, d_C) holds the tokens' vectors, ``layers`` the network's weights and biases."""

    table: F16
    layers: tuple[tuple[F32, F32], ...]
    artifact: str

    @classmethod
    def of(cls, table: F16, arrays: Mapping[str, NDArray[Any]], artifact: str, host: HostInfo) -> SemanticMap:
        """From arrays by name, as an artifact or a stored detector holds them."""
        try:
            layers = tuple(
                (np.asarray(arrays[f"{name}.W"], np.float32), np.asarray(arrays[f"{name}.b"], np.float32))
                for name in LAYERS
            )
        except KeyError as missing:
            raise ArtifactError(f"the semantic network lacks {missing}: train or export it again") from None
        if len(table) != host.vocab_size:
            raise VocabularyError(
                f"the semantic table has {len(table)} tokens, the vocabulary {host.vocab_size}"
            )
        return cls(table, layers, artifact)

    @property
    def outputs(self) -> int:
        """K."""
        return len(self.layers[-1][1])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What `of` takes."""
        named = zip(LAYERS, self.layers, strict=True)
        return {
            f"{name}.{part}": array for name, pair in named for part, array in zip("Wb", pair, strict=True)
        }

    def signs(self, prefixes: F32) -> I8:
        """Unit vectors of prefixes (N, d_C) to the signs of T, (N, K), each −1 or 1."""
        found = np.empty((len(prefixes), self.outputs), dtype=np.int8)
        for i in range(0, len(prefixes), _ROWS):
            (W, b), *residual, (V, c) = self.layers
            h = np.maximum(prefixes[i : i + _ROWS] * math.sqrt(prefixes.shape[1]) @ W + b, 0.0)
            for W, b in residual:
                h = h + np.maximum(h @ W + b, 0.0)
            found[i : i + _ROWS] = np.where(h @ V + c > 0.0, 1, -1)
        return found


def prefix_vectors(table: F16, ids: Sequence[int], cuts: Sequence[int]) -> F32:
    """Unit vectors (len(cuts), d_C) of the first c ids of a text, for each c of ``cuts``, which ascend."""
    known = np.array([i if i < len(table) else -1 for i in ids], dtype=np.int64)
    total = np.zeros(table.shape[1], dtype=np.float64)
    found = np.empty((len(cuts), table.shape[1]), dtype=np.float64)
    start = 0
    for row, cut in enumerate(cuts):
        chunk = known[start:cut]
        total += table[chunk[chunk >= 0]].astype(np.float64).sum(axis=0)
        found[row] = total
        start = cut
    return normalize_rows(found)


_OPEN: weakref.WeakValueDictionary[tuple[object, ...], SemanticMap] = weakref.WeakValueDictionary()


def open_map(artifact: Artifact, host: HostInfo, workspace: Workspace) -> SemanticMap:
    """The map of an artifact for a host's vocabulary; keys that are bound at the same time share it."""
    name = (artifact.identity, host.tokenizer.identity, host.vocab_size, str(workspace.cache))
    found = _OPEN.get(name)
    if found is None:
        encoder = load_encoder(artifact.encoder, progress=workspace.progress)
        artifact.require_encoder(encoder.identity, name=encoder.name)
        try:
            mean, matrix = (np.asarray(artifact.arrays[part], np.float32) for part in ("mean", "matrix"))
        except KeyError as missing:
            raise ArtifactError(f"the artifact {artifact.path} lacks {missing}: train it again") from None
        table = token_vectors(encoder, host, whitening=Whitening(mean, matrix), workspace=workspace)
        found = _OPEN[name] = SemanticMap.of(table, artifact.arrays, artifact.identity, host)
    return found


Follow = Callable[[torch.Tensor], torch.Tensor]


class AdaptiveSession(TokenSession):
    """Keeps each row's green tokens until its context is due again.

    ``follow`` gives the measurement model's logits after ids; None stands for the host's own.
    """

    def __init__(
        self,
        bound: BoundATW,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        follow: Callable[[torch.Tensor], Follow] | None,
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._bound = bound
        self._start = prompt_ids.shape[1]
        self._green: tuple[int, torch.Tensor] | None = None
        self._measure = None
        if follow is not None:
            at = torch.arange(self._start, device=prompt_ids.device)
            self._measure = follow((at >= self._padding.to(prompt_ids.device)).long())

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) to marked logits, same shape."""
        self._ids = input_ids
        return super().__call__(input_ids, scores)

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) plus δ · log(p V), where that is positive, on green tokens of open places."""
        scheme, written = self._bound.scheme, self._ids.shape[1] - self._start
        green = self._green_after(written).to(scores.device)
        if written < scheme.opening:
            strength = torch.full((len(scores), 1), scheme.opening_delta, device=scores.device)
        else:
            measured = scores if self._measure is None else self._measure(self._ids).to(scores.device)
            strength = scheme.delta * (entropy(measured) >= scheme.alpha).float().unsqueeze(1)
        log_p = scores.float().log_softmax(dim=-1)
        boost = (log_p + math.log(self._vocab_size)).clamp_(min=0.0).mul_(strength).mul_(green)
        return scores + boost.to(scores.dtype)

    def _green_after(self, written: int) -> torch.Tensor:
        """Which tokens are green after ``written`` tokens, (batch or 1, vocab) of 0 and 1, float32."""
        bound = self._bound
        cut = bound.cut(written)
        if self._green is None or self._green[0] != cut:
            if cut < 0:
                green = bound.opening_signs[None] > 0
            else:
                rows = self._ids[:, self._start : self._start + cut].tolist()
                vectors = np.concatenate([prefix_vectors(bound.semantics.table, row, [cut]) for row in rows])
                signs = bound.semantics.signs(vectors)
                green = signs[:, bound.places] * bound.flips > 0
            listed = torch.from_numpy(green).to(self._markable.device).logical_and_(self._markable)
            self._green = (cut, listed.view(torch.uint8).float())
        return self._green[1]


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
        if self.scheme.measure is None:
            return AdaptiveSession(self, prompt_ids, attention_mask, None)
        model = self._model()
        if not isinstance(model, Follower):
            raise ConfigError(f"{self.scheme.measure} cannot be run token by token here: leave measure out")
        return AdaptiveSession(self, prompt_ids, attention_mask, model.follow)

    def weigh(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits (n, vocab) to 1 where the entropy is at least α, else 0, (n,)."""
        from dewmark.baselines.green.lists import entropy

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
