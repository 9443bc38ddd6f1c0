"""MPAC (Yoo et al. 2024): a message of several bits, written by position allocation.

The message is a row of D digits of radix r. After each context the key picks one position of the message,
and divides the vocabulary into r colours; the tokens of the colour that the digit at that position names
gain δ. In reading, each distinct (context, token) pair votes for its colour at its position. Two tests:

- ``any``: does the text carry a message, whichever? Over keys colours are uniform and independent, and the
  votes of the winners are the convolution of the distributions of the largest count of n balls in r boxes.
- ``message``: does it carry the configured one? The number of pairs that agree with it is Binomial(N, 1/r).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from scipy.special import gammaln, ndtri

from dewmark.arrays import F64, I64
from dewmark.config import check_rules
from dewmark.mark import Session
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import Texts, Tokenized, Workspace
from dewmark_lab.schemes.green.green_list import as_numbers
from dewmark_lab.schemes.independent_sums import binomial_test, convolved
from dewmark_lab.schemes.pair_hash import PairHash
from dewmark_lab.schemes.token_schemes import PromptBatch, TokenBound, TokenScheme, TokenSession

_LONGEST = 4096  # pairs with an exact distribution


@dataclass(frozen=True)
class Message:
    """A message that was read.

    ``p_values`` (D,) say for each digit how often the winner of unmarked text has as many votes as this one;
    ``votes`` (D, r) are the counts.
    """

    value: int
    p_values: F64
    votes: I64


class BoundMPAC(TokenBound):
    """MPAC for one key and one vocabulary. A pair scores 1 − 1/r if it agrees with the message, else −1/r."""

    tests = ("any", "message")
    scheme: MPAC

    def prepare(self, workspace: Workspace) -> None:
        self.width, self.digits = self.scheme.prefix, self.scheme.digits
        self.share = 1.0 / self.scheme.radix
        self.variance = self.share * (1.0 - self.share)
        # a keyed number per context: the word of its pair with the only token, 0
        places = hashlib.blake2b(key=self._secret, person=b"positions", digest_size=32).digest()
        self.place_hash = PairHash(places, 1)

    def start_session(self, prompts: PromptBatch) -> Session:
        return _DigitSession(prompts, self)

    def positions(self, contexts: I64) -> I64:
        """The position in the message that each context (N, h) picks, (N,)."""
        u = self.place_hash.uniforms(contexts, np.zeros(len(contexts), dtype=np.int64))
        return (u * len(self.digits)).astype(np.int64)

    def colours(self, contexts: I64, tokens: I64) -> I64:
        """The colour of each token (N,) after its context (N, h), (N,)."""
        return (self.pair_hash.uniforms(contexts, tokens) * self.scheme.radix).astype(np.int64)

    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """Whether each pair agrees with the configured message, less 1/r, (N,)."""
        digits = self.digits[self.positions(contexts)]
        agrees: F64 = (self.colours(contexts, tokens) == digits).astype(np.float64)
        return agrees - self.share

    def evidence_of(self, texts: Texts, prompts: Texts, test: str | None) -> list[Evidence]:
        """The evidence for the configured message; of a whole text with the votes for all digits."""
        pairs = zip(texts, prompts, super().evidence_of(texts, prompts, test), strict=True)
        return [dataclasses.replace(each, whole=self._votes(*text)) for *text, each in pairs]

    def test(self, evidence: Evidence, *, test: str, fpr: float = DEFAULT_FPR) -> Statistic:
        """``any`` message, of whole texts; ``message``: how many pairs agree with the configured one."""
        if test == "message" or evidence.whole is None:
            return binomial_test(evidence, share=self.share)
        return self._any(evidence.whole, len(evidence))

    def message(self, text: str, *, prompt: str = "") -> Message:
        """The message in a text, whether or not it is marked."""
        tokenized, before = self.tokenize([text, prompt])
        votes = self._votes(tokenized, before)
        value = sum(
            int(digit) << (i * int(math.log2(self.scheme.radix)))
            for i, digit in enumerate(votes.argmax(axis=1))
        )
        radix = self.scheme.radix
        tails = [float(largest_count_pmf(int(v.sum()), radix)[int(v.max()) :].sum()) for v in votes]
        return Message(value % (1 << self.scheme.bits), np.array(tails), votes)

    def _votes(self, text: Tokenized, prompt: Tokenized) -> I64:
        pairs = self.pairs_of(text, prompt)
        votes = np.zeros((len(self.digits), self.scheme.radix), dtype=np.int64)
        np.add.at(votes, (self.positions(pairs.contexts), self.colours(pairs.contexts, pairs.tokens)), 1)
        return votes

    def _any(self, votes: I64, pairs: int) -> Statistic:
        """The winners' votes against their distribution over keys."""
        counts, observed = votes.sum(axis=1), int(votes.max(axis=1).sum())
        pmfs = [largest_count_pmf(int(n), self.scheme.radix) for n in counts]
        mean, variance = (sum(each) for each in zip(*map(_moments, pmfs), strict=True))
        if pairs > _LONGEST:
            z = (observed - 0.5 - mean) / math.sqrt(variance)
            return Statistic(z, 0.5 * math.erfc(z / math.sqrt(2.0)), float(pairs))
        p_value = min(float(convolved(pmfs)[observed:].sum()), 1.0)
        z = -float(ndtri(p_value)) if 0.0 < p_value < 1.0 else 0.0
        if p_value < 1e-290 or p_value >= 1.0:
            z = (observed - mean) / math.sqrt(variance) if variance else 0.0
        return Statistic(z, p_value, float(pairs))


