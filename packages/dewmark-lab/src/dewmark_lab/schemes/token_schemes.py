"""The base for schemes that mark a token by its id and the h ids before it.

A scheme built on this module adds three things: the score of a (context, token) pair, the test of a text's
scores, and a session that changes the logits. It inherits the rest:

- `TokenScheme` derives a secret from a key, or takes it from a stored detector;
- `TokenBound` splits texts into distinct pairs and tests them. Over random keys, two occurrences of a pair
  have the same score, so a pair counts once however often it occurs; the scores of different pairs are
  independent;
- `TokenSession` checks the host's logits and cuts each row's window of h ids (`TokenWindows`). Padding and
  special tokens become `ABSENT`, in marking as in detection.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F64, I64
from dewmark.core.keys import Key
from dewmark.errors import ArtifactError
from dewmark.mark import Session
from dewmark.sampling import check_logits, left_padding
from dewmark.scheme import BoundScheme, Reading, Scheme, State
from dewmark.splitmix import GOLDEN
from dewmark.stats.evidence import Evidence
from dewmark.text.windows import ABSENT, windows_of
from dewmark.types import Seeds
from dewmark.workspace import HostInfo, Texts, Tokenized, Workspace
from dewmark_lab.schemes.pair_hash import SECRET_BYTES, PairHash, VocabularyHash


class TokenScheme(Scheme):
    """The configuration of such a scheme. All it takes from a key is one secret; bound, it is a ``bound``."""

    bound: ClassVar[type[TokenBound]]

    def bind_secret(
        self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace
    ) -> TokenBound:
        """Bind the scheme to a 32-byte secret and a host's vocabulary."""
        return self.bound(self, host, fingerprint, secret=secret, workspace=workspace)

    def secret_of(self, key: Key) -> bytes:
        """The secret that this scheme derives from a key."""
        return key.subkey(f"{self.name}/pairs")

    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> TokenBound:
        return self.bind_secret(self.secret_of(key), host, key.fingerprint, workspace)

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> TokenBound:
        return self.bind_secret(secret_of(state), host, fingerprint, workspace)


@dataclass(frozen=True)
class TokenPairs:
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

    @property
    def labels(self) -> I64:
        """A number for each pair (N,), the same for the same pair in every text."""
        code = _scrambled(self.tokens.astype(np.uint64))
        for column in self.contexts.T.astype(np.uint64):
            code = _scrambled(code ^ column)
        return code.view(np.int64)

    @property
    def places(self) -> I64:
        """Where in the text each pair occurs, (N,); only for pairs that occur once."""
        scored = np.flatnonzero(self.positions >= 0)
        return scored[np.argsort(self.positions[scored])]


