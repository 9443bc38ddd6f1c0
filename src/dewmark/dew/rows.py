"""DEW for engines: any rows of a batch marked together, whatever their prompts, steps, seeds and settings.

A row keeps what the next step needs of its text: the last k ids, or its words. A step gathers that, and one
batched call does the rest, as in `dewmark.dew.session`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dewmark.dew.channels import TokenChannel
from dewmark.dew.draws import Field, likeliest
from dewmark.dew.hot import can_fuse
from dewmark.dew.reading import TokenReader
from dewmark.dew.word_channel import WordReading, WordRow, likely_of
from dewmark.dew.words import WordReader
from dewmark.errors import VocabularyError
from dewmark.rows import Row, Rows, Warping
from dewmark.sampling import RandomStreams, token_uniforms

if TYPE_CHECKING:
    from dewmark.dew.bound import BoundDEW

__all__ = ["DewRows"]

_CPU = torch.device("cpu")
# ids at a prompt's end that hold the words of any context; the whole batch waits while they are read
_PROMPT = 512


class DewRow(Row):
    """A text that DEW marks: its ids as far as they were read, and its random numbers."""

    def __init__(
        self, reader: _Reader, prompt: Sequence[int], written: Sequence[int], *, seed: int, warping: Warping
    ) -> None:
        super().__init__(prompt, written, seed=seed, warping=warping)
        self._reader = reader
        self._read = 0
        self.text = reader.begin(prompt)
        self.noise = RandomStreams([seed], device=_CPU)

    def follow(self) -> None:
        """Read what was written since the last step."""
        if len(self.written) < self._read:  # the engine took tokens back
            self.text, self._read = self._reader.begin(self.prompt), 0
        for token in self.written[self._read :]:
            self.text.push(token)
        self._read = len(self.written)


class TokenText:
    """The last k ids of a text, and which k ids in a row it holds."""

    def __init__(self, prompt: Sequence[int], *, k: int) -> None:
        self._k = k
        self.tail: tuple[int, ...] = ()
        self._seen: set[tuple[int, ...]] = set()
        self.repeated = False
        for token in prompt:
            self.push(token)

    def push(self, token: int) -> None:
        """The text goes on with one token."""
        if len(self.tail) == self._k:
            self._seen.add(self.tail)
        self.tail = (*self.tail, token)[-self._k :]
        self.repeated = self.tail in self._seen


class _Reader(ABC):
    """Reads tokens or words."""

    @abstractmethod
    def begin(self, prompt: Sequence[int]) -> TokenText | WordRow:
        """Begin to read a text."""

    @abstractmethod
    def alignments(
        self, rows: Sequence[DewRow], values: torch.Tensor, candidates: torch.Tensor
    ) -> torch.Tensor:
        """u (batch, m) of the candidates (batch, m), whose logits are ``values``; 0 carries no mark."""


class _Tokens(_Reader):
    def __init__(self, bound: BoundDEW, reader: TokenReader, device: torch.device) -> None:
        self._channel = TokenChannel(
            bound, reader, torch.zeros((0, 0), dtype=torch.long, device=device), None
        )
        self._k = reader.k
        self._device = device

    def begin(self, prompt: Sequence[int]) -> TokenText:
        return TokenText(prompt, k=self._k)

    def alignments(
        self, rows: Sequence[DewRow], values: torch.Tensor, candidates: torch.Tensor
    ) -> torch.Tensor:
        return self._channel.of_windows(self._windows(rows), candidates)

    def biased(self, rows: Sequence[DewRow], scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with the bias added by one kernel, where `can_fuse` says so."""
        return self._channel.biased_after(self._windows(rows), scores)

    def _windows(self, rows: Sequence[DewRow]) -> torch.Tensor:
        """The rows' last k ids (batch, k)."""
        absent = (self._channel.absent,)
        tails = [row.text.tail for row in rows if isinstance(row.text, TokenText)]
        return torch.tensor([absent * (self._k - len(tail)) + tail for tail in tails]).to(self._device)


