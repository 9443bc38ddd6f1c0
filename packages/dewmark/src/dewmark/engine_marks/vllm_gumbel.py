"""The Gumbel-max marks of vLLM (0.30 and later): ``gumbel`` and ``dual_key_gumbel``, with its Philox hash.

The number of token v after the h ids before it is

    s = domain, h, 0, 0;   for every four ids:  s ← Philox(s ⊕ ids;  key ⊕ their offset)
    w = word v mod 4 of Philox(⌊v/4⌋, s₀, s₁, s₂;  key₀ ⊕ s₃, key₁ ⊕ domain'),
    u = (⌊w/256⌋ + 1) / (2²⁴ + 1)  in float32,

and the next token is the largest logit + Gumbel noise made from u: EXP (`keyed_sampling.exp`) with another
hash. Contexts hold the answer alone, with id −1 before its first token, so detection needs no prompt. A
context that occurred before in the answer is sampled without the mark, and not scored.

``dual_key_gumbel`` has two sub-keys, so that speculative decoding can use one for drafts and one for the
target. Without speculation a token follows key B with probability α, else key A. Its detector sums (1 − α)
e_A + α e_B with e = −ln(1 − u). vLLM takes this sum for a Gamma variable with the same mean and variance
(test ``gamma``). Its tail is in truth heavier: the larger of the two scales is a negative binomial number of
the smaller ones, which gives the distribution as a sum of Gamma tails (test ``exact``).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaincc
from scipy.stats import nbinom

from dewmark.arrays import F32, F64, I64
from dewmark.config import check_rules
from dewmark.decoding import Decoding
from dewmark.engine_marks.engine_scheme import (
    EngineBound,
    EngineScheme,
    IdWindows,
    RepeatedContexts,
    Words,
    first_rows,
    id_windows,
    philox,
    select,
    support,
)
from dewmark.sampling import Choice, ChoosingSession, RandomStreams, fresh_seeds, race, warp
from dewmark.scheme import Needs
from dewmark.stats.evidence import Evidence
from dewmark.stats.independent_sums import gamma_test, z_test
from dewmark.stats.key_test import NOTHING, Statistic
from dewmark.workspace import HostInfo, Tokenized

NO_ID = -1  # before the first token of an answer
_CONTEXT, _TOKEN = 0x574D4358, 0x574D544B  # keep the hash's two uses apart
_MASK = np.uint64(0xFFFFFFFF)
_TAIL = 1e-18  # of the negative binomial distribution that is left out


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
            state = philox(
                (a, b, c, d), (self._key[0] ^ np.asarray(np.uint64(start)), np.asarray(self._key[1]))
            )
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
            words = select(philox((ids >> np.uint64(2), a, b, c), key), ids & np.uint64(3))
        uniforms = ((words >> np.uint64(8)).astype(np.float64) + 1.0) / (2**24 + 1)
        return uniforms.astype(np.float32)

    def exponentials(self, contexts: I64, tokens: I64) -> F64:
        """−ln(1 − u) of pairs, contexts (N, h) and tokens (N,): (N,), Exp(1) over keys."""
        return -np.log1p(-self.uniforms(contexts, tokens[:, None])[:, 0].astype(np.float64))


@dataclass(frozen=True)
class VLLMGumbel(EngineScheme):
    """vLLM's ``gumbel``."""

    name: ClassVar[str] = "vllm-gumbel"
    summary: ClassVar[str] = "vLLM's own Gumbel-max mark (gumbel), found with the server's key"
    needs: ClassVar[Needs] = Needs(final_distribution=True)

    context_width: int = 4
    """The server's ``context_width``: the number of preceding ids that key the choice."""
    max_history: int = 8192
    """The server's ``deduplicate_contexts_max_history``: how long a context counts as seen; for marking."""

    deduplicate_contexts: bool = True
    """False for a server with ``deduplicate_contexts`` none: repeated contexts are marked, and count."""

    def validate(self) -> None:
        """Check that all values are in range."""
        check_rules(
            (self.context_width >= 1, "context_width", "be at least 1", self.context_width),
            (self.max_history >= 1, "max_history", "be at least 1", self.max_history),
        )

    def bind_numbers(self, numbers: tuple[int, ...], host: HostInfo, fingerprint: str) -> BoundVLLMGumbel:
        """Bind the scheme to the server's key."""
        return BoundVLLMGumbel(self, host, fingerprint, numbers)


@dataclass(frozen=True)
class VLLMDualKeyGumbel(VLLMGumbel):
    """vLLM's ``dual_key_gumbel``."""

    name: ClassVar[str] = "vllm-dual-key-gumbel"
    summary: ClassVar[str] = "vLLM's mark for speculative decoding (dual_key_gumbel)"

    alpha: float = 0.1
    """The server's α: the probability that a token follows key B, and the weight of key B."""

    def validate(self) -> None:
        """Check that all values are in range."""
        super().validate()
        check_rules((0.0 <= self.alpha <= 1.0, "alpha", "lie in [0, 1]", self.alpha))

    def bind_numbers(self, numbers: tuple[int, ...], host: HostInfo, fingerprint: str) -> BoundDualKeyGumbel:
        """Bind the scheme to the server's key."""
        return BoundDualKeyGumbel(self, host, fingerprint, numbers)


