"""The base for schemes that read the marks which serving engines write by themselves.

An engine has its own hash, its own kind of key (whole numbers) and its own rule for the first tokens. A
scheme here repeats these bit for bit, so that a text which the engine marked is found with the engine's own
key, and reports what every other scheme reports: p-values, passages, several keys, an audit.

- `EngineScheme` takes the numbers from a key (`Key.of_numbers`). Any other key works too: the numbers are
  then derived from it, which is how a provider should choose them.
- `EngineBound` splits a text into (context, token) pairs of raw token ids and tests each distinct pair once.
  Special ids stay what they are, as in the engines.
- `philox` is Philox4x32-10 (Salmon et al. 2011), a keyed bijection of four 32-bit words, as engines use it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F64, I64
from dewmark.core.keys import Key, KeyStream
from dewmark.errors import ArtifactError, KeyFileError
from dewmark.mark import Session
from dewmark.sampling import check_logits, fresh_seeds, left_padding
from dewmark.scheme import BoundScheme, Reading, Scheme, State
from dewmark.stats.evidence import Evidence
from dewmark.types import Seeds
from dewmark.workspace import HostInfo, Tokenized, Workspace

_STRIDE = 64
_FEW = 8  # a support smaller than an eighth of the vocabulary is worth extracting

Words = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]
"""Four words of 32 bits each, kept in uint64 so that a product of two fits."""

ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


class EngineScheme(Scheme):
    """The configuration of such a scheme. ``key_bits`` bounds each number of the engine's key."""

    key_bits: ClassVar[int] = 64
    key_length: ClassVar[int] = 1
    """How many numbers are derived from a key that is not the engine's own."""
    most_numbers: ClassVar[int] = 1
    bound: ClassVar[type[EngineBound]]

    def numbers_of(self, key: Key) -> tuple[int, ...]:
        """The engine's key: the key's own numbers, or numbers derived from it."""
        if key.numbers is None:
            shift = np.uint64(64 - self.key_bits)
            words = KeyStream(key.subkey(f"{self.name}/key")).words(self.key_length) >> shift
            return tuple(words.tolist())
        if max(key.numbers) >> self.key_bits:
            raise KeyFileError(f"the key of {self.name} must fit in {self.key_bits} bits")
        if (given := len(key.numbers)) > self.most_numbers:
            allowed = "one number" if self.most_numbers == 1 else f"at most {self.most_numbers} numbers"
            raise KeyFileError(f"the key of {self.name} is {allowed}, got {given} numbers")
        return key.numbers

    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> EngineBound:
        return self.bound(self, host, key.fingerprint, self.numbers_of(key))

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> EngineBound:
        numbers = tuple(np.asarray(state.arrays["numbers"], dtype=np.uint64).tolist())
        if not numbers:
            raise ArtifactError("the stored detector has no key; export it again")
        return self.bound(self, host, fingerprint, numbers)


class EngineBound(BoundScheme):
    """Such a scheme, bound to the numbers of an engine's key.

    Subclasses set ``width``, the number of ids before a token that the engine hashes, and ``variance``, of
    one pair's score over keys, in `prepare`. ``filler`` is the id before the first one.
    """

    reads_prompt: ClassVar[bool] = False
    """Whether the engine hashes the prompt too."""
    filler: ClassVar[int] = 0
    width: int
    variance: float = 1.0

    def __init__(self, scheme: Scheme, host: HostInfo, fingerprint: str, numbers: tuple[int, ...]) -> None:
        super().__init__(scheme, host, fingerprint)
        self.numbers = numbers
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Derive from numbers and settings what marking and testing need."""

    @abstractmethod
    def open_session(self, windows: IdWindows, seeds: Sequence[int]) -> Session:
        """A session whose contexts ``windows`` cuts, with a seed for each row."""

    @abstractmethod
    def scored(self, contexts: I64, tokens: I64, before: int) -> I64:
        """The positions (M,) that are scored, in order, of tokens (L,) in contexts (L, width).

        ``before`` is the number of ids that are known before the first token.
        """

    @abstractmethod
    def pair_scores(self, contexts: I64, tokens: I64) -> F64:
        """Scores (N,) of contexts (N, width) and tokens (N,): mean 0 over keys, larger if marked."""

    def session(
        self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *, seeds: Seeds = None
    ) -> Session:
        start: int | torch.Tensor = prompt_ids.shape[1]
        if self.reads_prompt:
            start = left_padding(prompt_ids, attention_mask, pad_id=self.host.tokenizer.pad_id)
        size = self.host.vocab_size
        windows = IdWindows(vocab_size=size, width=self.width, filler=self.filler, start=start)
        return self.open_session(windows, fresh_seeds(len(prompt_ids), seeds))

    def evidence(self, readings: Sequence[Reading], *, test: str | None = None) -> list[Evidence]:
        """The scores of the texts' scored tokens."""
        return [self._evidence(each.text, each.prompt) for each in readings]

    def _evidence(self, text: Tokenized, prompt: Tokenized) -> Evidence:
        before, tokens = prompt.ids if self.reads_prompt else (), np.array(text.ids, dtype=np.int64)
        contexts = id_windows(before, text.ids, width=self.width, filler=self.filler)
        scored = self.scored(contexts, tokens, len(before))
        positions = np.full(len(tokens), -1, dtype=np.int64)
        positions[scored] = np.arange(len(scored))
        scores = self.pair_scores(contexts[scored], tokens[scored])
        return Evidence.independent(scores, np.ones(len(scored)), positions, variance=self.variance)

    def state(self) -> State:
        return State(meta={}, arrays={"numbers": np.array(self.numbers, dtype=np.uint64)})


