"""Marking: Algorithm 1 (a bias), or keyed Gumbel sampling, for sessions and for rows of serving engines.

The Gumbel sampler takes the noise of Gumbel-max sampling partly from the key. Over keys u is standard normal,
so with fresh r ~ N(0, 1) the mixture x = √α u + √(1−α) r is too, E = −log Φ(x) is Exp(1), and the token with
the largest p_i / E_i is, averaged over keys, a draw from p. α is the share of the randomness that is keyed:
as α → 0 the text becomes the unmarked one of the same seed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from dewmark.decoding import Decoding
from dewmark.dew.alignment import (
    Batch,
    Texts,
    TokenAligner,
    TokenText,
    TokenTexts,
    WordAligner,
    WordText,
    WordTexts,
    token_texts,
)
from dewmark.dew.settings import DewSettings
from dewmark.sampling import (
    CandidateRace,
    Choice,
    ChoosingSession,
    RandomStreams,
    Row,
    Rows,
    Session,
    check_logits,
    fresh_seeds,
    likeliest,
    one_hot_logits,
    token_uniforms,
)

__all__ = ["BiasSession", "DewRows", "GumbelSession", "add_bias", "choose", "keyed_exponentials"]

_CPU = torch.device("cpu")
# ids at a prompt's end that hold the words of any context; the whole batch waits while they are read
_PROMPT = 512


# The two steps


def add_bias(scores: torch.Tensor, texts: Texts, settings: DewSettings) -> torch.Tensor:
    """Algorithm 1: logits (batch, vocab) plus b = λ tanh(γu) on each row's candidates."""
    if isinstance(texts, TokenTexts):
        fused = texts.biased(scores)
        if fused is not None:
            return fused
    values, candidates, kept = _candidates(scores, settings)
    u = texts.alignments(candidates, values, scores.logsumexp(dim=-1, keepdim=True))
    bias = settings.lambda_ * torch.tanh(settings.gamma * u)
    bias = bias.masked_fill(~kept, 0.0)
    return scores.scatter_add(1, candidates, bias.to(scores.dtype))


