"""Substitution of words: those that WordNet knows are replaced by what a model would put there.

Two methods, with two labels, because they are different attacks:

- ``masked``, the paper's: of a text's W words ⌊r·W⌉, drawn among those with a WordNet entry, are masked one
  after the other, and the likeliest word of a masked language model takes the place (it may be the old one).
- ``wordnet``, where no masked model can be had: the words are drawn among those with WordNet synonyms, and
  that synonym takes the place under which a causal host finds the passage likeliest.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from dewmark.attacks.base import Attack, check_least, check_share, run_option
from dewmark.attacks.lexical import words
from dewmark.attacks.wordnet import WordNet
from dewmark.workspace import Progress

if TYPE_CHECKING:
    from dewmark.attacks.masked_lm import MaskedLM
    from dewmark.hosts.base import Host
    from dewmark.hosts.sources import Source

__all__ = ["Synonym"]

_CANDIDATES = 5  # synonyms of one word that are weighed, frequent senses first
_LEAST_LETTERS = 4  # shorter words have odd synonyms: "he" is helium
_WORDS_BEFORE, _WORDS_AFTER = 16, 4  # the passage in which synonyms are weighed


@dataclass(frozen=True)
class Synonym(Attack):
    """Replaces a share ``r`` of a text's words, chosen by the seed among those that WordNet knows.

    ``model`` and ``window`` (tokens that it sees around a gap) belong to ``method=masked``, ``host`` to
    ``method=wordnet``; ``wordnet`` is the folder of the database.
    """

    name: ClassVar[str] = "synonym"
    summary: ClassVar[str] = "replaces a share r of the words, in context"
    r: float = 0.3
    method: Literal["masked", "wordnet"] = "masked"
    model: str = "bert-large-uncased"
    window: int = 256
    host: str = "smollm2-135m"
    wordnet: str | None = None
    device: str = run_option("auto")
    batch_size: int = run_option(32)

    def validate(self) -> None:
        """r is a share; the model must see something."""
        check_share("r", self.r)
        check_least("window", self.window, 2)
        check_least("batch_size", self.batch_size, 1)

    @property
    def label(self) -> str:
        """The second method is not the paper's attack, and says so."""
        return self.name if self.method == "masked" else f"{self.name}-{self.method}"

    def identity(self) -> dict[str, object]:
        """Models and the lexicon count by their contents; those of the other method do not count."""
        common = {"name": self.name, "method": self.method, "r": self.r, "wordnet": self._lexicon.identity}
        if self.method == "masked":
            return {**common, "model": self._source.identity, "window": self.window}
        from dewmark.hosts import host_info

        return {**common, "host": host_info(self.host).identity}

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        """Each text with some words replaced."""
        known = self._lexicon.has_entry if self.method == "masked" else self._has_synonyms
        cut = [_Gaps(text, seed, self.r, known) for text, seed in zip(texts, seeds, strict=True)]
        if self.method == "masked":
            self._fill_masked(cut, progress)
        else:
            self._fill_weighed(cut, progress)
        return ["".join(gaps.pieces) for gaps in cut]

    def _fill_masked(self, cut: Sequence[_Gaps], progress: Progress) -> None:
        """The first gap of every text, then the second of every text, …: each sees those filled before."""
        steps = max(len(gaps.places) for gaps in cut)
        for step in range(steps):
            progress("substituting words", step, steps)
            left = [gaps for gaps in cut if step < len(gaps.places)]
            contexts = [gaps.around(gaps.places[step]) for gaps in left]
            found = self._masked_lm.fill(contexts, window=self.window, batch_size=self.batch_size)
            for gaps, word in zip(left, found, strict=True):
                gaps.put(gaps.places[step], word)
        progress("substituting words", steps, steps)

    def _fill_weighed(self, cut: Sequence[_Gaps], progress: Progress) -> None:
        """Every candidate in its text as it was; many texts at once, so that a device is busy."""
        for done in range(0, len(cut), self.batch_size):
            progress("substituting words", done, len(cut))
            places = [(gaps, place) for gaps in cut[done : done + self.batch_size] for place in gaps.places]
            choices = [self._candidates(gaps.pieces[place]) for gaps, place in places]
            contexts, passages = [], []
            for (gaps, place), synonyms in zip(places, choices, strict=True):
                context, space, after = _passage(*gaps.around(place))
                contexts += [context] * len(synonyms)
                passages += [f"{space}{word}{after}" for word in synonyms]
            scores = iter(self._likelihoods(contexts, passages))
            for (gaps, place), synonyms in zip(places, choices, strict=True):
                gaps.put(place, max(synonyms, key=lambda _: next(scores)))
        progress("substituting words", len(cut), len(cut))

    def _likelihoods(self, contexts: Sequence[str], passages: Sequence[str]) -> list[float]:
        """Log-likelihood of each passage after its context; in float32, whose products may be rounded."""
        import torch

        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")  # for the tensor cores of a GPU
        try:
            return [score for score, _ in self._host_model.log_likelihood(contexts, passages)]
        finally:
            torch.set_float32_matmul_precision(before)

    def _candidates(self, word: str) -> list[str]:
        word = word.lower()
        if word not in self._looked_up:
            self._looked_up[word] = self._lexicon.synonyms(word)[:_CANDIDATES]
        return self._looked_up[word]

    @functools.cached_property
    def _looked_up(self) -> dict[str, list[str]]:
        return {}

    def _has_synonyms(self, word: str) -> bool:
        return len(word) >= _LEAST_LETTERS and bool(self._candidates(word))

    @functools.cached_property
    def _lexicon(self) -> WordNet:
        return WordNet.open(self.wordnet)

    @functools.cached_property
    def _source(self) -> Source:
        from dewmark.attacks.masked_lm import find_masked_lm

        return find_masked_lm(self.model)

    @functools.cached_property
    def _masked_lm(self) -> MaskedLM:
        from dewmark.attacks.masked_lm import MaskedLM

        return MaskedLM(self._source, device=self.device)

    @functools.cached_property
    def _host_model(self) -> Host:
        from dewmark.hosts import load_host

        return load_host(self.host, device=self.device, dtype="float32")