def id_windows(before: Sequence[int], ids: Sequence[int], *, width: int, filler: int) -> I64:
    """The raw ids before each of ``ids`` (L, width), oldest first; ``filler`` where there is none."""
    head = [filler] * width + list(before)
    row = np.array(head[len(head) - width :] + list(ids), dtype=np.int64)
    return np.lib.stride_tricks.sliding_window_view(row, width)[: len(ids)]


def first_rows(rows: I64) -> I64:
    """The positions (M,) at which a row of (L, w) occurs for the first time, in order."""
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    return np.sort(np.unique(rows, axis=0, return_index=True)[1])


class IdWindows:
    """Cuts the last ``width`` raw ids of each row while a text is written.

    ``start`` is the number of ids that do not count, the prompt in engines that hash the answer alone, or the
    padding of each row (batch, 1) in those that hash the prompt too.
    """

    def __init__(self, *, vocab_size: int, width: int, filler: int, start: int | torch.Tensor) -> None:
        self._vocab_size, self._width, self._filler, self._start = vocab_size, width, filler, start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Check logits (batch, vocab) and return windows (batch, width) of ids (batch, length)."""
        check_logits(scores, self._vocab_size)
        first = max(input_ids.shape[1] - self._width, 0)
        window = input_ids[:, first:]
        places = torch.arange(first, input_ids.shape[1], device=window.device)
        start = self._start.to(window.device) if isinstance(self._start, torch.Tensor) else self._start
        window = torch.where(places >= start, window, self._filler)
        missing = self._width - window.shape[1]
        return torch.nn.functional.pad(window, (missing, 0), value=self._filler) if missing else window


class RepeatedContexts:
    """Remembers the contexts of each row.

    ``memory`` is the number of steps for which a context counts as seen; None means the whole text.
    """

    def __init__(self, rows: int, *, memory: int | None = None) -> None:
        self._memory = memory
        self._last_seen: list[dict[tuple[int, ...], int]] = [{} for _ in range(rows)]
        self._step = 0

    def __call__(self, contexts: torch.Tensor) -> list[bool]:
        """Whether each row's context (batch, h) was seen before; remembers it."""
        self._step += 1
        repeated = []
        for seen, row in zip(self._last_seen, contexts.tolist(), strict=True):
            last = seen.get(context := tuple(row))
            repeated.append(last is not None and (self._memory is None or self._step - last <= self._memory))
            seen[context] = self._step
        return repeated


def support(scores: torch.Tensor) -> torch.Tensor | None:
    """Ids (batch, m) that include all tokens of finite logit (batch, vocab), if these are few; else None."""
    vocab = scores.shape[1]
    # a sample of tokens tells a full distribution from a truncated one
    if vocab < _STRIDE or float(torch.isfinite(scores[:, ::_STRIDE]).float().mean()) > 1.0 / _FEW:
        return None
    width = int(torch.isfinite(scores).sum(dim=1).max())
    return scores.topk(width, dim=1).indices if 0 < width <= vocab // _FEW else None


def philox(counter: Words, key: tuple[NDArray[np.uint64], NDArray[np.uint64]]) -> Words:
    """The output words of counters under keys; all shapes broadcast."""
    a, b, c, d = counter
    for i in range(ROUNDS):
        k0, k1 = ((k + np.uint64(i * step)) & _MASK for k, step in zip(key, _KEY_STEPS, strict=True))
        left, right = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (right >> _HALF) ^ b ^ k0, right & _MASK, (left >> _HALF) ^ d ^ k1, left & _MASK
    return a, b, c, d
