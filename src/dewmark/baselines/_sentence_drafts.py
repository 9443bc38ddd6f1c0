"""Judging the drafts of one batch of texts: which bin a sentence falls into, and whether it is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dewmark.baselines._sentences import first_end, sentences
from dewmark.drafts import Drafts

if TYPE_CHECKING:
    from dewmark.baselines._sentence_scheme import SentenceBound

__all__ = ["SentenceDrafts"]

_REFUSED = -1.0  # in a bin that is not accepted; in an accepted one but too near its border is better
_UNUSABLE = -float("inf")


@dataclass
class _Text:
    """A text as it grows: its last judged sentence, ``judged`` characters long, and what follows it.

    ``bin`` is that sentence's, ``previous`` that of the one before. Before the first sentence ``bin`` is the
    prompt's last sentence's, if it has one.
    """

    bin: int | None
    previous: int | None = None
    tail: str = ""
    judged: int = 0


class SentenceDrafts(Drafts):
    """Accepts a sentence whose bin the key accepts after the one before it, clear of the bin's border."""

    def __init__(self, bound: SentenceBound, prompts: Sequence[str]) -> None:
        self.tries = bound.scheme.tries
        self.at_once = bound.scheme.drafts
        self._bound = bound
        last = [_last_sentence(prompt) for prompt in prompts]
        bins = iter(bound.assign(bound.space.vectors([text for text in last if text]))[0].tolist())
        self._texts = [_Text(next(bins) if text else None) for text in last]
        self._bins: dict[str, int] = {}  # of all sentences that were judged

    def end(self, row: int, draft: str, *, last: bool = False) -> int | None:
        """Where the draft's sentence ends; at once if the draft changes the sentence before it."""
        text = self._texts[row]
        joined = text.tail + draft
        if text.judged:
            before = first_end(joined, last=last)
            if before != text.judged:
                # quotes and brackets that may close it still leave that open
                unsure = before is None and first_end(joined, last=True) == len(joined)
                return None if unsure else len(draft)
        end = first_end(joined, start=text.judged, last=last)
        return None if end is None else max(end - len(text.tail), 0)

    def judge(self, rows: Sequence[int], drafts: Sequence[str]) -> list[float]:
        """How far each draft lies from its bin's border beyond the margin, if the key accepts its bin."""
        found = [self._sentence(row, draft) for row, draft in zip(rows, drafts, strict=True)]
        distinct = list(dict.fromkeys(text for text in found if text is not None))
        bins, slack = self._bound.assign(self._bound.space.vectors(distinct))
        self._bins.update(zip(distinct, bins.tolist(), strict=True))
        beyond = dict(zip(distinct, slack.tolist(), strict=True))
        scores = []
        for row, text in zip(rows, found, strict=True):
            before = self._texts[row].bin
            if text is None:
                scores.append(_UNUSABLE)
            elif before is None:  # nothing to depend on: no detector scores it
                scores.append(1.0)
            else:
                accepted = self._bound.partition[before, self._bins[text]]
                scores.append(beyond[text] if accepted else _REFUSED)
        return scores

    def accept(self, row: int, draft: str) -> None:
        """The draft's sentence becomes the one that the next depends on."""
        text = self._texts[row]
        text.tail += draft
        if self._sentence(row, "") is None:
            # no draft was usable, and this one changed the sentence before: read that again
            text.judged, text.bin = 0, text.previous
        text.tail = text.tail[text.judged :].lstrip()
        text.judged = first_end(text.tail, last=True) or 0
        if text.judged:
            text.previous, text.bin = text.bin, self._bin(text.tail[: text.judged].rstrip())

    def _bin(self, sentence: str) -> int:
        if sentence not in self._bins:
            self._bins[sentence] = int(self._bound.assign(self._bound.space.vectors([sentence]))[0][0])
        return self._bins[sentence]

    def _sentence(self, row: int, draft: str) -> str | None:
        """The sentence that a draft adds, or None if it adds none or changes the one before."""
        text = self._texts[row]
        joined = text.tail + draft
        if text.judged and first_end(joined, last=True) != text.judged:
            return None
        end = first_end(joined, start=text.judged, last=True)
        return None if end is None else joined[text.judged : end].strip()


def _last_sentence(prompt: str) -> str:
    """The prompt's last sentence, complete or not; empty if it has none."""
    found = sentences(prompt)
    return prompt[found[-1].start : found[-1].end] if found else ""