def _candidates(
    scores: torch.Tensor, settings: DewSettings
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits and ids of the candidates (batch, m), and which of them get the bias (batch, m)."""
    if settings.nucleus is None:
        values, candidates = likeliest(scores, settings.candidates)
        return values, candidates, values != -math.inf  # ids of value -inf may be listed twice
    probabilities, order = scores.float().softmax(dim=-1).sort(dim=-1, descending=True)
    inside = probabilities.cumsum(dim=-1) - probabilities < settings.nucleus
    width = int(inside.sum(dim=-1).max())
    candidates = order[:, :width]
    return scores.gather(1, candidates), candidates, inside[:, :width]


def choose(
    scores: torch.Tensor,
    texts: Texts,
    settings: DewSettings,
    decodings: Sequence[Decoding],
    states: torch.Tensor,
) -> Choice:
    """Keyed Gumbel sampling from the host's logits (batch, vocab), each row under its own decoding.

    ``states`` (batch, 1) are the rows' random states at this step (`RandomStreams.states`).
    """
    race = CandidateRace(scores, decodings, settings.candidates)
    u = texts.alignments(race.candidates, race.values, race.log_totals).double()
    if settings.fresh_on_repeat:
        u = u.masked_fill(texts.repeated(), 0.0)
    uniforms = token_uniforms(states, race.candidates)
    return race.winners(keyed_exponentials(u, uniforms, alpha=settings.keyed_share), states)


def keyed_exponentials(u: torch.Tensor, uniforms: torch.Tensor, *, alpha: float) -> torch.Tensor:
    """E = −log Φ(√α u + √(1−α) Φ⁻¹(uniforms)), all (batch, m) float64: Exp(1) over keys and seeds.

    Where u is exactly 0, the candidate or its context carries no mark and the noise stays fresh:
    −log(uniforms).
    """
    keyed = math.sqrt(alpha) * u + math.sqrt(1.0 - alpha) * torch.special.ndtri(uniforms)
    numbers = torch.where(u != 0.0, -torch.special.log_ndtr(keyed), -uniforms.log())
    return numbers.clamp_min_(1e-300)


# Sessions: a batch of fixed rows


class BiasSession(Session):
    """Adds the bias of Algorithm 1."""

    def __init__(self, settings: DewSettings, batch: Batch, *, vocab_size: int) -> None:
        self._settings = settings
        self._batch = batch
        self._vocab_size = vocab_size

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) to marked logits, same shape."""
        check_logits(scores, self._vocab_size)
        return add_bias(scores, self._batch.texts(input_ids.to(scores.device)), self._settings)

    def ahead(self, input_ids: torch.Tensor) -> None:
        """Start reading the contexts at the end of input_ids (batch, length)."""
        self._batch.ahead(input_ids)


class GumbelSession(ChoosingSession):
    """Draws each row's token by a race whose noise comes partly from the key."""

    def __init__(
        self,
        settings: DewSettings,
        batch: Batch,
        *,
        vocab_size: int,
        prompt_ids: torch.Tensor,
        seeds: Sequence[int] | None,
    ) -> None:
        self._settings = settings
        self._batch = batch
        self._vocab_size = vocab_size
        self._noise = RandomStreams(fresh_seeds(len(prompt_ids), seeds), device=prompt_ids.device)
        self._start = prompt_ids.shape[1]

    def choose(self, input_ids: torch.Tensor, scores: torch.Tensor, decoding: Decoding) -> Choice:
        """Draw the next id of each row from logits (batch, vocab)."""
        check_logits(scores, self._vocab_size)
        states = self._noise.states(input_ids.shape[1] - self._start)
        scores = scores.to(states.device, torch.float32)
        texts = self._batch.texts(input_ids.to(states.device))
        return choose(scores, texts, self._settings, [decoding] * len(scores), states)

    def ahead(self, input_ids: torch.Tensor) -> None:
        """Start reading the contexts at the end of input_ids (batch, length)."""
        self._batch.ahead(input_ids)


# Rows of serving engines: a batch that changes from step to step


class _Followed(ABC):
    """Follows single texts as tokens or as words."""

    @abstractmethod
    def begin(self, prompt: Sequence[int]) -> TokenText | WordText:
        """Start following a text."""

    @abstractmethod
    def texts(self, rows: Sequence[DewRow]) -> Texts:
        """These rows as the texts of one step."""


class _FollowedTokens(_Followed):
    def __init__(self, aligner: TokenAligner) -> None:
        self._aligner = aligner

    def begin(self, prompt: Sequence[int]) -> TokenText:
        return TokenText(prompt, k=self._aligner.k)

    def texts(self, rows: Sequence[DewRow]) -> TokenTexts:
        return token_texts(self._aligner, [row.text for row in rows if isinstance(row.text, TokenText)])


class _FollowedWords(_Followed):
    def __init__(self, aligner: WordAligner) -> None:
        self._aligner = aligner

    def begin(self, prompt: Sequence[int]) -> WordText:
        return self._aligner.begin(prompt[-_PROMPT:])

    def texts(self, rows: Sequence[DewRow]) -> WordTexts:
        return WordTexts(self._aligner, [row.text for row in rows if isinstance(row.text, WordText)])


class DewRow(Row):
    """A text in an engine: how far it has been read, and its random numbers."""

    def __init__(
        self,
        followed: _Followed,
        prompt: Sequence[int],
        written: Sequence[int],
        *,
        seed: int,
        decoding: Decoding,
    ) -> None:
        super().__init__(prompt, written, seed=seed, decoding=decoding)
        self._followed = followed
        self._read = 0
        self.text = followed.begin(prompt)
        self.noise = RandomStreams([seed], device=_CPU)

    def catch_up(self) -> None:
        """Read what was written since the last step."""
        if len(self.written) < self._read:  # the engine took tokens back
            self.text, self._read = self._followed.begin(self.prompt), 0
        for token in self.written[self._read :]:
            self.text.push(token)
        self._read = len(self.written)


class DewRows(Rows):
    """Marks rows of different prompts, steps, seeds and decoding options together."""

    def __init__(
        self, settings: DewSettings, aligner: TokenAligner | WordAligner, *, vocab_size: int
    ) -> None:
        self._settings = settings
        self._vocab_size = vocab_size
        self._followed = (
            _FollowedWords(aligner) if isinstance(aligner, WordAligner) else _FollowedTokens(aligner)
        )

    def open(self, prompt: Sequence[int], written: Sequence[int], *, seed: int, decoding: Decoding) -> DewRow:
        """Start following a text."""
        return DewRow(self._followed, prompt, written, seed=seed, decoding=decoding)

    def mark(self, rows: Sequence[Row], scores: torch.Tensor) -> torch.Tensor:
        """Logits (rows, vocab) float32 to marked ones, same shape."""
        check_logits(scores, self._vocab_size)
        mine = [row for row in rows if isinstance(row, DewRow)]
        assert len(mine) == len(scores)
        for row in mine:
            row.catch_up()
        texts = self._followed.texts(mine)
        if self._settings.sampler == "bias":
            return add_bias(scores, texts, self._settings)
        states = torch.cat([row.noise.states(len(row.written)) for row in mine]).to(scores.device)
        decodings = [row.decoding for row in mine]
        return one_hot_logits(scores, choose(scores, texts, self._settings, decodings, states))