class BoundVLLMGumbel(EngineBound):
    """``gumbel`` under one key. A token scores −ln(1 − u) − 1."""

    tests: ClassVar[tuple[str, ...]] = ("gamma", "z")
    scheme: VLLMGumbel

    def __init__(
        self, scheme: VLLMGumbel, host: HostInfo, fingerprint: str, numbers: tuple[int, ...]
    ) -> None:
        super().__init__(scheme, host, fingerprint, numbers)
        self.width = scheme.context_width
        self.hashes, self.shares = self.keyed_hashes()

    def keyed_hashes(self) -> tuple[list[PhiloxHash], list[float]]:
        """The hash of each sub-key, and the share of tokens that follow it."""
        return [PhiloxHash(self.numbers[0])], [1.0]

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> GumbelSession:
        """Start marking prompts (batch, length)."""
        windows = IdWindows(
            vocab_size=self.host.vocab_size, width=self.width, filler=NO_ID, start=prompt_ids.shape[1]
        )
        return GumbelSession(
            windows,
            self.hashes,
            self.shares,
            memory=self.scheme.max_history if self.scheme.deduplicate_contexts else 0,
            seeds=fresh_seeds(len(prompt_ids), seeds),
        )

    def cut(self, text: Tokenized, prompt: Tokenized) -> tuple[I64, I64]:
        """The ids of the answer before each token (L, h), and where a context occurs for the first time."""
        contexts = id_windows((), text.ids, width=self.width, filler=NO_ID)
        if not self.scheme.deduplicate_contexts:
            return contexts, np.arange(len(contexts))
        return contexts, first_rows(contexts)

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """The weighted sum of −ln(1 − u) over the sub-keys, less its mean of 1, (N,)."""
        total: F64 = np.sum(
            [
                share * each.exponentials(contexts, tokens)
                for each, share in zip(self.hashes, self.shares, strict=True)
            ],
            axis=0,
        )
        return total - 1.0

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``gamma``: the exact distribution of the sum; ``z``: its normal approximation."""
        return gamma_test(evidence) if test == "gamma" else z_test(evidence)


class BoundDualKeyGumbel(BoundVLLMGumbel):
    """``dual_key_gumbel`` under one key. A token scores (1 − α) e_A + α e_B − 1."""

    tests = ("gamma", "exact", "z")
    scheme: VLLMDualKeyGumbel

    def keyed_hashes(self) -> tuple[list[PhiloxHash], list[float]]:
        """The hashes of keys A and B, and the shares of tokens that follow them."""
        alpha = self.scheme.alpha
        self.variance = (1.0 - alpha) ** 2 + alpha**2
        domains = (b"key_a", b"key_b")
        return [PhiloxHash(_subkey(self.numbers[0], domain)) for domain in domains], [1.0 - alpha, alpha]

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """``gamma``: vLLM's approximation; ``exact``: the distribution of the sum; ``z``: normal."""
        n = len(evidence)
        normal = z_test(evidence)
        if test == "z" or n == 0:
            return normal if n else NOTHING
        total = max(evidence.total + n, 0.0)
        if test == "exact":
            return Statistic(normal.z, fused_tail(total, n, self.scheme.alpha), float(n))
        return Statistic(normal.z, float(gammaincc(n / self.variance, total / self.variance)), float(n))


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


def _subkey(key: int, domain: bytes) -> int:
    """The key that vLLM derives for one of its two roles."""
    return int.from_bytes(hashlib.sha256(domain + key.to_bytes(8, "big")).digest()[:8], "big")


class KeyedUniforms(Protocol):
    """A hash of (context, token) pairs."""

    def uniforms(self, contexts: I64, tokens: I64) -> F32:
        """Numbers in (0, 1) of contexts (N, h) and the tokens (N or 1, m) after each, (N, m)."""


class GumbelSession(ChoosingSession):
    """Draws tokens by logit + keyed Gumbel noise, or after a repeated context with the row's own noise."""

    def __init__(
        self,
        windows: IdWindows,
        hashes: Sequence[KeyedUniforms],
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
        """Draw the next id of each row from the host's logits (batch, vocab)."""
        contexts = self._windows(input_ids, scores).cpu()
        logits = warp(scores.float(), decoding).cpu()
        candidates = support(logits)
        few = logits if candidates is None else logits.gather(1, candidates)
        ids = np.arange(logits.shape[1])[None] if candidates is None else candidates.numpy()
        noise = torch.from_numpy(self._gumbel(contexts.numpy(), ids))
        best, chosen = (few + noise).max(dim=1)
        sound = torch.isfinite(best)
        if candidates is not None:
            chosen = candidates.gather(1, chosen.unsqueeze(1)).squeeze(1)
        repeated = torch.tensor(self._repeated(contexts))
        if bool(repeated.any()):
            own, own_sound = race(logits, self._noise.exponentials(self._step, logits.shape[1]))
            chosen, sound = torch.where(repeated, own, chosen), torch.where(repeated, own_sound, sound)
        self._step += 1
        return chosen.to(scores.device), sound.to(scores.device)

    def _gumbel(self, contexts: I64, ids: I64) -> NDArray[np.float32]:
        """Gumbel noise (batch, m) of ids (batch or 1, m), each row's from the sub-key that it follows."""
        uniforms = self._hashes[0].uniforms(contexts, ids)
        if len(self._hashes) > 1:
            route = self._routes.uniforms(self._step, 1)[:, 0].numpy()
            rows = np.searchsorted(self._bounds, route, side="right") == 1
            if rows.any():
                own = ids if len(ids) == 1 else ids[rows]
                uniforms[rows] = self._hashes[1].uniforms(contexts[rows], own)
        return -np.log(-np.log(np.maximum(uniforms, np.finfo(np.float32).tiny)))
