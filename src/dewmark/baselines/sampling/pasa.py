"""PASA (Ai and He 2026): the key picks the next token's cluster of meaning, the host the token within it.

Tokens fall into K clusters f(x) by their embeddings. After a history of h clusters the host's final
distribution gives each cluster a mass Q_c. An auxiliary variable ζ is drawn with keyed noise,

    P(ζ = c) = min(Q_c, α),   P(ζ = overflow) = Σ_c (Q_c − α)⁺,   ζ = argmax P(ζ) / −ln PRF(key, history, ζ),

and the token from the host's distribution within cluster ζ (after an overflow, from (Q_c − α)⁺ / Q_c · p).
Over keys the token follows the host exactly; a history that comes back is left to the host.

Detection runs a language model once over the text (the host, or a surrogate with its tokenizer), draws ζ
again from its masses Q̃ and looks whether f(x_t) = ζ_t. Fix the text and let the key be random: at the first
occurrences of histories the matches B_t are independent, and B_t = 1 with probability q_t = min(Q̃_f(x), α)
exactly, whatever the model is: a wrong model or prompt costs strength, never validity.

- ``weighted``: Σ w_t B_t with w_t = logit r_t − logit q_t, the likelihood ratio if a share 1 − ``slack`` of
  the places still follows the mark: r_t = (1 − slack) min(1, α / Q̃) + slack q_t. Weights are rounded to whole
  levels (any weights are valid), and the law of the sum is computed by convolution.
- ``count``: the paper's score Σ B_t, with its exact law.
- ``race``: no model. −ln(1 − u) of the distinct (history, cluster) pairs, whose sum follows the Gamma law.

Boundary: scoring; `_pasa` has the public parts, `_pasa_session` marks.

What PASA needs beside keys: clusters of tokens, their masses, and the law of a weighted count of matches.

Boundary: public quantities only; no key enters here.

Marking with PASA: a keyed race picks the cluster of the next token, the host picks the token within.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from scipy.special import logit, ndtri

from dewmark.arrays import F32, F64, I64
from dewmark.baselines.keyed_words import to_uniforms as tensor_uniforms
from dewmark.baselines.reweight.slots import ReweightBound, ReweightSession
from dewmark.baselines.token_schemes import (
    HostReadingScheme,
    Pairs,
    Place,
    check,
    gamma_test,
    markable_ids,
    stored_secret,
    z_test,
)
from dewmark.core.prf import PairHash, combine, to_uniforms
from dewmark.decoding import Decoding
from dewmark.encoders.token_tables import token_table
from dewmark.errors import ArtifactError, ConfigError, VocabularyError
from dewmark.scheme import Needs, Session, State
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic
from dewmark.storage import load_bundle, save_bundle
from dewmark.text.windows import ABSENT, windows_of
from dewmark.workspace import HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    import torch

__all__ = [
    "PASA",
    "BoundPASA",
    "ClusterSession",
    "auxiliary",
    "bernoulli_law",
    "cluster_masses",
    "token_clusters",
]


_FITTED = 16_384  # centres are fitted to the first ids, which tokenizers give to the most frequent pieces

_OFFSET, _TEMPER = 10.0, 0.5  # weights (rank + 10)^-0.5

_ROUNDS = 30

_DIGITS = 4

_ROWS_AT_ONCE = 4096


def token_clusters(host: HostInfo, count: int, workspace: Workspace) -> I64:
    """The cluster of every id, (vocab_size,): 0 … count − 1 by meaning, ``count`` for ids without text.

    Spherical k-means of the host's whitened input embeddings, from a fixed seed; cached. No key enters.
    """
    name = f"1|{host.identity}|{count}"
    path = workspace.cache / "clusters" / hashlib.sha256(name.encode()).hexdigest()[:20]
    try:
        return np.asarray(load_bundle(path).arrays["clusters"], dtype=np.int64)
    except (ArtifactError, KeyError):
        pass
    table = token_table(host, whiten=True, donor=None, workspace=workspace)
    markable = markable_ids(host) & np.any(table != 0.0, axis=1)
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

    In float64 and with rounded means, so that no machine's own rounding decides where a token goes. A row
    weighs as much as its token is frequent, by its place among the ids (Zipf's law, tempered).
    """
    fitted = rows[:_FITTED]
    weights = (np.arange(len(fitted)) + _OFFSET) ** -_TEMPER
    rng = np.random.default_rng(0)
    first = rng.choice(len(fitted), size=count, replace=False, p=weights / weights.sum())
    centres = fitted[first].astype(np.float64)
    nearest, likeness = _assign(fitted, centres)
    for turn in range(_ROUNDS):
        workspace.progress("clustering the vocabulary", turn, _ROUNDS)
        empty = np.flatnonzero(np.bincount(nearest, minlength=count) == 0)
        if len(empty):  # they start again where rows fit worst
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
    """For each row (n, d) which centre (count, d) is nearest, and its product with it: (n,) both."""
    nearest, likeness = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows))
    for i in range(0, len(rows), _ROWS_AT_ONCE):
        products = rows[i : i + _ROWS_AT_ONCE].astype(np.float64) @ centres.T
        nearest[i : i + _ROWS_AT_ONCE] = products.argmax(axis=1)
        likeness[i : i + _ROWS_AT_ONCE] = products.max(axis=1)
    return nearest, likeness


