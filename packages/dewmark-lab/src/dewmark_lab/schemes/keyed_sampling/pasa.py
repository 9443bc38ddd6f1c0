"""PASA (Ai and He 2026): the key picks the next token's semantic cluster, the host picks the token within it.

After a history of h clusters, the host's final distribution gives each cluster a mass Q_c. An auxiliary
variable ζ is drawn with keyed noise,

    P(ζ = c) = min(Q_c, α),   P(ζ = overflow) = Σ_c (Q_c − α)⁺,   ζ = argmax P(ζ) / −ln PRF(key, history, ζ),

and the token from the host's distribution within cluster ζ (after an overflow, from (Q_c − α)⁺ / Q_c · p).
Detection runs a language model over the text, draws ζ again from its masses Q̃ and checks whether f(x_t) =
ζ_t. At the first occurrences of histories the matches B_t are independent over keys, and B_t = 1 with
probability q_t = min(Q̃_f(x), α) exactly, whatever the model is.

- ``weighted``: Σ w_t B_t with w_t = logit r_t − logit q_t, r_t = (1 − slack) min(1, α / Q̃) + slack q_t.
  Weights are rounded to integer levels, and the distribution of the sum is computed by convolution.
- ``count``: the paper's score Σ B_t, with its exact distribution.
- ``race``: no model. The sum of −ln(1 − u) over distinct (history, cluster) pairs follows the Gamma
  distribution.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from scipy.special import logit, ndtri

from dewmark.arrays import F32, F64, I64
from dewmark.decoding import Decoding
from dewmark.encoders.token_tables import token_table
from dewmark.errors import ArtifactError, ConfigError, VocabularyError
from dewmark.mark import Session
from dewmark.sampling import warp
from dewmark.scheme import Needs, State
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic
from dewmark.storage import load_bundle, save_bundle
from dewmark.text.windows import ABSENT
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import HostInfo, Texts, Workspace
from dewmark_lab.schemes.distortion_free import DistortionFreeBound, ReweightingSession
from dewmark_lab.schemes.host_reading import (
    HostReadingBound,
    HostReadings,
    ReadingScheme,
    open_model,
    weighted_bernoulli_pmf,
)
from dewmark_lab.schemes.independent_sums import gamma_test, z_test
from dewmark_lab.schemes.pair_hash import combine, to_uniforms
from dewmark_lab.schemes.token_schemes import PromptBatch, TokenPairs, secret_of

_LOGIT_ROWS = 32  # of logits that are summarized at once
_LEVELS = 128
_TOTAL_LEVELS = 1 << 17  # most that the levels of a long text add up to

_FITTED = 16_384  # centres are fitted to the first ids, which tokenizers give to the most frequent pieces
_RANK_OFFSET, _RANK_POWER = 10.0, 0.5  # weights (rank + 10)^-0.5
_ROUNDS = 30
_DIGITS = 4
_EMBEDDING_ROWS = 4096  # that are compared with the centres at once


@dataclass(frozen=True)
class PASA(ReadingScheme):
    """Keyed clusters of meaning."""

    name: ClassVar[str] = "pasa"
    summary: ClassVar[str] = "the key picks the next token's semantic cluster, the model the token within"
    needs: ClassVar[Needs] = Needs(embeddings=True, final_distribution=True, host_at_detection=True)

    clusters: Annotated[int, "at least 2"] = 64
    """Number of clusters K that the vocabulary is divided into."""
    history: Annotated[int, "at least 1"] = 2
    """Number h of preceding clusters that key the choice."""
    alpha: Annotated[float, "in (0, 1]"] = 0.5
    """Largest probability α that the auxiliary variable gives a cluster; 1 means no limit."""
    slack: Annotated[float, "in (0, 1)"] = 0.3
    """Share of positions that the weighted test expects not to follow the mark any more."""
    surrogate: str | None = None
    """Model that detection runs, with the host's tokenizer; by default the host itself."""
    temperature: Annotated[float, "positive"] = 1.0
    """Temperature that detection assumes the text was generated with."""
    top_k: Annotated[int, "at least 0"] = 0
    """Top-k that detection assumes; 0 means none."""
    top_p: Annotated[float, "in (0, 1]"] = 1.0
    """Top-p that detection assumes; 1 means none."""

    def bind_secret(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundPASA:
        clusters = token_clusters(host, self.clusters, workspace)
        return BoundPASA(self, host, fingerprint, secret=secret, clusters=clusters, workspace=workspace)

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundPASA:
        clusters = np.asarray(state.arrays["clusters"], dtype=np.int64)
        return BoundPASA(
            self, host, fingerprint, secret=secret_of(state), clusters=clusters, workspace=workspace
        )


@dataclass(frozen=True)
class MatchEvidence(Evidence):
    """Matches B_t and their chances q_t, both (N,)."""

    of_pairs = ("matches", "chances")
    matches: F64 = dataclasses.field(default_factory=lambda: np.zeros(0))
    chances: F64 = dataclasses.field(default_factory=lambda: np.zeros(0))


class BoundPASA(DistortionFreeBound, HostReadingBound):
    """PASA for one key and one vocabulary."""

    tests = ("weighted", "count", "race")
    scheme: PASA

    def __init__(
        self,
        scheme: PASA,
        host: HostInfo,
        fingerprint: str,
        *,
        secret: bytes,
        clusters: I64,
        workspace: Workspace,
    ) -> None:
        super().__init__(scheme, host, fingerprint, secret=secret)
        self.width = scheme.history
        self.clusters = clusters
        self.readings = HostReadings(
            open_model(workspace, scheme.surrogate, scheme=scheme.name, instead="use test='race'")
        )

    @property
    def hashed(self) -> int:
        """The values of ζ: clusters, "no text" and the overflow."""
        return self.scheme.clusters + 2

    def start_session(self, prompts: PromptBatch) -> Session:
        return ClusterSession(prompts, self)

    def contexts_of(self, windows: I64, tokens: I64) -> I64:
        """The clusters of the h ids before each token, (N, h)."""
        return np.where(windows == ABSENT, ABSENT, self.clusters[np.maximum(windows, 0)])

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """−ln(1 − u) − 1 for histories (N, h) and tokens (N,)."""
        return -np.log1p(-self.pair_hash.uniforms(contexts, self.clusters[tokens])) - 1.0

    def evidence_of(self, texts: Texts, prompts: Texts, test: str | None) -> list[Evidence]:
        """The clusters' own numbers for ``race``, matches with ζ otherwise."""
        if test == "race":
            return super().evidence_of(texts, prompts, test)
        test = test or "weighted"
        found = zip(texts, prompts, self.readings(texts, prompts, self._masses), strict=True)
        return [
            self._matches(self.pairs_of(text, prompt, self.first_contexts(text, prompt)), masses, test)
            for text, prompt, masses in found
        ]

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        if test == "race" or not isinstance(evidence, MatchEvidence):
            return gamma_test(evidence)
        if not len(evidence):
            return NOTHING
        normal = z_test(evidence)
        weights = evidence.weights / np.sqrt(evidence.chances * (1.0 - evidence.chances))
        steps = min(_LEVELS, max(_TOTAL_LEVELS // len(evidence), 1))
        levels = np.maximum(np.rint(weights * (steps / weights.max())).astype(np.int64), 0)
        observed = int(levels @ evidence.matches.astype(np.int64))
        p_value = float(weighted_bernoulli_pmf(levels, evidence.chances)[observed:].sum())
        return Statistic(normal.z, min(p_value, 1.0), normal.effective_length)

    def state(self) -> State:
        secret = super().state()
        return State(meta=secret.meta, arrays={**secret.arrays, "clusters": self.clusters.astype(np.uint32)})

    def _matches(self, pairs: TokenPairs, masses: F32, test: str) -> Evidence:
        """Whether each pair's cluster is ζ, given the masses Q̃ (L, K + 1) at every position of the text."""
        alpha, slack = self.scheme.alpha, self.scheme.slack
        Q = masses[pairs.places]
        pmf = auxiliary_distribution(torch.from_numpy(Q), alpha).numpy().astype(np.float64)
        seeds = self.pair_hash.seeds(pairs.contexts)
        words = combine(seeds[:, :1], seeds[:, 1:], self.pair_hash.token_words[None])
        zeta = (pmf / -np.log(to_uniforms(words))).argmax(axis=1)
        clusters, rows = self.clusters[pairs.tokens], np.arange(len(pairs))
        q = pmf[rows, clusters] / pmf.sum(axis=1)
        r = (1.0 - slack) * np.minimum(1.0, alpha / np.maximum(Q[rows, clusters], 1e-30)) + slack * q
        kept = (q > 0.0) & (q < r)  # elsewhere a match says nothing
        matches, q, r = (zeta == clusters)[kept].astype(np.float64), q[kept], np.minimum(r[kept], 1.0)
        weights = np.ones(len(q)) if test == "count" else logit(r) - logit(q)
        spread = np.sqrt(q * (1.0 - q))
        numbered = np.full(len(pairs) + 1, -1, dtype=np.int64)
        numbered[:-1][kept] = np.arange(len(q))
        found = Evidence.independent((matches - q) / spread, weights * spread, numbered[pairs.positions])
        shown = ndtri(np.where(matches > 0.0, 1.0 - q / 2.0, (1.0 - q) / 2.0))  # the median of each outcome
        return MatchEvidence(**{**vars(found), "alignments": shown}, matches=matches, chances=q)

    def _masses(self, logits: torch.Tensor) -> F32:
        """The model's logits (L, vocab) to cluster masses Q̃ (L, K + 1)."""
        scheme = self.scheme
        if logits.shape[1] != self.host.vocab_size:
            raise VocabularyError(
                f"{scheme.surrogate or self.host.name} gives {logits.shape[1]} logits, {self.host.name} has "
                f"{self.host.vocab_size} ids: name a surrogate with the same vocabulary"
            )
        decoding = Decoding(temperature=scheme.temperature, top_k=scheme.top_k, top_p=scheme.top_p)
        forbidden = torch.from_numpy(~self.host.markable).to(logits.device)
        clusters = torch.from_numpy(self.clusters).to(logits.device)
        masses = np.zeros((len(logits), scheme.clusters + 1), dtype=np.float32)
        for start in range(0, len(logits), _LOGIT_ROWS):
            part = warp(logits[start : start + _LOGIT_ROWS].masked_fill(forbidden, -float("inf")), decoding)
            found = masses_of(part, clusters.expand(len(part), -1), scheme.clusters)
            masses[start : start + len(part)] = found.cpu().numpy()
        return masses


class ClusterSession(ReweightingSession):
    """Leaves the host one cluster to choose from, or the mass above α after an overflow.

    A row whose history of clusters occurred before in the text is left to the host.
    """

    def __init__(self, prompts: PromptBatch, bound: BoundPASA) -> None:
        super().__init__(prompts, bound)
        self._clusters = torch.from_numpy(bound.clusters)
        self._count, self._alpha = bound.scheme.clusters, bound.scheme.alpha

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._clusters.device != windows.device:
            self._clusters = self._clusters.to(windows.device)
        histories = self._clusters[windows.clamp(min=0)].masked_fill(windows == ABSENT, ABSENT)
        return super().mark(histories, scores)

    def reweight(
        self, contexts: torch.Tensor, logits: torch.Tensor, candidates: torch.Tensor | None
    ) -> torch.Tensor:
        """Histories (batch, h) and the candidates' logits (batch, m) to new logits, same shape."""
        table = self._clusters.to(logits.device)
        clusters = table.expand(len(logits), -1) if candidates is None else table[candidates]
        masses = masses_of(logits, clusters, self._count)
        pmf = auxiliary_distribution(masses, self._alpha)
        # an exponential race on probabilities: P(ζ) = pmf(ζ) over keys
        zeta = (pmf / self._hash.uniforms(contexts).log_().neg_()).argmax(dim=1, keepdim=True)
        chosen = torch.zeros_like(masses).scatter_(1, zeta.clamp(max=self._count), 1.0)
        left_over = (masses - self._alpha).clamp(min=0.0) / masses
        factors = torch.where(zeta > self._count, left_over.nan_to_num(0.0), chosen)
        return logits + factors.log().gather(1, clusters)


def masses_of(logits: torch.Tensor, clusters: torch.Tensor, count: int) -> torch.Tensor:
    """Logits of tokens and their clusters, both (batch, m), to masses Q (batch, count + 1), float32."""
    masses = logits.new_zeros((len(logits), count + 1))
    return masses.scatter_add_(1, clusters, logits.softmax(dim=1))


def auxiliary_distribution(masses: torch.Tensor, alpha: float) -> torch.Tensor:
    """P(ζ), (batch, n + 1), from masses Q (batch, n): min(Q, α), and last the overflow Σ (Q − α)⁺."""
    overflow = (masses - alpha).clamp(min=0.0).sum(dim=1, keepdim=True)
    return torch.cat((masses.clamp(max=alpha), overflow), dim=1)


def token_clusters(host: HostInfo, count: int, workspace: Workspace) -> I64:
    """The cluster of every id, (vocab_size,): 0 … count − 1 by meaning, ``count`` for ids without text.

    Spherical k-means on the host's whitened input embeddings, from a fixed seed; cached. No key is involved.
    """
    name = f"1|{host.identity}|{count}"
    path = workspace.cache / "clusters" / hashlib.sha256(name.encode()).hexdigest()[:20]
    try:
        return np.asarray(load_bundle(path).arrays["clusters"], dtype=np.int64)
    except (ArtifactError, KeyError):
        pass
    table = token_table(host, whiten=True, donor=None, workspace=workspace)
    markable = host.markable & np.any(table != 0.0, axis=1)
    most = min(int(markable.sum()), _FITTED)
    if count > most:
        raise ConfigError(f"clusters must not exceed {most} for {host.name}, got {count}")
    clusters = np.full(host.vocab_size, count, dtype=np.int64)
    clusters[markable] = _k_means(np.asarray(table[markable], dtype=np.float32), count, workspace)
    arrays = {"clusters": clusters.astype(np.uint32)}
    save_bundle(path, meta={"host": host.identity, "clusters": count}, arrays=arrays)
    return clusters


def _k_means(rows: F32, count: int, workspace: Workspace) -> I64:
    """The nearest of ``count`` mean directions for each unit row (n, d): (n,).

    Computed in float64 with rounded means, so that a machine's rounding does not decide where a token goes. A
    row's weight follows its token's frequency, estimated from its rank among the ids (Zipf's law, tempered).
    """
    fitted = rows[:_FITTED]
    weights = (np.arange(len(fitted)) + _RANK_OFFSET) ** -_RANK_POWER
    rng = np.random.default_rng(0)
    first = rng.choice(len(fitted), size=count, replace=False, p=weights / weights.sum())
    centres = fitted[first].astype(np.float64)
    nearest, likeness = _assign(fitted, centres)
    for turn in range(_ROUNDS):
        workspace.progress("clustering the vocabulary", turn, _ROUNDS)
        empty = np.flatnonzero(np.bincount(nearest, minlength=count) == 0)
        if len(empty):  # empty clusters restart at the rows that fit worst
            nearest[np.argsort(likeness, kind="stable")[: len(empty)]] = empty
        order = np.argsort(nearest, kind="stable")
        starts = np.minimum(np.searchsorted(nearest[order], np.arange(count)), len(order) - 1)
        sums = np.add.reduceat(fitted[order] * weights[order, None], starts, axis=0)
        centres = (sums / np.linalg.norm(sums, axis=1, keepdims=True)).round(_DIGITS)
        before, (nearest, likeness) = nearest, _assign(fitted, centres)
        if np.array_equal(nearest, before):
            break
    workspace.progress("clustering the vocabulary", _ROUNDS, _ROUNDS)
    return _assign(rows, centres)[0]


def _assign(rows: F32, centres: F64) -> tuple[I64, F64]:
    """For each row (n, d) the nearest centre of (count, d), and its inner product with it: (n,) both."""
    nearest, likeness = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows))
    for i in range(0, len(rows), _EMBEDDING_ROWS):
        products = rows[i : i + _EMBEDDING_ROWS].astype(np.float64) @ centres.T
        nearest[i : i + _EMBEDDING_ROWS] = products.argmax(axis=1)
        likeness[i : i + _EMBEDDING_ROWS] = products.max(axis=1)
    return nearest, likeness
