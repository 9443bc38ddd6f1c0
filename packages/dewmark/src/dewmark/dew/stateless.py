"""Keyed sampling from the last tokens of a text alone, for engines that keep no state of ours.

The words of the context and the open word follow from the last tokens, so nothing else is needed to mark.
What the rest of the text would add is lost: a word may carry the mark more often than the detector counts
it, and a window of words that came before those tokens counts as new. Both weaken the mark a little and
change no p-value: the detector applies its own rules to the finished text.
"""

from __future__ import annotations

import torch

from dewmark.decoding import Decoding
from dewmark.dew.race import LexiconAligner, LexiconTexts, WordRace

WIDTH = 32
"""Tokens that hold the words of nearly every context."""


class StatelessMarker:
    """Draws the next token of texts of which only the end is known."""

    def __init__(self, race: WordRace, aligner: LexiconAligner) -> None:
        self._race, self._aligner = race, aligner

    def draw(self, scores: torch.Tensor, contexts: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Ids (rows,) drawn from final logits (rows, vocab) after contexts (rows, width).

        A context holds the last ids of a text, -1 before its first; ``states`` (rows, 1) int64 give each row
        its own random numbers.
        """
        words = self._aligner.begin(len(contexts))
        words.push(contexts)
        texts = LexiconTexts(self._aligner, words, self._aligner.W)
        return self._race(scores, texts, [Decoding()] * len(scores), states)[0]