def cluster_masses(logits: torch.Tensor, clusters: torch.Tensor, count: int) -> torch.Tensor:
    """Logits (batch, m) of tokens whose clusters are (batch, m) to masses Q (batch, count + 1), float32."""
    masses = logits.new_zeros((len(logits), count + 1))
    return masses.scatter_add_(1, clusters, logits.softmax(dim=1))


def auxiliary(masses: torch.Tensor, alpha: float) -> torch.Tensor:
    """The law of ζ, (batch, n + 1), from masses Q (batch, n): min(Q, α), and last the overflow Σ (Q − α)⁺."""
    import torch

    overflow = (masses - alpha).clamp(min=0.0).sum(dim=1, keepdim=True)
    return torch.cat((masses.clamp(max=alpha), overflow), dim=1)


def bernoulli_law(levels: I64, chances: F64) -> F64:
    """The probabilities of Σ n_t B_t = 0, 1, …, Σ n_t: whole n_t (N,), independent B_t ~ Bernoulli(q_t)."""
    law = np.zeros(int(levels.sum()) + 1)
    law[0], top = 1.0, 0
    for n, q in zip(levels.tolist(), chances.tolist(), strict=True):
        raised = q * law[: top + 1]
        law[: top + 1] *= 1.0 - q
        law[n : n + top + 1] += raised
        top += n
    return law


