"""The Gumbel-max marks of vLLM and SGLang, each with the engine's own hash.

Both draw EXP's way (`keyed_sampling.exp` of dewmark-lab): the next token is the largest log(u)/p. A context
that occurred before in the answer is sampled without the mark, and not scored.

**vLLM** (0.30 and later), ``gumbel`` and ``dual_key_gumbel``: the number of token v after h ids is

    s = domain, h, 0, 0;   for every four ids:  s ← Philox(s ⊕ ids;  key ⊕ their offset)
    w = word v mod 4 of Philox(⌊v/4⌋, s₀, s₁, s₂;  key₀ ⊕ s₃, key₁ ⊕ domain'),
    u = (⌊w/256⌋ + 1) / (2²⁴ + 1)  in float32.

Contexts hold the answer alone, with id −1 before its first token, so detection needs no prompt.

``dual_key_gumbel`` has two sub-keys, so that speculative decoding can use one for drafts and one for the
target. Without speculation a token follows key B with probability α, else key A. Its detector sums (1 − α)
e_A + α e_B with e = −ln(1 − u). vLLM takes this sum for a Gamma variable with the same mean and variance
(test ``gamma``). Its tail is in truth heavier: the larger of the two scales is a negative binomial number of
the smaller ones, which gives the distribution as a sum of Gamma tails (test ``exact``).

**SGLang** (0.5.22 and later, ``--enable-watermark``) has MurmurHash3 (x86, 32 bits, seed 0) over words of 32
bits, and hashes the prompt too:

    c = murmur(ids),   u = (murmur(key₀, key₁, c, v) + 1/2) / 2³².

Near the beginning of a prompt fewer ids are hashed. Nothing after the first 4,096 contexts is scored; without
the prompt, neither are the first h tokens. With a second key, a keyed coin murmur(A₀, A₁, B₀, B₁, c) decides
for each context whose turn it is: A's if it lies below ``mixing_probability`` · 2³².
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaincc
from scipy.stats import nbinom

from dewmark.arrays import F32, F64, I64
from dewmark.decoding import Decoding
from dewmark.mark import ChoosingSession
from dewmark.room import log_probability
from dewmark.sampling import Choice, RandomStreams, race, warp
from dewmark.scheme import Needs
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic
from dewmark.verdict import DEFAULT_FPR
from dewmark_lab.schemes.engines.engine_scheme import (
    EngineBound,
    EngineScheme,
    IdWindows,
    RepeatedContexts,
    Words,
    first_rows,
    philox,
    support,
)
from dewmark_lab.schemes.independent_sums import gamma_test, z_test

_CONTEXT, _TOKEN = 0x574D4358, 0x574D544B  # keep the two uses of vLLM's hash apart
_MASK = np.uint64(0xFFFFFFFF)
_TAIL = 1e-18  # of the negative binomial distribution that is left out
_MOST = 4096  # contexts of a text that SGLang marks

U64 = NDArray[np.uint64]


class PhiloxHash:
    """The uniform numbers of (context, token) pairs under a key of 64 bits."""

    def __init__(self, key: int) -> None:
        self._key = np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)

    def contexts(self, contexts: I64) -> Words:
        """Contexts (N, h) to four words each, (N,)."""
        ids, width = contexts.astype(np.uint64) & _MASK, contexts.shape[1]
        shape = (len(contexts),)
        state: Words = (
            np.full(shape, _CONTEXT, dtype=np.uint64),
            np.full(shape, width, dtype=np.uint64),
            np.zeros(shape, dtype=np.uint64),
            np.zeros(shape, dtype=np.uint64),
        )
        for start in range(0, width, 4):
            a, b, c, d = (
                word ^ (ids[:, start + i] if start + i < width else np.uint64(0xFFFFFFFF - i))
                for i, word in enumerate(state)
            )
            key = self._key[0] ^ np.asarray(np.uint64(start)), np.asarray(self._key[1])
            state = philox((a, b, c, d), key)
        return state

    def uniforms(self, contexts: I64, tokens: I64) -> F32:
        """Numbers in (0, 1) of contexts (N, h) and the tokens (N or 1, m) after each, (N, m)."""
        a, b, c, d = (word[:, None] for word in self.contexts(contexts))
        ids, m = tokens.astype(np.uint64) & _MASK, tokens.shape[1]
        key = self._key[0] ^ d, np.asarray(self._key[1] ^ np.uint64(_TOKEN))
        if m > 4 and np.array_equal(tokens, np.arange(m)[None]):  # a whole vocabulary: four ids a hash
            outputs = philox((ids[:, : (m + 3) // 4], a, b, c), key)
            words = np.stack(outputs, axis=-1).reshape(len(contexts), -1)[:, :m]
        else:
            outputs = philox((ids >> np.uint64(2), a, b, c), key)
            words = np.choose((ids & np.uint64(3)).astype(np.intp), np.broadcast_arrays(*outputs))
        uniforms = ((words >> np.uint64(8)).astype(np.float64) + 1.0) / (2**24 + 1)
        return uniforms.astype(np.float32)

    def exponentials(self, contexts: I64, tokens: I64) -> F64:
        """−ln(1 − u) of pairs, contexts (N, h) and tokens (N,): (N,), Exp(1) over keys."""
        return -np.log1p(-self.uniforms(contexts, tokens[:, None])[:, 0].astype(np.float64))


class BoundVLLMGumbel(EngineBound):
    """``gumbel`` under one key. A token scores −ln(1 − u) − 1."""

    tests: ClassVar[tuple[str, ...]] = ("gamma",)
    filler = -1
    scheme: VLLMGumbel

    def prepare(self) -> None:
        """The hash of each sub-key, and the share of tokens that follow it."""
        self.width = self.scheme.context_width
        self.hashes, self.shares = [PhiloxHash(self.numbers[0])], [1.0]

    def open_session(self, windows: IdWindows, seeds: Sequence[int]) -> GumbelSession:
        memory = self.scheme.max_history if self.scheme.deduplicate_contexts else 0
        return GumbelSession(windows, self.hashes, self.shares, memory=memory, seeds=seeds)

    def scored(self, contexts: I64, tokens: I64, before: int) -> I64:
        return first_rows(contexts) if self.scheme.deduplicate_contexts else np.arange(len(contexts))

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """The weighted sum of −ln(1 − u) over the sub-keys, less its mean of 1, (N,)."""
        scores: F64 = np.zeros(len(tokens))
        for share, each in zip(self.shares, self.hashes, strict=True):
            scores += share * each.exponentials(contexts, tokens)
        return scores - 1.0

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        return gamma_test(evidence)


@dataclass(frozen=True)
class VLLMGumbel(EngineScheme):
    """vLLM's ``gumbel``."""

    name: ClassVar[str] = "vllm-gumbel"
    summary: ClassVar[str] = "vLLM's own Gumbel-max mark (gumbel), found with the server's key"
    needs: ClassVar[Needs] = Needs(final_distribution=True)
    bound = BoundVLLMGumbel

    context_width: Annotated[int, "at least 1"] = 4
    """The server's ``context_width``: the number of preceding ids that key the choice."""
    max_history: Annotated[int, "at least 1"] = 8192
    """The server's ``deduplicate_contexts_max_history``: how long a context counts as seen; for marking."""

    deduplicate_contexts: bool = True
    """False for a server with ``deduplicate_contexts`` none: repeated contexts are marked, and count."""


