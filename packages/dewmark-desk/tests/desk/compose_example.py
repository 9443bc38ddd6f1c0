"""Compose the packaged example: ``python -m tests.desk.compose_example`` writes it again.

No language model is needed. Two paragraphs of the template are written with choices, ``The {old|stone}
{town|bay} …``, which are made, sentence by sentence, so that the demonstration key's detector scores the text
highest. So the paragraphs carry evidence like marked text. The result depends on the key only.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

from dewmark.detect import score_texts
from dewmark.types import Detection
from dewmark_desk.tenants import open_demonstration

_STARTS = 8  # random wordings of a sentence to begin with
_ROUNDS = 8  # of improving it
_NEAR = 2  # choices closer than this share a context, so they are not changed together
_CHOICE = re.compile(r"\{([^}]*)\}")
_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z{])")

Detect = Callable[[Sequence[str]], Sequence[Detection]]


def composed(detect: Detect) -> str:
    """The example, with the mark of the key of ``detect`` in its second and third paragraph."""
    template = Path(__file__).with_name("example_template.txt").read_text(encoding="utf-8")
    paragraphs = template.strip().split("\n\n")
    return "\n\n".join(_marked(each, detect) if "{" in each else each for each in paragraphs)


def _marked(template: str, detect: Detect) -> str:
    draw = random.Random(0)
    text = ""
    for sentence in _SENTENCE_END.split(template):
        text = _Sentence(sentence, text, detect).best(draw)
    return text


Wording = tuple[int, ...]
"""The chosen word of each choice."""


class _Sentence:
    """A sentence with choices, after the text so far; hill climbing finds a wording with a high z."""

    def __init__(self, template: str, before: str, detect: Detect) -> None:
        self._fixed = _CHOICE.split(template)[::2]
        self._choices = [words.split("|") for words in _CHOICE.findall(template)]
        self._before, self._detect = before, detect

    def best(self, draw: random.Random) -> str:
        """The text so far with the best wording found."""
        starts = [tuple(draw.randrange(len(words)) for words in self._choices) for _ in range(_STARTS)]
        z, wording = max(zip(self._scores(starts), starts, strict=True))
        for _ in range(_ROUNDS):
            changed = self._changes(wording)
            ranked = sorted(zip(self._scores(list(changed)), changed, strict=True), reverse=True)
            better = [changed[each] for score, each in ranked if score > z]
            if not better:
                break
            together = self._together(wording, better)
            z, wording = max(ranked[0], (self._scores([together])[0], together))
        return self._text(wording)

    def _changes(self, wording: Wording) -> dict[Wording, tuple[int, int]]:
        """Every wording that differs in one choice: (which, word)."""
        return {
            (*wording[:i], word, *wording[i + 1 :]): (i, word)
            for i, words in enumerate(self._choices)
            for word in range(len(words))
            if word != wording[i]
        }

    @staticmethod
    def _together(wording: Wording, changes: Sequence[tuple[int, int]]) -> Wording:
        """All changes that are far enough from better ones."""
        made: dict[int, int] = {}
        for i, word in changes:
            if all(abs(i - other) > _NEAR for other in made):
                made[i] = word
        return tuple(made.get(i, word) for i, word in enumerate(wording))

    def _scores(self, wordings: Sequence[Wording]) -> list[float]:
        return [found.z for found in self._detect([self._text(each) for each in wordings])]

    def _text(self, wording: Wording) -> str:
        words = [words[chosen] for words, chosen in zip(self._choices, wording, strict=True)]
        pairs = zip(self._fixed, [*words, ""], strict=True)
        sentence = "".join(fixed + word for fixed, word in pairs)
        return f"{self._before} {sentence[:1].upper()}{sentence[1:]}".strip()


if __name__ == "__main__":
    packaged = Path(str(resources.files("dewmark_desk") / "data" / "example.txt"))
    detect = functools.partial(score_texts, open_demonstration().bound)
    packaged.write_text(composed(detect) + "\n", encoding="utf-8")
