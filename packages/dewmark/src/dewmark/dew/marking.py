"""Marking: Algorithm 1 (a bias), or keyed Gumbel sampling, for sessions and for rows of serving engines.

The Gumbel sampler takes the noise of Gumbel-max sampling partly from the key. Over keys u is standard normal,
so with fresh r ~ N(0, 1) the mixture x = √α u + √(1−α) r is too, E = −log Φ(x) is Exp(1), and the token with
the largest p_i / E_i is, averaged over keys, a draw from p. α is the share of the randomness that is keyed:
as α → 0 the text becomes the unmarked one of the same seed.
"""

from __future__ import annotations

import functools
import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from dewmark.cuda.graphs import Replayed
from dewmark.cuda.word_race import MOST, Mixture, draw_words, without_kernels
from dewmark.decoding import Decoding
from dewmark.dew.alignment import (
    Batch,
    LexiconAligner,
    LexiconBatch,
    LexiconTexts,
    Texts,
    TokenAligner,
    TokenText,
    TokenTexts,
    WordAligner,
    WordText,
    WordTexts,
    token_texts,
)
from dewmark.dew.inverse_root import InverseRoot
from dewmark.dew.settings import DewSettings
from dewmark.dew.word_step import Aligned, WordStates, WordTables
from dewmark.sampling import (
    CandidateRace,
    Choice,
    ChoosingSession,
    RandomStreams,
    Session,
    check_logits,
    decoding_options,
    fresh_seeds,
    likeliest,
    one_hot_logits,
)
from dewmark.serving_rows import Row, Rows

_CPU = torch.device("cpu")
# ids at a prompt's end that hold the words of any context; the whole batch waits while they are read
_PROMPT = 512
_CALLED = 4  # steps before a session captures them, so that short texts do not pay for a capture
_SLOTS = 8  # texts that an engine's rows have room for at first


# The two steps


def add_bias(scores: torch.Tensor, texts: Texts, settings: DewSettings) -> torch.Tensor:
    """Algorithm 1: logits (batch, vocab) plus b = λ tanh(γu) on each row's candidates."""
    values, candidates, kept = _candidates(scores, settings)
    u = texts.alignments(candidates, values, scores.logsumexp(dim=-1, keepdim=True))
    bias = settings.strength * torch.tanh(settings.gamma * u)
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
    if isinstance(texts, LexiconTexts) and settings.candidates <= MOST and texts.aligner.tables.kernels:
        drawn = _checked_draw(scores, texts, settings, decodings, states)
        if drawn is not None:
            return drawn
    return _choose(scores, texts, settings, decodings, states)


_DRAWN: weakref.WeakSet[WordTables] = weakref.WeakSet()  # whose kernels have drawn what torch draws


def _checked_draw(
    scores: torch.Tensor,
    texts: LexiconTexts,
    settings: DewSettings,
    decodings: Sequence[Decoding],
    states: torch.Tensor,
) -> Choice | None:
    """Draw by the kernels; None if they fail at their first step here, or draw otherwise than torch."""
    tables = texts.aligner.tables
    new = tables not in _DRAWN and not (scores.is_cuda and torch.cuda.is_current_stream_capturing())
    try:
        drawn = draw_words(
            tables,
            texts.states.state,
            texts.W,
            scores,
            states,
            decoding_options(decodings, scores.device),
            filtered=any(decoding.filters for decoding in decodings),
            m=settings.candidates,
            mixture=_mixture(settings),
        )
        if new:
            expected, sound = _choose(scores, texts, settings, decodings, states)
            differ = int(((drawn[0] != expected) & sound).sum())
    except Exception as error:
        if not new:
            raise
        tables.kernels = without_kernels(error)
        return None
    if new and differ > len(scores) // 32:  # rounding may decide a race now and then
        tables.kernels = without_kernels(f"{differ} of {len(scores)} tokens were drawn differently")
        return None
    _DRAWN.add(tables)
    return drawn


def _choose(
    scores: torch.Tensor,
    texts: Texts,
    settings: DewSettings,
    decodings: Sequence[Decoding],
    states: torch.Tensor,
) -> Choice:
    """`choose` in torch."""
    race = CandidateRace(scores, decodings, settings.candidates)
    uniforms = race.uniforms(states)
    if isinstance(texts, LexiconTexts):
        aligned = texts.align(race.candidates)
        u = aligned.u
        numbers = decorrelated_exponentials(texts, aligned, uniforms, settings)
    else:
        u = texts.alignments(race.candidates, race.values, race.log_totals).double()
        if settings.fresh_on_repeat:
            u = u.masked_fill(texts.repeated(), 0.0)
        numbers = keyed_exponentials(u, uniforms, alpha=settings.keyed_share)
    if settings.strength:
        race.values = race.values + settings.strength * torch.tanh(settings.gamma * u).to(race.values.dtype)
    return race.winners(numbers)