class _Words(_Reader):
    def __init__(self, bound: BoundDEW, reader: WordReader, device: torch.device) -> None:
        self._reading = WordReading(bound, reader, device)
        reader.vectors.load()  # seconds, which the requests of a running engine would wait

    def begin(self, prompt: Sequence[int]) -> WordRow:
        return self._reading.row(prompt[-_PROMPT:])

    def alignments(
        self, rows: Sequence[DewRow], values: torch.Tensor, candidates: torch.Tensor
    ) -> torch.Tensor:
        # of the candidates' own total: a pass over the vocabulary would cost more than a few words more
        likely = likely_of(values, values.logsumexp(dim=-1, keepdim=True))
        texts = [row.text for row in rows if isinstance(row.text, WordRow)]
        return self._reading.alignments(texts, candidates, likely)


class DewRows(Rows):
    """Marks rows of any steps together."""

    def __init__(self, bound: BoundDEW, device: torch.device) -> None:
        self._scheme = bound.scheme
        self._vocab_size = bound.host.vocab_size
        self._reader: _Reader
        if isinstance(bound.reader, WordReader):
            self._reader = _Words(bound, bound.reader, device)
        else:
            assert isinstance(bound.reader, TokenReader)
            self._reader = _Tokens(bound, bound.reader, device)

    def open(self, prompt: Sequence[int], written: Sequence[int], *, seed: int, warping: Warping) -> DewRow:
        """Begin to follow a text."""
        return DewRow(self._reader, prompt, written, seed=seed, warping=warping)

    def mark(self, rows: Sequence[Row], scores: torch.Tensor) -> torch.Tensor:
        """Logits (rows, vocab) float32 to marked ones, same shape."""
        if scores.shape[1] != self._vocab_size:
            raise VocabularyError(
                f"the host gives {scores.shape[1]} logits, the watermark was made for {self._vocab_size}"
            )
        mine = [row for row in rows if isinstance(row, DewRow)]
        assert len(mine) == len(scores)
        for row in mine:
            row.follow()
        return self._choose(mine, scores) if self._scheme.sampler == "gumbel" else self._bias(mine, scores)

    def _bias(self, rows: Sequence[DewRow], scores: torch.Tensor) -> torch.Tensor:
        """Algorithm 1: b = λ tanh(γu) on the likeliest candidates."""
        if isinstance(self._reader, _Tokens) and can_fuse(self._scheme, scores.device):
            return self._reader.biased(rows, scores)
        values, candidates = likeliest(scores, self._scheme.candidates)
        u = self._reader.alignments(rows, values, candidates)
        bias = self._scheme.lambda_ * torch.tanh(self._scheme.gamma * u)
        bias = bias.masked_fill(values == -math.inf, 0.0)  # they may be named twice
        return scores.scatter_add(1, candidates, bias.to(scores.dtype))

    def _choose(self, rows: Sequence[DewRow], scores: torch.Tensor) -> torch.Tensor:
        """Keyed Gumbel sampling (`dewmark.dew.session`): only the chosen token stays finite."""
        field = Field(scores, [row.warping for row in rows], self._scheme.candidates)
        u = self._reader.alignments(rows, field.values, field.candidates).double()
        if self._scheme.fresh_on_repeat:
            repeated = torch.tensor([row.text.repeated for row in rows]).to(u.device)
            u = u.masked_fill(repeated.unsqueeze(1), 0.0)
        states = torch.cat([row.noise.states(len(row.written)) for row in rows]).to(scores.device)
        uniforms = token_uniforms(states, field.candidates)
        alpha = self._scheme.alpha
        keyed = math.sqrt(alpha) * u + math.sqrt(1.0 - alpha) * torch.special.ndtri(uniforms)
        # an exact 0 is a token or context without a mark: its noise stays fresh
        numbers = torch.where(u != 0.0, -torch.special.log_ndtr(keyed), -uniforms.log())
        chosen = field.winners(numbers.clamp_min_(1e-300), states)
        only = torch.full_like(scores, -math.inf).scatter_(1, chosen.clamp(min=0), 0.0)
        # a row that leaves nothing to choose goes back as it came: the engine says so
        return only if bool((chosen >= 0).all()) else torch.where(chosen >= 0, only, scores)