def _scrambled(code: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit numbers that spreads small differences over all bits."""
    code = code * np.uint64(GOLDEN)
    return np.asarray(code ^ (code >> np.uint64(32)))


@dataclass(frozen=True, eq=False)
class PromptBatch:
    """The prompts that a session continues: ids (batch, length), padded on the left; ``width`` is h."""

    host: HostInfo
    width: int
    ids: torch.Tensor
    attention_mask: torch.Tensor | None
    seeds: Seeds

    def __len__(self) -> int:
        return len(self.ids)


class TokenBound(BoundScheme):
    """A scheme bound to its secret and a host's vocabulary.

    Subclasses set ``width`` (h) and ``variance`` (of one pair's score over keys), as class attributes or in
    `prepare`, and implement `start_session` and `pair_scores`, and `test` unless the key test will do.
    """

    width: int
    variance: float = 1.0

    def __init__(
        self,
        scheme: Scheme,
        host: HostInfo,
        fingerprint: str,
        *,
        secret: bytes,
        workspace: Workspace | None = None,
    ) -> None:
        super().__init__(scheme, host, fingerprint)
        self._secret = secret
        self.pair_hash = PairHash(secret, self.hashed)
        if workspace is not None:
            self.prepare(workspace)

    def prepare(self, workspace: Workspace) -> None:
        """Derive from secret and settings what marking and testing need."""

    @property
    def hashed(self) -> int:
        """The number of values that the pair hash tells apart: by default the ids of the vocabulary."""
        return self.host.vocab_size

    @abstractmethod
    def start_session(self, prompts: PromptBatch) -> Session:
        """Start marking a batch of prompts."""

    @abstractmethod
    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """Score pairs of contexts (N, w), as `contexts_of` gives them, and tokens (N,): scores (N,).

        Over keys they have mean 0; a larger score is more evidence of the mark.
        """

    def contexts_of(self, windows: I64, tokens: I64) -> I64:
        """The part of the windows (N, h) before tokens (N,) that the score depends on, (N, w): all."""
        return windows

    @functools.cached_property
    def vocabulary_hash(self) -> VocabularyHash:
        """The pair hash over the whole vocabulary, which all sessions share."""
        return VocabularyHash(self.pair_hash)

    def session(
        self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *, seeds: Seeds = None
    ) -> Session:
        return self.start_session(PromptBatch(self.host, self.width, prompt_ids, attention_mask, seeds))

    def position_weights(self, texts: Texts, prompts: Texts) -> Iterator[F64 | None]:
        """Weights (L,) of each text's tokens, 0 where a token is not scored; None weights all alike."""
        for _ in texts:
            yield None

    def evidence(self, readings: Sequence[Reading], *, test: str | None = None) -> list[Evidence]:
        return self.evidence_of([each.text for each in readings], [each.prompt for each in readings], test)

    def evidence_of(self, texts: Texts, prompts: Texts, test: str | None) -> list[Evidence]:
        """The evidence for a test: the scores of the texts' distinct pairs, computed in one call."""
        found = self.pairs(texts, prompts)
        if not found:
            return []
        scores = self.pair_scores(
            np.concatenate([pairs.contexts for pairs in found]),
            np.concatenate([pairs.tokens for pairs in found]),
        )
        cuts = np.cumsum([len(pairs) for pairs in found])[:-1]
        return [
            Evidence.independent(
                mine, pairs.weights, pairs.positions, variance=self.variance, labels=pairs.labels
            )
            for pairs, mine in zip(found, np.split(scores, cuts), strict=True)
        ]

    def pairs(self, texts: Texts, prompts: Texts) -> list[TokenPairs]:
        """The distinct pairs of each text after its prompt."""
        weights = self.position_weights(texts, prompts)
        return [self.pairs_of(*each) for each in zip(texts, prompts, weights, strict=True)]

    def pairs_of(self, text: Tokenized, prompt: Tokenized, weights: F64 | None = None) -> TokenPairs:
        """The distinct pairs of one text after its prompt; tokens of weight (L,) 0 are not scored."""
        windows, tokens = self.windows(text, prompt), np.array(text.ids, dtype=np.int64)
        scored = self.scorable(tokens)
        if not prompt.ids:
            scored[: self.width] = False  # their contexts began in the prompt, which is not known
        if weights is None:
            weights = np.ones(len(tokens))
        scored &= weights > 0.0
        rows = np.column_stack((self.contexts_of(windows[scored], tokens[scored]), tokens[scored]))
        distinct, inverse, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
        positions = np.full(len(tokens), -1, dtype=np.int64)
        positions[scored] = inverse
        mean = np.bincount(inverse, weights=weights[scored], minlength=len(distinct)) / counts
        return TokenPairs(distinct[:, :-1], distinct[:, -1], mean, positions)

    def windows(self, text: Tokenized, prompt: Tokenized) -> I64:
        """The h ids before each token of a text, (L, h), `ABSENT` where there is none."""
        before = prompt.ids[-self.width :] if self.width else ()
        return windows_of(before + text.ids, k=self.width, host=self.host)[len(before) :]

    def scorable(self, tokens: I64) -> NDArray[np.bool_]:
        """Whether each id (L,) is in the vocabulary and stands for text."""
        markable = self.host.markable
        return np.append(markable, False)[np.minimum(tokens, len(markable))]

    def state(self) -> State:
        """The secret derived from the key. As secret as the key."""
        return State(meta={}, arrays={"secret": np.frombuffer(self._secret, dtype=np.uint8)})


class TokenWindows:
    """Cuts the window of h ids before the next token of each row; padding and special tokens are `ABSENT`."""

    def __init__(self, prompts: PromptBatch) -> None:
        tokenizer = prompts.host.tokenizer
        self._width = prompts.width
        self._vocab_size = prompts.host.vocab_size
        self._special = torch.zeros(self._vocab_size, dtype=torch.bool)
        self._special[[i for i in tokenizer.special_ids if i < self._vocab_size]] = True
        self._padding = left_padding(prompts.ids, prompts.attention_mask, pad_id=tokenizer.pad_id)
        self._most_padding = int(self._padding.max()) if len(prompts) else 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Check logits (batch, vocab), and return the last h ids of each row (batch, h) on their device."""
        check_logits(scores, self._vocab_size)
        if self._special.device != scores.device:
            self._special = self._special.to(scores.device)
            self._padding = self._padding.to(scores.device)
        h, length = self._width, input_ids.shape[1]
        first = max(length - h, 0)
        window = input_ids[:, first:].to(scores.device)
        window = window.masked_fill(self._special[window], ABSENT)
        if first < self._most_padding:
            at = torch.arange(first, length, device=scores.device).unsqueeze(0)
            window = window.masked_fill(at < self._padding, ABSENT)
        return torch.nn.functional.pad(window, (h - length, 0), value=ABSENT) if length < h else window


class TokenSession(Session):
    """Marks one batch of texts under a bound scheme; subclasses may keep more than where each text begins."""

    def __init__(self, prompts: PromptBatch, bound: TokenBound) -> None:
        self._windows = TokenWindows(prompts)
        self._markable = torch.from_numpy(prompts.host.markable)
        self._hash = bound.vocabulary_hash

    @abstractmethod
    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Windows (batch, h) int64 and logits (batch, vocab), on one device, to marked logits, same shape."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) to marked logits, same shape."""
        windows = self._windows(input_ids, scores)
        if self._markable.device != scores.device:
            self._markable = self._markable.to(scores.device)
        return self.mark(windows, scores)


def secret_of(state: State) -> bytes:
    """The secret in a stored detector."""
    secret = np.asarray(state.arrays["secret"], dtype=np.uint8).tobytes()
    if len(secret) != SECRET_BYTES:
        raise ArtifactError(f"the stored detector's secret has {len(secret)} bytes; export it again")
    return secret
