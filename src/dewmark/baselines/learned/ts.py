"""TS: green lists whose share γ and bias δ two small networks choose after each token.

Huo et al. 2024 (token-specific watermarking). KGW with one token of context, but γ_t and δ_t come from that
token's input embedding in the host (`_ts_networks`), trained for detectability and meaning at once. A token
is green after another if the pair's keyed word lies below γ_t·2³², so one pair costs one hash.

Detection works γ_t out again from the text: all it keeps of the networks is γ of every id. Fix the text and
let the key be random: its distinct pairs are green independently, each with its own γ_i, and

    z = (G − Σγ_i) / √Σγ_i(1 − γ_i).

``exact`` is the law of G itself, a sum of independent Bernoulli(γ_i), built by convolution for up to
`EXACT_LIMIT` pairs; beyond, and for ``z``, the normal law stands in.

TS's two networks, which turn a token's input embedding into the γ and δ of the place after it.

    x = (e − ē) / rms(e − ē),    γ = 0.1 + 0.8 sigmoid(g(x)),    δ = softplus(d(x)),
    g, d:  x ↦ relu(x A + a) B + b,    A (d_T, 64), B (64, 1)

ē is the mean of the host's embedding table; centred and scaled, every host's tokens have coordinates of size
1 and one learning rate fits all. Of a place without a token before it (the start of a text, a special token)
x = 0. What a scheme uses is a table: both numbers of every id, made once per host and artifact.

Boundary: numpy only; `dewmark.lab.training.ts` trains the same networks.

How TS marks: after each token its own share of green tokens and its own bias.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F32, F64, I64
from dewmark.artifacts import Artifact, load_artifact
from dewmark.baselines.keyed_words import below
from dewmark.baselines.token_schemes import (
    TokenBound,
    TokenScheme,
    TokenSession,
    check,
    stored_secret,
    z_test,
)
from dewmark.errors import ArtifactError
from dewmark.scheme import Needs, Session, State
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.storage import load_bundle, save_bundle
from dewmark.text.windows import windows_of
from dewmark.workspace import HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

__all__ = [
    "ARRAYS",
    "HIDDEN",
    "LEAST",
    "TS",
    "Tables",
    "TokenSpecificSession",
    "bernoulli_law",
    "inputs",
    "token_tables",
]


HIDDEN = 64

ARRAYS = tuple(f"{net}.{part}" for net in ("gamma", "delta") for part in ("A", "a", "B", "b"))

LEAST = 0.1  # γ stays within [0.1, 0.9]; z alone would drive it to 0, where a few lucky tokens decide

_ROWS = 8192


@dataclass(frozen=True)
class Tables:
    """γ and δ after every id, and last after no token, both (vocab + 1,)."""

    gamma: F64
    delta: F64


def inputs(embeddings: F32) -> F32:
    """A host's embedding table (vocab, d_T) to what the networks see, (vocab + 1, d_T); the last row is 0."""
    centred = embeddings - embeddings.mean(axis=0, dtype=np.float64).astype(np.float32)
    scale = np.sqrt(np.mean(centred**2, axis=1, keepdims=True))
    rows = np.divide(centred, scale, out=np.zeros_like(centred), where=scale > 1e-12)
    return np.concatenate((rows, np.zeros((1, rows.shape[1]), dtype=np.float32)))


def token_tables(artifact: Artifact, host: HostInfo, workspace: Workspace) -> Tables:
    """Both networks on every token of a host; cached on the disk."""
    name = f"1|{artifact.identity}|{host.identity}|{host.vocab_size}"
    path = workspace.cache / "ts" / hashlib.sha256(name.encode()).hexdigest()[:20]
    try:
        stored = load_bundle(path).arrays
        return Tables(np.array(stored["gamma"]), np.array(stored["delta"]))
    except (ArtifactError, KeyError):
        tables = _evaluate(artifact.arrays, inputs(host.embeddings()))
        arrays = {"gamma": tables.gamma, "delta": tables.delta}
        save_bundle(path, meta={"artifact": artifact.identity, "host": host.identity}, arrays=arrays)
        return tables


def _evaluate(arrays: Mapping[str, NDArray[Any]], x: F32) -> Tables:
    if set(arrays) != set(ARRAYS) or arrays["gamma.A"].shape[0] != x.shape[1]:
        raise ArtifactError("the artifact of ts does not fit this host's embeddings: train it again")
    logit, raw = (_network(arrays, net, x) for net in ("gamma", "delta"))
    gamma = LEAST + (1.0 - 2.0 * LEAST) / (1.0 + np.exp(-logit))
    return Tables(gamma=gamma, delta=np.logaddexp(0.0, raw))


def _network(arrays: Mapping[str, NDArray[Any]], net: str, x: F32) -> F64:
    A, a, B, b = (arrays[f"{net}.{part}"].astype(np.float32) for part in ("A", "a", "B", "b"))
    blocks = [np.maximum(x[i : i + _ROWS] @ A + a, 0.0) @ B for i in range(0, len(x), _ROWS)]
    return np.concatenate(blocks)[:, 0].astype(np.float64) + float(b[0])


class TokenSpecificSession(TokenSession):
    """Adds δ of the token before to the logits of the tokens that are green after it."""

    def __init__(self, bound: BoundTS, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._vocabulary = bound.vocabulary
        self._limits = bound.limits
        self._delta = torch.from_numpy(bound.tables.delta * bound.scheme.strength).float()

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Windows (batch, 1) and logits (batch, vocab) to marked logits, same shape."""
        before = windows[:, 0].cpu()
        green = below(self._vocabulary.words(windows), self._limits[before.numpy(), None])
        green.logical_and_(self._markable)
        delta = self._delta[before].to(scores.device, scores.dtype)
        return scores.addcmul(green.view(torch.uint8).to(scores.dtype), delta[:, None])


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
