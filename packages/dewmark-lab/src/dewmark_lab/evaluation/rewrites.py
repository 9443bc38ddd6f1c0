"""How good a rewrite is, and which rewrites failed.

A model that paraphrases or translates may refuse, answer in another language, stop after a line, repeat
itself or copy its input. Such a rewrite says nothing about a mark: a copy would be found too often, an empty
answer never. `check_rewrites` measures each rewrite from its two texts alone, and names its *fault*, if it
has one. It never sees a score or a key, and treats marked and unmarked texts alike, so leaving out the
rewrites with a fault favours nobody.

    fault       a rewrite has it if
    empty       it has no words
    refusal     it begins as models do that decline ("I'm sorry, …"), and the original does not
    language    its language is not the wanted one
    copy        fewer than 5% of its words are new
    short       it has less than a third of the expected length
    long        it has more than three times the expected length
    loop        over 30% of its 4-grams of words are repetitions, beyond those of the original

Boundary: texts in, numbers out.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dewmark.errors import InputError
from dewmark.text.languages import UNDETERMINED, guess_language
from dewmark.text.words import repetition, words
from dewmark.types import Plain

_COPY, _SHORT, _LONG, _LOOP = 0.05, 1 / 3, 3.0, 0.3
# The characters of a text in relation to its English version, where they differ by a factor.
_CHARACTERS = {"zh": 0.3, "ja": 0.45, "ko": 0.5}
_REFUSAL = re.compile(
    r"\W*(?:i['’]?m (?:really )?sorry|sorry,|i apologi[sz]e|as an ai\b|i(?:['’]m| am) (?:unable|not able)"
    r"|i (?:cannot|can['’]t|can not) (?:assist|help|fulfil|provide|comply|translate|paraphrase|summari[sz]e)"
    r"|(?:es )?tut mir leid|entschuldigung|je suis désolée?|désolée?,|lo siento|desculpe|抱歉|对不起)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Rewrite(Plain):
    """The measures of one rewrite; ``fault`` is None if it counts.

    ``words_changed`` is the share of the rewrite's words that the original lacks, ``length`` the number of
    characters over the expected one.
    """

    words_changed: float
    length: float
    language: str
    fault: str | None


@dataclass(frozen=True, slots=True)
class RewriterQuality(Plain):
    """A rewriter's texts together; the means are over those without a fault."""

    texts: int
    kept: int
    faults: dict[str, int]
    languages: dict[str, int]
    words_changed: float | None
    length: float | None

    def __str__(self) -> str:
        faults = ", ".join(f"{number} {name}" for name, number in self.faults.items()) or "none"
        changed = "" if self.words_changed is None else f", {self.words_changed:.0%} of the words changed"
        return f"{self.kept} of {self.texts} rewrites count{changed}; left out: {faults}"


def check_rewrites(
    originals: Sequence[str], rewrites: Sequence[str], *, language: str, length: float = 1.0
) -> list[Rewrite]:
    """Measure rewrites of English texts that should be in ``language``, ``length`` times as long."""
    if len(originals) != len(rewrites):
        raise InputError(f"{len(originals)} originals but {len(rewrites)} rewrites: give one for each")
    return [_checked(*pair, language, length) for pair in zip(originals, rewrites, strict=True)]


def rewriter_quality(rewrites: Iterable[Rewrite]) -> RewriterQuality:
    """Sum up the rewrites of one rewriter."""
    every = list(rewrites)
    kept = [each for each in every if each.fault is None]
    return RewriterQuality(
        texts=len(every),
        kept=len(kept),
        faults=dict(Counter(each.fault for each in every if each.fault is not None).most_common()),
        languages=dict(Counter(each.language for each in every).most_common()),
        words_changed=_mean(each.words_changed for each in kept),
        length=_mean(each.length for each in kept),
    )


def _checked(original: str, rewrite: str, language: str, expected: float) -> Rewrite:
    old, new = ([word.form for word in words(text)] for text in (original, rewrite))
    missing = Counter(new) - Counter(old)
    changed = missing.total() / len(new) if new else 0.0
    characters = len(original.strip()) * expected * _CHARACTERS.get(language, 1.0)
    length = len(rewrite.strip()) / max(characters, 1.0)
    guessed = guess_language(rewrite)
    fault = None
    if not new:
        fault = "empty"
    elif _REFUSAL.match(rewrite) and not _REFUSAL.match(original):
        fault = "refusal"
    elif guessed != language and not (guessed == UNDETERMINED == guess_language(original)):
        fault = "language"
    elif changed < _COPY:
        fault = "copy"
    elif length < _SHORT:
        fault = "short"
    elif length > _LONG:
        fault = "long"
    elif repetition(rewrite) > repetition(original) + _LOOP:
        fault = "loop"
    return Rewrite(changed, length, guessed, fault)


def _mean(values: Iterable[float]) -> float | None:
    every = list(values)
    return statistics.fmean(every) if every else None