class BoundDualKeyGumbel(BoundVLLMGumbel):
    """``dual_key_gumbel`` under one key. A token scores (1 − α) e_A + α e_B − 1."""

    tests = ("gamma", "exact")
    scheme: VLLMDualKeyGumbel

    def prepare(self) -> None:
        """The hashes of keys A and B, and the shares of tokens that follow them."""
        alpha = self.scheme.alpha
        self.width = self.scheme.context_width
        self.variance = (1.0 - alpha) ** 2 + alpha**2
        root = self.numbers[0].to_bytes(8, "big")
        digests = [hashlib.sha256(domain + root).digest() for domain in (b"key_a", b"key_b")]
        self.hashes = [PhiloxHash(int.from_bytes(digest[:8], "big")) for digest in digests]
        self.shares = [1.0 - alpha, alpha]

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """``gamma``: vLLM's approximation; ``exact``: the distribution of the sum."""
        if not (n := len(evidence)):
            return NOTHING
        total = max(evidence.total + n, 0.0)
        if test == "exact":
            p_value = fused_tail(total, n, self.scheme.alpha)
        else:
            p_value = float(gammaincc(n / self.variance, total / self.variance))
        return Statistic(z_test(evidence).z, p_value, float(n))


@dataclass(frozen=True)
class VLLMDualKeyGumbel(VLLMGumbel):
    """vLLM's ``dual_key_gumbel``."""

    name: ClassVar[str] = "vllm-dual-key-gumbel"
    summary: ClassVar[str] = "vLLM's mark for speculative decoding (dual_key_gumbel)"
    bound = BoundDualKeyGumbel

    alpha: Annotated[float, "in [0, 1]"] = 0.1
    """The server's α: the probability that a token follows key B, and the weight of key B."""