class ClusterSession(ReweightSession):
    """Leaves the host one cluster to choose from, or what the cut at α left over.

    A row whose history of clusters occurred before in the text is left to the host.
    """

    def __init__(
        self, bound: BoundPASA, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._alpha = bound.scheme.alpha
        self._count = bound.scheme.clusters
        self._clusters = torch.from_numpy(bound.clusters)

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Windows (batch, h) of ids and logits (batch, vocab) to marked logits, same shape."""
        if self._clusters.device != windows.device:
            self._clusters = self._clusters.to(windows.device)
        histories = self._clusters[windows.clamp(min=0)].masked_fill(windows == ABSENT, ABSENT)
        return super().mark(histories, scores)

    def reweight(
        self, contexts: torch.Tensor, logits: torch.Tensor, candidates: torch.Tensor | None
    ) -> torch.Tensor:
        """Histories (batch, h) and logits (batch, m) of the candidates to new logits, same shape."""
        table = self._clusters.to(logits.device)
        clusters = table.expand(len(logits), -1) if candidates is None else table[candidates]
        masses = cluster_masses(logits, clusters, self._count)
        law = auxiliary(masses, self._alpha)
        # the race of `sampling`, on probabilities: P(ζ) = law(ζ) over keys
        zeta = (law / tensor_uniforms(self._hash.words(contexts)).log_().neg_()).argmax(dim=1, keepdim=True)
        chosen = torch.zeros_like(masses).scatter_(1, zeta.clamp(max=self._count), 1.0)
        left_over = (masses - self._alpha).clamp(min=0.0) / masses
        factors = torch.where(zeta > self._count, left_over.nan_to_num(0.0), chosen)
        return logits + factors.log().gather(1, clusters)


_ROWS_AT_ONCE_PASA = 32

_LEVELS = 128

_TOTAL = 1 << 17  # how far the levels of a long text may add up


@dataclass(frozen=True)
class PASA(HostReadingScheme):
    """Keyed clusters of meaning."""

    name: ClassVar[str] = "pasa"
    summary: ClassVar[str] = "the key picks the next token's semantic cluster, the model the token within"
    needs: ClassVar[Needs] = Needs(embeddings=True, final=True, host_at_detection=True)

    clusters: int = 64
    """How many clusters K the vocabulary falls into."""
    history: int = 2
    """How many clusters before a token, h, decide its keyed noise."""
    alpha: float = 0.5
    """Largest probability α that the auxiliary variable gives a cluster; 1 cuts nothing."""
    slack: float = 0.3
    """Share of places that the weighted test expects to follow the mark no more."""
    surrogate: str | None = None
    """The model that detection runs, with the host's tokenizer; by default the host itself."""
    temperature: float = 1.0
    """The temperature that detection assumes the text was written at."""
    top_k: int = 0
    """The top-k that detection assumes; 0 is none."""
    top_p: float = 1.0
    """The top-p that detection assumes; 1 is none."""

    def validate(self) -> None:
        """Refuse values out of range."""
        check(
            (self.clusters >= 2, "clusters", "be at least 2", self.clusters),
            (self.history >= 1, "history", "be at least 1", self.history),
            (0.0 < self.alpha <= 1.0, "alpha", "lie in (0, 1]", self.alpha),
            (0.0 < self.slack < 1.0, "slack", "lie in (0, 1)", self.slack),
            (self.temperature > 0.0, "temperature", "be positive", self.temperature),
            (self.top_k >= 0, "top_k", "be at least 0", self.top_k),
            (0.0 < self.top_p <= 1.0, "top_p", "lie in (0, 1]", self.top_p),
        )

    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundPASA:
        """The scheme with its secret and a host's vocabulary, clustered."""
        clusters = token_clusters(host, self.clusters, workspace)
        return BoundPASA(self, host, fingerprint, secret=secret, clusters=clusters, workspace=workspace)

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundPASA:
        """Take secret and clusters from a stored detector."""
        try:
            clusters = np.asarray(state.arrays["clusters"], dtype=np.int64)
        except KeyError as missing:
            raise ArtifactError(f"the stored detector lacks {missing}; export it again") from None
        return BoundPASA(
            self, host, fingerprint, secret=stored_secret(state), clusters=clusters, workspace=workspace
        )


@dataclass(frozen=True)
class MatchEvidence(Evidence):
    """Matches B_t and their chances q_t, both (N,)."""

    matches: F64 = dataclasses.field(default_factory=lambda: np.zeros(0))
    chances: F64 = dataclasses.field(default_factory=lambda: np.zeros(0))


class BoundPASA(ReweightBound):
    """PASA for one key and one vocabulary.

    ``known`` holds cluster masses that need no second look at the text; by default nothing is kept.
    """

    tests = ("weighted", "count", "race")
    scheme: PASA
    known: dict[Place, F32] | None = None

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
        super().__init__(scheme, host, fingerprint, secret=secret, prefix=scheme.history, repeats="skip")
        self.clusters = clusters
        # what is hashed are the values of ζ: clusters, "no text", and the overflow
        self.hash = PairHash(secret, scheme.clusters + 2)
        self._workspace = workspace

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts (batch, length)."""
        return ClusterSession(self, prompt_ids, attention_mask)

    def reduce(self, windows: I64, tokens: I64) -> I64:
        """The clusters of the h ids before each token, (N, h)."""
        return np.where(windows == ABSENT, ABSENT, self.clusters[np.maximum(windows, 0)])

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """−ln(1 − u) − 1 of histories (N, h) and tokens (N,)."""
        return -np.log1p(-self.hash.uniforms(contexts, self.clusters[tokens])) - 1.0

    def evidence(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> list[Evidence]:
        """The weighted matches of texts."""
        return self.evidence_for("weighted", texts, prompts)

    def evidence_for(
        self, test: str, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]
    ) -> list[Evidence]:
        """For ``race`` the clusters' own numbers, for the others matches with ζ."""
        if test == "race":
            return super().evidence(texts, prompts)
        found = zip(texts, prompts, self._masses(texts, prompts), strict=True)
        return [
            self._matches(self._pairs(text, prompt, self.first_contexts(text, prompt)), masses, test)
            for text, prompt, masses in found
        ]

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """The exact law of the sum."""
        if test == "race" or not isinstance(evidence, MatchEvidence):
            return gamma_test(evidence)
        if not len(evidence):
            return NOTHING
        normal = z_test(evidence)
        weights = evidence.weights / np.sqrt(evidence.chances * (1.0 - evidence.chances))
        steps = min(_LEVELS, max(_TOTAL // len(evidence), 1))
        levels = np.maximum(np.rint(weights * (steps / weights.max())).astype(np.int64), 0)
        observed = int(levels @ evidence.matches.astype(np.int64))
        p_value = float(bernoulli_law(levels, evidence.chances)[observed:].sum())
        return Statistic(normal.z, min(p_value, 1.0), normal.effective_length)

    def first_contexts(self, text: Tokenized, prompt: Tokenized) -> F64:
        """1 where a token's history occurs for the first time in the text, else 0: (L,)."""
        before = prompt.ids[-self.width :]
        ids = before + text.ids
        windows = windows_of(ids, k=self.width, host=self.host)[len(before) :]
        first = np.zeros(len(text.ids))
        histories = self.reduce(windows, np.array(text.ids, dtype=np.int64))
        first[np.unique(histories, axis=0, return_index=True)[1]] = 1.0
        return first

    def state(self) -> State:
        """The secret and the clusters. As secret as the key."""
        secret = super().state()
        return State(meta=secret.meta, arrays={**secret.arrays, "clusters": self.clusters.astype(np.uint32)})

    def _matches(self, pairs: Pairs, masses: F32, test: str) -> Evidence:
        """Whether each pair's cluster is ζ, by the masses Q̃ (L, K + 1) at every position of the text."""
        import torch

        positions = np.flatnonzero(pairs.positions >= 0)
        positions = positions[np.argsort(pairs.positions[positions])]  # in the order of the pairs
        alpha, slack = self.scheme.alpha, self.scheme.slack
        Q = masses[positions]
        law = auxiliary(torch.from_numpy(Q), alpha).numpy().astype(np.float64)
        seeds = self.hash.seeds(pairs.contexts)
        words = combine(seeds[:, :1], seeds[:, 1:], self.hash.token_words[None])
        zeta = (law / -np.log(to_uniforms(words))).argmax(axis=1)
        clusters, rows = self.clusters[pairs.tokens], np.arange(len(pairs))
        q = law[rows, clusters] / law.sum(axis=1)
        r = (1.0 - slack) * np.minimum(1.0, alpha / np.maximum(Q[rows, clusters], 1e-30)) + slack * q
        kept = (q > 0.0) & (q < r)  # elsewhere a match tells nothing
        matches, q, r = (zeta == clusters)[kept].astype(np.float64), q[kept], np.minimum(r[kept], 1.0)
        weights = np.ones(len(q)) if test == "count" else logit(r) - logit(q)
        spread = np.sqrt(q * (1.0 - q))
        numbered = np.full(len(pairs) + 1, -1, dtype=np.int64)
        numbered[:-1][kept] = np.arange(len(q))
        found = Evidence.independent((matches - q) / spread, weights * spread, numbered[pairs.positions])
        shown = ndtri(np.where(matches > 0.0, 1.0 - q / 2.0, (1.0 - q) / 2.0))  # the middle of each outcome
        return MatchEvidence(**{**vars(found), "alignments": shown}, matches=matches, chances=q)

    def _masses(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> list[F32]:
        """For each text the clusters' masses Q̃ (L, K + 1) at its positions."""
        known = {} if self.known is None else self.known
        places = [(prompt.text, text.ids) for text, prompt in zip(texts, prompts, strict=True)]
        new = [place for place in dict.fromkeys(places) if place not in known]
        if new:
            if self._workspace.open_host is None:
                raise ConfigError(
                    "pasa runs a language model to detect, which cannot be opened here: bind through "
                    "dewmark.load_scheme, or use test='race'"
                )
            model = self._workspace.open_host(self.scheme.surrogate)
            rows = model.next_logits([prompt for prompt, _ in new], [ids for _, ids in new])
            known.update(zip(new, map(self._summed, rows), strict=True))
        return [known[place] for place in places]

    def _summed(self, logits: torch.Tensor) -> F32:
        """Logits (L, vocab) of the model to masses (L, K + 1)."""
        import torch

        from dewmark.sampling import warp

        scheme = self.scheme
        if logits.shape[1] != self.host.vocab_size:
            raise VocabularyError(
                f"{scheme.surrogate or self.host.name} gives {logits.shape[1]} logits, {self.host.name} has "
                f"{self.host.vocab_size} ids: name a surrogate with the same vocabulary"
            )
        decoding = Decoding(temperature=scheme.temperature, top_k=scheme.top_k, top_p=scheme.top_p)
        forbidden = torch.from_numpy(~self.markable).to(logits.device)
        clusters = torch.from_numpy(self.clusters).to(logits.device)
        masses = np.zeros((len(logits), scheme.clusters + 1), dtype=np.float32)
        for start in range(0, len(logits), _ROWS_AT_ONCE_PASA):
            part = logits[start : start + _ROWS_AT_ONCE_PASA].masked_fill(forbidden, -float("inf"))
            part = warp(part, decoding)
            found = cluster_masses(part, clusters.expand(len(part), -1), scheme.clusters)
            masses[start : start + len(part)] = found.cpu().numpy()
        return masses