@dataclass(frozen=True)
class MPAC(TokenScheme):
    """Multi-bit marks by position allocation."""

    name: ClassVar[str] = "mpac"
    summary: ClassVar[str] = "writes a message of several bits: each token carries one of its digits"
    bound = BoundMPAC

    message: int = 0
    """The message to write, below 2^bits."""
    bits: Annotated[int, "in [1, 62]"] = 16
    """Length of the message in bits."""
    radix: int = 4
    """Number r of colours, and of values of a digit: 2, 4 or 8."""
    delta: Annotated[float, "positive"] = 2.0
    """Bias δ added to the logits of the digit's colour."""
    prefix: Annotated[int, "at least 1"] = 1
    """Context width h: the number of preceding ids that decide position and colours."""

    def validate(self) -> None:
        check_rules(
            (0 <= self.message < 1 << self.bits, "message", f"lie in 0 … 2^{self.bits} − 1", self.message),
            (self.radix in (2, 4, 8), "radix", "be 2, 4 or 8", self.radix),
        )

    @property
    def digits(self) -> I64:
        """The message's digits, the least significant first, (D,)."""
        width = int(math.log2(self.radix))
        return np.array([(self.message >> i) % self.radix for i in range(0, self.bits, width)])


class _DigitSession(TokenSession):
    def __init__(self, prompts: PromptBatch, bound: BoundMPAC) -> None:
        super().__init__(prompts, bound)
        self._bound = bound

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with δ added to the colour of each row's digit."""
        bound, radix = self._bound, self._bound.scheme.radix
        places = bound.positions(windows.cpu().numpy())
        digits = torch.from_numpy(bound.digits[places]).to(scores.device).unsqueeze(1)
        colours = self._hash.words(windows) * radix >> 32
        chosen = (colours == digits).logical_and_(self._markable)
        return scores.add(as_numbers(chosen, scores), alpha=bound.scheme.delta)


@functools.lru_cache(4096)
def largest_count_pmf(n: int, boxes: int) -> F64:
    """The probabilities (n + 1,) that the fullest of ``boxes`` boxes holds 0, 1, …, n of n balls."""
    if n == 0:
        return np.ones(1)
    terms = np.exp(np.arange(n + 1) * math.log(n / boxes) - gammaln(np.arange(n + 1) + 1.0) - n / boxes)
    # Poisson counts of mean n / boxes, given their sum n; P(all ≤ k, sum = n) by convolution
    upto = np.zeros(n + 2)
    for k in range(-(-n // boxes), n + 1):
        row, each = np.ones(1), terms[: k + 1]
        for _ in range(boxes):
            row = np.convolve(row, each)[: n + 1]
        upto[k + 1] = row[n] if len(row) > n else 0.0
    pmf: F64 = np.diff(upto) / upto[-1]
    return np.maximum(pmf, 0.0)


def _moments(pmf: F64) -> tuple[float, float]:
    counts = np.arange(len(pmf))
    mean = float(pmf @ counts)
    return mean, float(pmf @ counts**2) - mean**2
