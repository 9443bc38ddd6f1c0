"""The laws of sums of independent scores, and the checks of parameters that all baselines make.

Boundary: evidence in, a `Statistic` out; what a score is, the scheme knows.

Marking for schemes that look at the h ids before a token: what every such session does at each step.

It checks the host's logits, cuts each row's window of h ids (padding and special tokens are `ABSENT`, as in
scoring) and hands both to `mark`.

Scoring for schemes that look at a token's id and the h ids before it.

Over random keys two occurrences of the same (context, token) pair have the same score, so a pair counts once
however often it occurs; scores of different pairs are independent. What is left to a scheme is the score of
a pair, and the law of a sum of them.

Boundary: numpy only; marking is in `_session`.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import bdtrc, gammaincc

from dewmark.arrays import F64, I64
from dewmark.core.keys import Key
from dewmark.core.prf import SECRET_BYTES, PairHash
from dewmark.errors import ArtifactError, ConfigError, NumericalError, VocabularyError
from dewmark.scheme import DEFAULT_FPR, BoundScheme, Scheme, Session, State, check_test, check_texts, decide
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic, one_sided_p
from dewmark.text.windows import ABSENT, windows_of
from dewmark.types import Detection, TokenScore
from dewmark.workspace import HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    from dewmark.baselines.keyed_words import VocabularyHash

__all__ = [
    "HostReadingScheme",
    "Pairs",
    "Place",
    "TokenBound",
    "TokenScheme",
    "TokenSession",
    "binomial_test",
    "check",
    "gamma_test",
    "markable_ids",
    "stored_secret",
    "z_test",
]


def check(*rules: tuple[bool, str, str, object]) -> None:
    """Refuse the first parameter whose rule does not hold; a rule is (holds, name, what it must, value)."""
    for holds, name, must, value in rules:
        if not holds:
            raise ConfigError(f"{name} must {must}, got {value}")


def z_test(evidence: Evidence) -> Statistic:
    """The weighted sum of independent scores, taken as normal."""
    if len(evidence) == 0:
        return NOTHING
    squares = float(evidence.weights @ evidence.weights)
    z = evidence.total / math.sqrt(squares * evidence.variance)
    return Statistic(z, one_sided_p(z), float(evidence.weights.sum()) ** 2 / squares)


def gamma_test(evidence: Evidence) -> Statistic:
    """Scores E − 1 with E ~ Exp(1): the sum of N such E follows the Gamma law of shape N."""
    n = len(evidence)
    if n == 0:
        return NOTHING
    return Statistic(z_test(evidence).z, float(gammaincc(n, max(evidence.total + n, 0.0))), float(n))


def binomial_test(evidence: Evidence, *, share: float, trials: int = 1) -> Statistic:
    """Scores (X − trials·share) / trials with X ~ Binomial(trials, share): the exact law of their sum."""
    n = len(evidence) * trials
    if n == 0:
        return NOTHING
    successes = round(evidence.total * trials + n * share)
    p_value = float(bdtrc(successes - 1, n, share)) if successes > 0 else 1.0
    return Statistic(z_test(evidence).z, p_value, float(len(evidence)))


class TokenSession(Session):
    """Keeps no state but where each row's text begins; subclasses may keep more."""

    def __init__(
        self, bound: TokenBound, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> None:
        self._width = bound.width
        self._vocab_size = bound.host.vocab_size
        self._markable = torch.from_numpy(bound.markable)
        self._special = torch.zeros(self._vocab_size, dtype=torch.bool)
        self._special[[i for i in bound.host.tokenizer.special_ids if i < self._vocab_size]] = True
        if attention_mask is None:
            pad = bound.host.tokenizer.pad_id
            attention_mask = (prompt_ids != pad) if pad is not None else torch.ones_like(prompt_ids)
        # argmax finds the first True: the length of the leading run of padding
        self._padding = (
            attention_mask.to(torch.int8).argmax(dim=1, keepdim=True)
            if prompt_ids.shape[1]
            else prompt_ids.new_zeros((len(prompt_ids), 1))
        )
        self._most_padding = int(self._padding.max()) if len(prompt_ids) else 0

    @abstractmethod
    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Windows (batch, h) int64 and logits (batch, vocab), on one device, to marked logits, same shape."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) to marked logits, same shape."""
        if scores.shape[1] != self._vocab_size:
            raise VocabularyError(
                f"the host gives {scores.shape[1]} logits, the watermark was made for {self._vocab_size}"
            )
        # the largest of numbers with a NaN among them is NaN: a tenth of the cost of looking at each
        if scores.device.type == "cpu" and bool(torch.isnan(scores.max())):
            raise NumericalError("the host's logits hold NaN; load it in float32 or check its weights")
        if self._markable.device != scores.device:
            self._markable = self._markable.to(scores.device)
            self._special = self._special.to(scores.device)
            self._padding = self._padding.to(scores.device)
        return self.mark(self._windows(input_ids.to(scores.device)), scores)

    def _windows(self, ids: torch.Tensor) -> torch.Tensor:
        """The last h ids of each row (batch, h)."""
        h, length = self._width, ids.shape[1]
        first = max(length - h, 0)
        window = ids[:, first:]
        window = window.masked_fill(self._special[window], ABSENT)
        if first < self._most_padding:
            at = torch.arange(first, length, device=ids.device).unsqueeze(0)
            window = window.masked_fill(at < self._padding, ABSENT)
        return torch.nn.functional.pad(window, (h - length, 0), value=ABSENT) if length < h else window


Mask = NDArray[np.bool_]

Place = tuple[str, tuple[int, ...]]  # a prompt's text and the ids after it

_TOKENS_PER_CHUNK = 100_000


@dataclass(frozen=True)
class Pairs:
    """The N distinct (context, token) pairs of a text of L tokens.

    ``contexts`` (N, w), ``tokens`` (N,), ``weights`` (N,) the mean weight of a pair's occurrences;
    ``positions`` (L,) give each token's pair, or -1 if it is not scored.
    """

    contexts: I64
    tokens: I64
    weights: F64
    positions: I64

    def __len__(self) -> int:
        return len(self.tokens)


class TokenScheme(Scheme):
    """A scheme of this kind: all it takes from a key is one secret."""

    @abstractmethod
    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> TokenBound:
        """The scheme with a secret of 32 bytes and a host's vocabulary."""

    def secret_of(self, key: Key) -> bytes:
        """What the scheme takes from a key."""
        return key.subkey(f"{self.name}/pairs")

    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> TokenBound:
        """Derive the secret from a key."""
        return self.join(self.secret_of(key), host, key.fingerprint, workspace)

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> TokenBound:
        """Take the secret from a stored detector."""
        return self.join(stored_secret(state), host, fingerprint, workspace)


class HostReadingScheme(TokenScheme):
    """One whose bound form asks the host at detection, and keeps the answers in ``known`` if it is given."""

    def detect_keys(
        self,
        keys: Sequence[Key],
        texts: Sequence[str],
        host: HostInfo,
        workspace: Workspace,
        *,
        prompts: Sequence[str | None] | None = None,
        fpr: float = DEFAULT_FPR,
        test: str | None = None,
    ) -> list[list[Detection]]:
        """For each text one detection per key; the host runs once for all keys."""
        known: dict[Place, Any] = {}
        columns = []
        for key in keys:
            bound: Any = self.bind(key, host, workspace)
            bound.known = known
            columns.append(bound.detect_batch(texts, prompts=prompts, fpr=fpr, test=test))
        return [list(row) for row in zip(*columns, strict=True)]


class TokenBound(BoundScheme):
    """A scheme of this kind with its secret and a vocabulary.

    Subclasses set ``width`` (h) and ``variance`` (of one pair's score over keys), and give `pair_scores` and
    `statistic`.
    """

    width: int
    variance: float = 1.0

    def __init__(self, scheme: Scheme, host: HostInfo, fingerprint: str, *, secret: bytes) -> None:
        super().__init__(scheme, host, fingerprint)
        self._secret = secret
        self.hash = PairHash(secret, host.vocab_size)
        self.markable = markable_ids(host)

    @abstractmethod
    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """Scores (N,) of pairs, contexts (N, w) and tokens (N,): mean 0 over keys, larger means more marked.

        The contexts are what `reduce` made of the windows.
        """

    @abstractmethod
    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """The chosen test on one text's evidence."""

    def reduce(self, windows: I64, tokens: I64) -> I64:
        """What of the h ids before each token, (N, h), its score depends on: (N, w). By default all of it."""
        return windows

    @functools.cached_property
    def vocabulary(self) -> VocabularyHash:
        """The pair hash as sessions use it, shared by all of them."""
        from dewmark.baselines.keyed_words import VocabularyHash

        return VocabularyHash(self.hash)

    def position_weights(
        self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]
    ) -> Iterator[F64 | None]:
        """For each text the weights (L,) of its tokens, 0 where nothing is scored; None weighs all alike."""
        for _ in texts:
            yield None

    def detect_batch(
        self,
        texts: Sequence[str],
        *,
        prompts: Sequence[str | None] | None = None,
        fpr: float = DEFAULT_FPR,
        test: str | None = None,
    ) -> list[Detection]:
        """Score completions; a prompt, where given, is context only."""
        test = check_test(test, self.tests)
        starts = check_texts(texts, prompts, fpr)
        tokenized = self.host.tokenizer.encode(list(texts))
        before = self.host.tokenizer.encode(starts)
        detections = []
        for part in _chunks(tokenized):
            found = self.evidence_for(test, tokenized[part], before[part])
            detections += [
                self.detection(text, evidence, test=test, fpr=fpr)
                for text, evidence in zip(tokenized[part], found, strict=True)
            ]
        return detections

    def evidence(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> list[Evidence]:
        """The scores of texts' distinct pairs, all looked up at once."""
        found = self.pairs(texts, prompts)
        if not found:
            return []
        scores = self.pair_scores(
            np.concatenate([pairs.contexts for pairs in found]),
            np.concatenate([pairs.tokens for pairs in found]),
        )
        cuts = np.cumsum([len(pairs) for pairs in found])[:-1]
        return [
            Evidence.independent(mine, pairs.weights, pairs.positions, variance=self.variance)
            for pairs, mine in zip(found, np.split(scores, cuts), strict=True)
        ]

    def evidence_for(
        self, test: str, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]
    ) -> list[Evidence]:
        """The evidence that one test works on: the same for all, unless a scheme's tests differ in it."""
        return self.evidence(texts, prompts)

    def pairs(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> list[Pairs]:
        """The distinct pairs of each text after its prompt."""
        weights = self.position_weights(texts, prompts)
        return [self._pairs(*each) for each in zip(texts, prompts, weights, strict=True)]

    def state(self) -> State:
        """The secret that the key gave this scheme. As secret as the key."""
        return State(meta={}, arrays={"secret": np.frombuffer(self._secret, dtype=np.uint8)})

    def detection(self, text: Tokenized, evidence: Evidence, *, test: str, fpr: float) -> Detection:
        """The verdict on one text."""
        statistic = self.statistic(evidence, test=test)
        shown = np.append(evidence.alignments, 0.0)[evidence.positions].tolist()
        pairs = evidence.positions.tolist()
        tokens = tuple(
            TokenScore(text=text.text[start:end], start=start, end=end, score=score, scored=pair >= 0)
            for (start, end), score, pair in zip(text.offsets, shown, pairs, strict=True)
        )
        weight = float(evidence.weights.sum())
        return Detection(
            verdict=decide(statistic.p_value, statistic.effective_length, fpr),
            p_value=statistic.p_value,
            z=statistic.z,
            score=evidence.total / weight if weight else 0.0,
            effective_length=statistic.effective_length,
            tokens_scored=int(np.count_nonzero(evidence.positions >= 0)),
            test=test,
            fpr=fpr,
            scheme=self.scheme.name,
            key_fingerprint=self.fingerprint,
            tokens=tokens,
        )

    def _pairs(self, text: Tokenized, prompt: Tokenized, weights: F64 | None) -> Pairs:
        h = self.width
        before = prompt.ids[-h:] if h else ()
        windows = windows_of(before + text.ids, k=h, host=self.host)[len(before) :]
        tokens = np.array(text.ids, dtype=np.int64)
        scored = np.append(self.markable, False)[np.minimum(tokens, len(self.markable))]
        if not before:
            scored[:h] = False  # without the prompt the first h contexts are not the ones that were marked
        if weights is None:
            weights = np.ones(len(tokens))
        scored &= weights > 0.0
        rows = np.column_stack((self.reduce(windows[scored], tokens[scored]), tokens[scored]))
        distinct, inverse, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
        positions = np.full(len(tokens), -1, dtype=np.int64)
        positions[scored] = inverse
        mean = np.bincount(inverse, weights=weights[scored], minlength=len(distinct)) / counts
        return Pairs(distinct[:, :-1], distinct[:, -1], mean, positions)


def markable_ids(host: HostInfo) -> Mask:
    """Which ids of the vocabulary, (vocab_size,), stand for text: not special, known to the tokenizer."""
    ids = np.zeros(host.vocab_size, dtype=bool)
    ids[: host.tokenizer.size] = True
    ids[[i for i in host.tokenizer.special_ids if i < host.vocab_size]] = False
    return ids


def stored_secret(state: State) -> bytes:
    """The secret that a stored detector holds."""
    try:
        secret = np.asarray(state.arrays["secret"], dtype=np.uint8).tobytes()
    except KeyError as missing:
        raise ArtifactError(f"the stored detector lacks {missing}; export it again") from None
    if len(secret) != SECRET_BYTES:
        raise ArtifactError(f"the stored detector's secret has {len(secret)} bytes; export it again")
    return secret


def _chunks(texts: Sequence[Tokenized]) -> Iterator[slice]:
    """Runs of about `_TOKENS_PER_CHUNK` tokens, so that memory does not grow with the batch."""
    start = size = 0
    for i, text in enumerate(texts):
        if size and size + len(text.ids) > _TOKENS_PER_CHUNK:
            yield slice(start, i)
            start, size = i, 0
        size += len(text.ids)
    if start < len(texts):
        yield slice(start, len(texts))