def decorrelated_exponentials(
    texts: LexiconTexts, aligned: Aligned, uniforms: torch.Tensor, settings: DewSettings
) -> torch.Tensor:
    """Exp(1) numbers (batch, m), independent over keys and seeds for the likeliest candidates.

    y = √α u + √(1−α) r has the covariance A = αK + (1−α)I over keys and seeds, where K_ij is the product of
    the cosines between words and between contexts. So x = A^(−1/2) y is standard normal.
    """
    alpha = settings.keyed_share
    marked = aligned.u != 0.0
    fresh = torch.special.ndtri(uniforms)
    y = torch.where(marked, math.sqrt(alpha) * aligned.u + math.sqrt(1.0 - alpha) * fresh, fresh)
    n = min(settings.decorrelate, y.shape[1])
    if n:
        units = torch.nn.functional.embedding(aligned.rows[:, :n], texts.units).float()
        same = aligned.begins[:, :n].unsqueeze(1) == aligned.begins[:, :n].unsqueeze(2)
        K = torch.bmm(units, units.transpose(1, 2).contiguous())  # much faster than without, on an ARM core
        A = alpha * K * torch.where(same, 1.0, aligned.likeness.unsqueeze(2))
        A = A * (marked[:, :n].unsqueeze(1) & marked[:, :n].unsqueeze(2))
        A.diagonal(dim1=1, dim2=2).fill_(1.0)
        x = _inverse_root(alpha, n)(A, y[:, :n].float())
        y = torch.cat((x.double(), y[:, n:]), dim=1)
    numbers: torch.Tensor = -torch.special.log_ndtr(y)
    return numbers.clamp_min_(1e-300)


_inverse_root = functools.cache(InverseRoot.of)


@functools.cache
def _mixture(settings: DewSettings) -> Mixture:
    """What the kernels must know of the settings."""
    root = _inverse_root(settings.keyed_share, max(settings.decorrelate, 1))
    return Mixture(
        alpha=settings.keyed_share,
        strength=settings.strength,
        gamma=settings.gamma,
        n=settings.decorrelate,
        fresh_on_repeat=settings.fresh_on_repeat,
        scale=root.scale,
        least=root.least,
        rounds=root.rounds,
    )


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


class CapturedRace:
    """A session's steps as one launch each, on a CUDA device, after a few that are called one by one.

    From Python a step's kernels take ten times as long as on the device; a host that is called from Python
    too has no time to hide that in.
    """

    def __init__(self, settings: DewSettings, batch: LexiconBatch) -> None:
        self._settings = settings
        self._batch = batch
        self._decoding: Decoding | None = None  # of the last steps
        self._steps = 0  # under that decoding
        self._step: Replayed | None = None

    def choose(
        self, ids: torch.Tensor, scores: torch.Tensor, decoding: Decoding, states: torch.Tensor
    ) -> Choice | None:
        """As the function `choose`, after ids (batch, length); None if the step is not captured."""
        if decoding != self._decoding:
            self._decoding, self._steps, self._step = decoding, 0, None
        self._steps += 1
        if self._steps <= _CALLED or ids.shape[1] != self._batch.length + 1 or not self._can(scores):
            return None
        if self._step is None:
            self._step = self._capture(ids[:, -1:], scores, decoding, states)
        tokens, sound = self._step(ids[:, -1:], scores, states)
        self._batch.length = ids.shape[1]
        return tokens, sound

    def _can(self, scores: torch.Tensor) -> bool:
        """Whether there are kernels to capture, and nobody else is capturing them."""
        kernels = self._batch.current.aligner.tables.kernels
        return kernels and scores.is_cuda and not torch.cuda.is_current_stream_capturing()

    def _capture(
        self, tokens: torch.Tensor, scores: torch.Tensor, decoding: Decoding, states: torch.Tensor
    ) -> Replayed:
        texts, settings, decodings = self._batch.current, self._settings, [decoding] * len(scores)
        options = decoding_options(decodings, scores.device)

        def step(
            tokens: torch.Tensor, scores: torch.Tensor, states: torch.Tensor, kept: torch.Tensor = options
        ) -> Choice:  # the graph reads the options, which only a cache holds otherwise
            texts.states.push(tokens)
            return choose(scores, texts, settings, decodings, states)

        return Replayed(step, (tokens, scores, states), changed=texts.states.state)


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
        self._captured = CapturedRace(settings, batch) if isinstance(batch, LexiconBatch) else None

    def choose(self, input_ids: torch.Tensor, scores: torch.Tensor, decoding: Decoding) -> Choice:
        """Draw the next id of each row from logits (batch, vocab)."""
        check_logits(scores, self._vocab_size)
        states = self._noise.states(input_ids.shape[1] - self._start)
        scores = scores.to(states.device, torch.float32)
        ids = input_ids.to(states.device)
        drawn = self._captured and self._captured.choose(ids, scores, decoding, states)
        if drawn:
            return drawn
        return choose(scores, self._batch.texts(ids), self._settings, [decoding] * len(scores), states)


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
        return _marked(scores, self._followed.texts(mine), self._settings, mine)