def fused_tail(total: float, n: int, alpha: float) -> float:
    """P((1 − α) X + α Y ≥ total) for independent X, Y ~ Gamma(n)."""
    small, large = sorted((alpha, 1.0 - alpha))
    if small == 0.0:
        return float(gammaincc(n, total))
    # large·X is a sum of small exponentials, NB(n, small/large) more than n of them
    distribution, t = nbinom(n, small / large), total / small
    # beyond `most` the tail is 1
    most = max(int(distribution.isf(_TAIL)), math.ceil(t - 2 * n + 10.0 * math.sqrt(t)))
    extra = np.arange(int(distribution.ppf(_TAIL)), most + 1)
    terms = distribution.pmf(extra) * gammaincc(2 * n + extra, t)
    return math.fsum((*terms.tolist(), float(distribution.sf(most))))


class BoundSGLangGumbel(EngineBound):
    """The mark under the server's key. A token scores −ln(1 − u) − 1."""

    tests = ("gamma",)
    reads_prompt = True
    filler = -1
    scheme: SGLangGumbel

    def prepare(self) -> None:
        self.width = self.scheme.context_window
        self.hash = MurmurHash(self.numbers, int(self.scheme.mixing_probability * 2**32))

    def open_session(self, windows: IdWindows, seeds: Sequence[int]) -> GumbelSession:
        return GumbelSession(windows, [self.hash], [1.0], memory=None, seeds=seeds)

    def scored(self, contexts: I64, tokens: I64, before: int) -> I64:
        unknown = 0 if before else self.width
        return (first_rows(contexts[unknown:]) + unknown)[:_MOST]

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """−ln(1 − u) − 1, (N,)."""
        words = self.hash.words(contexts, tokens[:, None])[:, 0]
        return -np.log1p(-(words.astype(np.float64) + 0.5) / 2**32) - 1.0

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        return gamma_test(evidence)


@dataclass(frozen=True)
class SGLangGumbel(EngineScheme):
    """SGLang's mark, with one key or two."""

    name: ClassVar[str] = "sglang-gumbel"
    summary: ClassVar[str] = "SGLang's own Gumbel-max mark, found with the server's key"
    needs: ClassVar[Needs] = Needs(final_distribution=True)
    most_numbers: ClassVar[int] = 2
    bound = BoundSGLangGumbel

    context_window: Annotated[int, "in [1, 64]"] = 4
    """The server's ``context_window``: the number of preceding ids that key the choice."""
    mixing_probability: Annotated[float, "in (0, 1)"] = 0.5
    """The server's ``mixing_probability`` of key A; for two keys."""


class MurmurHash:
    """The numbers of (context, token) pairs under one key, or under two of which a coin chooses."""

    def __init__(self, keys: Sequence[int], threshold: int) -> None:
        self._keys = np.array([[key & 0xFFFFFFFF, key >> 32] for key in keys], dtype=np.uint64)
        self._threshold = threshold

    def words(self, contexts: I64, tokens: I64) -> U64:
        """32 bits for contexts (N, h) and the tokens (N or 1, m) after each, (N, m)."""
        known = contexts >= 0
        state = np.zeros(len(contexts), dtype=np.uint64)
        for column, real in zip(contexts.astype(np.uint64).T & _MASK, known.T, strict=True):
            state = np.where(real, _mixed(state, column), state)
        hashed = _finished(state, known.sum(axis=1).astype(np.uint64))
        keys = self._keys[0]
        if len(self._keys) > 1:
            coin = _murmur([*self._keys.ravel(), hashed])
            keys = np.where((coin < self._threshold)[:, None], self._keys[0], self._keys[1]).T[..., None]
        return _murmur([keys[0], keys[1], hashed[:, None], tokens.astype(np.uint64)])

    def uniforms(self, contexts: I64, tokens: I64) -> F32:
        """u of contexts (N, h) and tokens (N or 1, m), (N, m), below 1 after rounding."""
        uniforms = ((self.words(contexts, tokens).astype(np.float64) + 0.5) / 2**32).astype(np.float32)
        return np.minimum(uniforms, np.nextafter(np.float32(1.0), np.float32(0.0)))


