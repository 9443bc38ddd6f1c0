"""Marking, one call per generation step for all rows at once: Algorithm 1 (bias), or keyed Gumbel sampling.

The Gumbel sampler takes the noise of Gumbel-max sampling partly from the key. Over keys u is standard normal,
so with fresh r ~ N(0, 1) the mixture x = √α u + √(1−α) r is too, E = −log Φ(x) is Exp(1), and the token with
the largest p_i/E_i is, averaged over keys, a draw from p. α is the share of the randomness that is keyed:
with α = 0 the text is the unmarked one of the same seed.

DEW for engines: any rows of a batch marked together, whatever their prompts, steps, seeds and settings.

A row keeps what the next step needs of its text: the last k ids, or its words. A step gathers that, and one
batched call does the rest, as in `dewmark.dew.marking`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dewmark.cuda.bias_step import can_fuse
from dewmark.decoding import Decoding
from dewmark.dew.alignment import Channel, TokenChannel, WordReading, WordRow, likely_of
from dewmark.dew.reading import TokenReader, WordReader
from dewmark.errors import NumericalError, VocabularyError
from dewmark.sampling import (
    Field,
    RandomStreams,
    Row,
    Rows,
    drawn_seeds,
    likeliest,
    race,
    token_uniforms,
)
from dewmark.scheme import Session

if TYPE_CHECKING:
    from dewmark.dew.scheme import DEW, BoundDEW

__all__ = ["BiasSession", "DewRows", "GumbelSession"]


class DewSession(Session):
    """What both samplers share."""

    def __init__(self, scheme: DEW, channel: Channel, *, vocab_size: int) -> None:
        self._scheme = scheme
        self._channel = channel
        self._vocab_size = vocab_size

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) to marked logits, same shape."""
        if scores.shape[1] != self._vocab_size:
            raise VocabularyError(
                f"the host gives {scores.shape[1]} logits, the watermark was made for {self._vocab_size}"
            )
        if scores.device.type == "cpu" and bool(torch.isnan(scores).any()):
            raise NumericalError("the host's logits hold NaN; load it in float32 or check its weights")
        return self._mark(input_ids.to(scores.device), scores)

    def ahead(self, input_ids: torch.Tensor) -> None:
        """Begin to read the contexts at the end of input_ids (batch, length)."""
        self._channel.ahead(input_ids)

    @abstractmethod
    def _mark(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Mark logits (batch, vocab) of the token after ids (batch, length)."""


class BiasSession(DewSession):
    """Adds b = λ tanh(γu) to the candidates of each row (Algorithm 1)."""

    def _mark(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if isinstance(self._channel, TokenChannel) and can_fuse(self._scheme, scores.device):
            return self._channel.biased(ids, scores)
        candidates, kept = self._candidates(scores)
        u = self._channel.alignments(ids, candidates, scores)
        bias = self._scheme.lambda_ * torch.tanh(self._scheme.gamma * u)
        if kept is not None:
            bias = bias * kept
        return scores.scatter_add(1, candidates, bias.to(scores.dtype))

    def _candidates(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Candidate ids (batch, m) and, for a nucleus, which of them belong to it (batch, m)."""
        if self._scheme.nucleus is None:
            return scores.topk(min(self._scheme.candidates, scores.shape[1]), dim=-1).indices, None
        probabilities, order = scores.float().softmax(dim=-1).sort(dim=-1, descending=True)
        before = probabilities.cumsum(dim=-1) - probabilities
        inside = before < self._scheme.nucleus
        width = int(inside.sum(dim=-1).max())
        return order[:, :width], inside[:, :width]


class GumbelSession(DewSession):
    """Chooses each row's token by a race whose noise is partly the key's; leaves only it finite."""

    def __init__(
        self,
        scheme: DEW,
        channel: Channel,
        *,
        vocab_size: int,
        prompt_ids: torch.Tensor,
        seeds: Sequence[int] | None,
    ) -> None:
        super().__init__(scheme, channel, vocab_size=vocab_size)
        self._noise = RandomStreams(drawn_seeds(len(prompt_ids), seeds), device=prompt_ids.device)
        self._start = prompt_ids.shape[1]

    def _mark(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        candidates = scores.topk(min(self._scheme.candidates, scores.shape[1]), dim=-1).indices
        u = self._channel.alignments(ids, candidates, scores).to(self._noise.device, torch.float64)
        if self._scheme.fresh_on_repeat:
            u = u.masked_fill(self._channel.repeated(ids).to(u.device), 0.0)
        uniforms = self._noise.uniforms(ids.shape[1] - self._start, scores.shape[1])
        chosen = candidates.to(u.device)
        keyed = math.sqrt(self._scheme.alpha) * u + math.sqrt(1.0 - self._scheme.alpha) * torch.special.ndtri(
            uniforms.gather(1, chosen)
        )
        race_numbers = uniforms.log().neg_()
        scored = u != 0.0  # an exact 0 is a token or context without a mark: its noise stays fresh
        race_numbers.scatter_(
            1, chosen, torch.where(scored, -torch.special.log_ndtr(keyed), race_numbers.gather(1, chosen))
        )
        winner, _ = race(scores.to(race_numbers.device, torch.float64), race_numbers.clamp_min_(1e-300))
        only = torch.full_like(scores, -math.inf)
        best = scores.amax(dim=-1, keepdim=True)  # NaN and an empty row stay visible to the host
        return only.scatter(1, winner.to(scores.device).unsqueeze(1), best)


_CPU = torch.device("cpu")

# ids at a prompt's end that hold the words of any context; the whole batch waits while they are read
_PROMPT = 512


class DewRow(Row):
    """A text that DEW marks: its ids as far as they were read, and its random numbers."""

    def __init__(
        self, reader: _Reader, prompt: Sequence[int], written: Sequence[int], *, seed: int, decoding: Decoding
    ) -> None:
        super().__init__(prompt, written, seed=seed, decoding=decoding)
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

    def open(self, prompt: Sequence[int], written: Sequence[int], *, seed: int, decoding: Decoding) -> DewRow:
        """Begin to follow a text."""
        return DewRow(self._reader, prompt, written, seed=seed, decoding=decoding)

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
        """Keyed Gumbel sampling (`dewmark.dew.marking`): only the chosen token stays finite."""
        field = Field(scores, [row.decoding for row in rows], self._scheme.candidates)
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