def _marked(
    scores: torch.Tensor, texts: Texts, settings: DewSettings, rows: Sequence[DewRow | _LexiconRow]
) -> torch.Tensor:
    """Marked logits (rows, vocab): with the bias, or with only the drawn token finite."""
    if settings.sampler == "bias":
        return add_bias(scores, texts, settings)
    states = torch.cat([row.noise.states(len(row.written)) for row in rows])
    states = states.to(scores.device, non_blocking=True)
    return one_hot_logits(scores, choose(scores, texts, settings, [row.decoding for row in rows], states))


MatrixOf = Callable[[int, int | None, int | None], torch.Tensor | None]
"""A text's matrix by its seed, member and payload; None for the aligner's own."""


class _LexiconRow(Row):
    """A text in an engine: its row among the states, and how far it has been read."""

    slot = -1
    read = -1  # -1: not even the prompt
    W: torch.Tensor | None = None  # its own matrix (d_T, d_C), if not the aligner's

    def __init__(
        self, prompt: Sequence[int], written: Sequence[int], *, seed: int, decoding: Decoding
    ) -> None:
        super().__init__(prompt, written, seed=seed, decoding=decoding)
        self.noise = RandomStreams([seed], device=_CPU)

    @property
    def unread(self) -> Sequence[int]:
        """The tokens written since the last step."""
        return self.written[self.read :]


class LexiconRows(Rows):
    """As `DewRows`, for the words of a lexicon: the states of all texts are on the device.

    ``matrix_of`` gives the matrix of a text, by its seed and the member and payload that were asked for, if
    it is not the aligner's.
    """

    def __init__(
        self, settings: DewSettings, aligner: LexiconAligner, *, vocab_size: int, matrix_of: MatrixOf
    ) -> None:
        self._settings = settings
        self._matrix_of = matrix_of
        self._aligner = aligner
        self._vocab_size = vocab_size
        self._states = aligner.begin(_SLOTS)
        self._free = list(range(_SLOTS))

    def open(
        self, prompt: Sequence[int], written: Sequence[int], *, seed: int, decoding: Decoding
    ) -> _LexiconRow:
        """Start following a text."""
        return self.open_as(prompt, written, seed=seed, decoding=decoding)

    def open_as(
        self,
        prompt: Sequence[int],
        written: Sequence[int],
        *,
        seed: int,
        decoding: Decoding,
        member: int | None = None,
        payload: int | None = None,
    ) -> _LexiconRow:
        """Start following a text that a member of the key's ring marks, with a payload."""
        row = _LexiconRow(prompt, written, seed=seed, decoding=decoding)
        row.W = self._matrix_of(seed, member, payload)
        if not self._free:
            size = len(self._states)
            grown = self._aligner.begin(2 * size)
            grown.put(torch.arange(size, device=self._aligner.tables.device), self._states)
            self._states = grown
            self._free.extend(range(size, 2 * size))  # rows that end give their slots back to this list
        row.slot = self._free.pop()
        weakref.finalize(row, self._free.append, row.slot)
        return row

    def mark(self, rows: Sequence[Row], scores: torch.Tensor) -> torch.Tensor:
        """Logits (rows, vocab) float32 to marked ones, same shape."""
        check_logits(scores, self._vocab_size)
        mine = [row for row in rows if isinstance(row, _LexiconRow)]
        assert len(mine) == len(scores)
        states = self._caught_up(mine, scores.device)
        W = self._aligner.W
        if any(row.W is not None for row in mine):
            W = torch.stack([W if row.W is None else row.W for row in mine])
        return _marked(scores, LexiconTexts(self._aligner, states, W), self._settings, mine)

    def _caught_up(self, rows: Sequence[_LexiconRow], device: torch.device) -> WordStates:
        """The rows' states after all that they have written, which are stored too."""
        new = [row for row in rows if not 0 <= row.read <= len(row.written)]  # or the engine took tokens back
        if new:
            prompts = [row.prompt[-_PROMPT:] for row in new]
            length = max(map(len, prompts))
            padded = [[0] * (length - len(prompt)) + list(prompt) for prompt in prompts]
            begun = self._aligner.begin(len(new))
            padding = _sent([[length - len(prompt)] for prompt in prompts], device)
            begun.read_prompts(_sent(padded, device), padding)
            self._states.put(_sent([row.slot for row in new], device), begun)
            for row in new:
                row.read = 0
        slots = _sent([row.slot for row in rows], device)
        states = self._states.at(slots)
        unread = [row.unread for row in rows]
        most = max(map(len, unread))
        if most:
            states.push(_sent([[*tokens, *[-1] * (most - len(tokens))] for tokens in unread], device))
        self._states.put(slots, states)
        for row in rows:
            row.read = len(row.written)
        return states


def _sent(values: Sequence[object], device: torch.device) -> torch.Tensor:
    """Integers as a tensor on the device, which is not waited for."""
    return torch.tensor(values, dtype=torch.long).to(device, non_blocking=True)