def _murmur(words: Sequence[U64 | np.uint64]) -> U64:
    """MurmurHash3 of words of 32 bits; all shapes broadcast."""
    state: U64 = np.zeros(1, dtype=np.uint64)
    for word in words:
        state = _mixed(state, np.asarray(word))
    return _finished(state, np.uint64(len(words)))


def _mixed(state: U64, word: U64) -> U64:
    word = _rotated(word * np.uint64(0xCC9E2D51) & _MASK, 15) * np.uint64(0x1B873593) & _MASK
    return _rotated(state ^ word, 13) * np.uint64(5) + np.uint64(0xE6546B64) & _MASK


def _finished(state: U64, words: U64 | np.uint64) -> U64:
    state = state ^ (words * np.uint64(4))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor) & _MASK
    return state ^ (state >> np.uint64(16))


def _rotated(word: U64, left: int) -> U64:
    return (word << np.uint64(left) | word >> np.uint64(32 - left)) & _MASK


class GumbelSession(ChoosingSession):
    """Draws tokens by logit + keyed Gumbel noise, or after a repeated context with the row's own noise."""

    def __init__(
        self,
        windows: IdWindows,
        hashes: Sequence[PhiloxHash | MurmurHash],
        shares: Sequence[float],
        *,
        memory: int | None,
        seeds: Sequence[int],
    ) -> None:
        self._windows, self._hashes = windows, hashes
        self._bounds = np.cumsum(shares)[:-1]
        self._repeated = RepeatedContexts(len(seeds), memory=memory)
        self._seeds = seeds
        cpu = torch.device("cpu")
        self._routes = RandomStreams(seeds, device=cpu, purpose=1)
        self._noise = RandomStreams(seeds, device=cpu)
        self._step = 0

    def choose(self, input_ids: torch.Tensor, scores: torch.Tensor, decoding: Decoding) -> Choice:
        contexts = self._windows(input_ids, scores).cpu()
        logits = warp(scores.float(), decoding).cpu()
        candidates = support(logits)
        few = logits if candidates is None else logits.gather(1, candidates)
        ids = np.arange(logits.shape[1])[None] if candidates is None else candidates.numpy()
        # Gumbel noise (batch, m), each row's from the sub-key that it follows
        uniforms = self._hashes[0].uniforms(contexts.numpy(), ids)
        if len(self._hashes) > 1:
            route = self._routes.uniforms(self._step, 1)[:, 0].numpy()
            rows = np.searchsorted(self._bounds, route, side="right") == 1
            if rows.any():
                own_ids = ids if len(ids) == 1 else ids[rows]
                uniforms[rows] = self._hashes[1].uniforms(contexts.numpy()[rows], own_ids)
        noise = torch.from_numpy(-np.log(-np.log(np.maximum(uniforms, np.finfo(np.float32).tiny))))
        best, chosen = (few + noise).max(dim=1)
        sound = torch.isfinite(best)
        if candidates is not None:
            chosen = candidates.gather(1, chosen.unsqueeze(1)).squeeze(1)
        repeated = torch.tensor(self._repeated(contexts))
        if bool(repeated.any()):
            own, own_sound = race(logits, self._noise.exponentials(self._step, logits.shape[1]))
            chosen, sound = torch.where(repeated, own, chosen), torch.where(repeated, own_sound, sound)
        self._step += 1
        self.measure(log_probability(logits, chosen), ~repeated)
        return chosen.to(scores.device), sound.to(scores.device)
