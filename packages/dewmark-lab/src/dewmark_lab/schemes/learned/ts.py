"""TS (Huo et al. 2024): green lists whose share γ and bias δ depend on the preceding token.

Two small networks compute γ and δ from that token's input embedding e in the host:

    x = (e − ē) / rms(e − ē),    γ = 0.1 + 0.8 sigmoid(g(x)),    δ = softplus(d(x)),
    g, d:  x ↦ relu(x A + a) B + b,    A (d_T, 64), B (64, 1)

ē is the mean of the host's embedding table. Without a preceding token (at the start of a text, after a
special token) x = 0. The scheme uses the networks as a table of γ and δ, computed once per host and
artifact.

The test ``exact`` uses the distribution of the number of green pairs, a sum of independent Bernoulli(γ_i),
for up to `EXACT_LIMIT` pairs; beyond that, and for ``z``, the normal approximation is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F32, F64, I64
from dewmark.errors import ArtifactError
from dewmark.mark import Session
from dewmark.scheme import Needs, State
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.storage import load_bundle, save_bundle
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import HostInfo, Texts, Workspace
from dewmark_lab.artifacts import Artifact, load_artifact
from dewmark_lab.schemes.independent_sums import convolved, z_test
from dewmark_lab.schemes.token_schemes import PromptBatch, TokenBound, TokenScheme, TokenSession, secret_of

HIDDEN = 64
ARRAYS = tuple(f"{net}.{part}" for net in ("gamma", "delta") for part in ("A", "a", "B", "b"))
LEAST = 0.1  # γ stays within [0.1, 0.9]; z alone would drive it to 0, where a few lucky tokens decide
EXACT_LIMIT = 4096

_ROWS_AT_ONCE = 8192


@dataclass(frozen=True)
class TS(TokenScheme):
    """The token-specific green list."""

    name: ClassVar[str] = "ts"
    summary: ClassVar[str] = "green lists whose share and bias are learned for each token before"
    needs: ClassVar[Needs] = Needs(embeddings=True, artifact=True)

    artifact: str | None = None
    """Folder that ``dewmark train ts`` wrote; by default the packaged one for SmolLM2-135M."""
    strength: Annotated[float, "positive"] = 1.0
    """Factor applied to every learned δ."""

    def bind_secret(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundTS:
        artifact = load_artifact(self.artifact, scheme=self.name)
        artifact.require_host(host)
        parameters = token_parameters(artifact, host, workspace)
        name = artifact.identity
        return BoundTS(self, host, fingerprint, secret=secret, parameters=parameters, artifact=name)

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundTS:
        secret, name = secret_of(state), str(state.meta["artifact"])
        parameters = TokenParameters(np.array(state.arrays["gamma"]), np.array(state.arrays["delta"]))
        return BoundTS(self, host, fingerprint, secret=secret, parameters=parameters, artifact=name)


@dataclass(frozen=True)
class TokenParameters:
    """γ and δ after every id, and last after no token, both (vocab + 1,)."""

    gamma: F64
    delta: F64


class BoundTS(TokenBound):
    """TS for one key and one vocabulary. A pair scores (green − γ) / √γ(1−γ), with weight √γ(1−γ)."""

    tests = ("exact", "z")
    scheme: TS
    width = 1

    def __init__(
        self,
        scheme: TS,
        host: HostInfo,
        fingerprint: str,
        *,
        secret: bytes,
        parameters: TokenParameters,
        artifact: str,
    ) -> None:
        super().__init__(scheme, host, fingerprint, secret=secret)
        self.parameters = parameters
        self.artifact_identity = artifact
        self.limits = np.rint(parameters.gamma * 2.0**32).astype(np.uint32)
        self._deviation = np.sqrt(parameters.gamma * (1.0 - parameters.gamma))

    def start_session(self, prompts: PromptBatch) -> Session:
        return TokenSpecificSession(prompts, self)

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """Standardized scores (N,): √((1−γ)/γ) for green pairs, −√(γ/(1−γ)) for the others."""
        before = contexts[:, 0]
        green = self.pair_hash.words(contexts, tokens) < self.limits[before]
        return np.asarray((green - self.parameters.gamma[before]) / self._deviation[before])

    def position_weights(self, texts: Texts, prompts: Texts) -> Iterator[F64]:
        """√γ(1−γ) at each position (L,): with these weights, scores sum to G − Σγ."""
        for text, prompt in zip(texts, prompts, strict=True):
            yield self._deviation[self.windows(text, prompt)[:, 0]]

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """``exact``: the distribution of the number of green pairs; ``z``: its normal approximation."""
        normal = z_test(evidence)
        if test == "z" or not 0 < len(evidence) <= EXACT_LIMIT:
            return normal
        green = evidence.scores > 0.0
        shares = green - evidence.scores * evidence.weights
        pmf = convolved([np.array([1.0 - share, share]) for share in shares])
        return Statistic(normal.z, min(float(pmf[int(green.sum()) :].sum()), 1.0), normal.effective_length)

    def state(self) -> State:
        secret = super().state()
        arrays = {**secret.arrays, "gamma": self.parameters.gamma, "delta": self.parameters.delta}
        return State(meta={"artifact": self.artifact_identity}, arrays=arrays)


class TokenSpecificSession(TokenSession):
    """Adds δ of the preceding token to the logits of the tokens that are green after it."""

    def __init__(self, prompts: PromptBatch, bound: BoundTS) -> None:
        super().__init__(prompts, bound)
        self._limits = torch.from_numpy(bound.limits.astype(np.int64))
        self._delta = torch.from_numpy(bound.parameters.delta * bound.scheme.strength).float()

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        before = windows[:, 0].cpu()
        green = self._hash.words(windows) < self._limits[before].to(scores.device)[:, None]
        green.logical_and_(self._markable)
        delta = self._delta[before].to(scores.device, scores.dtype)
        return scores.addcmul(green.view(torch.uint8).to(scores.dtype), delta[:, None])


def token_parameters(artifact: Artifact, host: HostInfo, workspace: Workspace) -> TokenParameters:
    """Both networks applied to every token of a host; cached on disk."""
    name = f"1|{artifact.identity}|{host.identity}|{host.vocab_size}"
    path = workspace.cache / "ts" / hashlib.sha256(name.encode()).hexdigest()[:20]
    try:
        stored = load_bundle(path).arrays
        return TokenParameters(np.array(stored["gamma"]), np.array(stored["delta"]))
    except (ArtifactError, KeyError):
        found = _evaluate(artifact.arrays, inputs_of(host.embeddings()))
        arrays = {"gamma": found.gamma, "delta": found.delta}
        save_bundle(path, meta={"artifact": artifact.identity, "host": host.identity}, arrays=arrays)
        return found


def inputs_of(embeddings: F32) -> F32:
    """A host's embedding table (vocab, d_T) to the networks' inputs (vocab + 1, d_T); the last row is 0."""
    centred = embeddings - embeddings.mean(axis=0, dtype=np.float64).astype(np.float32)
    scale = np.sqrt(np.mean(centred**2, axis=1, keepdims=True))
    rows = np.divide(centred, scale, out=np.zeros_like(centred), where=scale > 1e-12)
    return np.concatenate((rows, np.zeros((1, rows.shape[1]), dtype=np.float32)))


def _evaluate(arrays: Mapping[str, NDArray[Any]], x: F32) -> TokenParameters:
    if set(arrays) != set(ARRAYS) or arrays["gamma.A"].shape[0] != x.shape[1]:
        raise ArtifactError("the artifact of ts does not fit this host's embeddings: train it again")
    logit, raw = (_network(arrays, net, x) for net in ("gamma", "delta"))
    gamma = LEAST + (1.0 - 2.0 * LEAST) / (1.0 + np.exp(-logit))
    return TokenParameters(gamma=gamma, delta=np.logaddexp(0.0, raw))


def _network(arrays: Mapping[str, NDArray[Any]], net: str, x: F32) -> F64:
    A, a, B, b = (arrays[f"{net}.{part}"].astype(np.float32) for part in ("A", "a", "B", "b"))
    blocks = [np.maximum(x[i : i + _ROWS_AT_ONCE] @ A + a, 0.0) @ B for i in range(0, len(x), _ROWS_AT_ONCE)]
    return np.concatenate(blocks)[:, 0].astype(np.float64) + float(b[0])