class _Gaps:
    """A text in pieces: some, at ``places`` in the order in which they are filled, are words to replace."""

    def __init__(self, text: str, seed: int, share: float, known: Callable[[str], bool]) -> None:
        found = words(text)
        cores = [(word.start(), *_core(word.group())) for word in found]
        eligible = [(start + at, core) for start, at, core in cores if core.isalpha() and known(core)]
        wanted = min(round(share * len(found)), len(eligible))
        drawn = random.Random(seed).sample(eligible, wanted)
        self.pieces: list[str] = []
        at = 0
        numbers = {}
        for start, core in sorted(drawn):
            self.pieces += [text[at:start], core]
            numbers[start] = len(self.pieces) - 1
            at = start + len(core)
        self.pieces.append(text[at:])
        self.places = [numbers[start] for start, _ in drawn]

    def around(self, place: int) -> tuple[str, str]:
        """The text before and after a place, as it is now."""
        return "".join(self.pieces[:place]), "".join(self.pieces[place + 1 :])

    def put(self, place: int, word: str) -> None:
        """Replace the word at a place, with the old one's capitals."""
        old = self.pieces[place]
        if len(old) > 1 and old.isupper():
            word = word.upper()
        elif old[0].isupper():
            word = word[0].upper() + word[1:]
        self.pieces[place] = word


def _core(word: str) -> tuple[int, str]:
    """A word without the marks around it, and how many stand before it."""
    letters = [i for i, character in enumerate(word) if character.isalnum()]
    return (letters[0], word[letters[0] : letters[-1] + 1]) if letters else (0, "")


def _passage(left: str, right: str) -> tuple[str, str, str]:
    """The words before a gap (the context), the space between them and the gap, and the words after it."""
    before, after = words(left), words(right)
    start = before[-_WORDS_BEFORE].start() if len(before) >= _WORDS_BEFORE else 0
    context = left[start:].rstrip()
    end = after[_WORDS_AFTER - 1].end() if len(after) >= _WORDS_AFTER else len(right)
    return context, left[start + len(context) :], right[:end]
