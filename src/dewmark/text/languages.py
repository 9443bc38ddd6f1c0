"""Guess the language of a text, to label texts that have no label.

Most scripts determine the language. For Latin letters a naive Bayes model over pairs and triples of letters
compares the text with the ordinary sentences in the package, its only data.

Boundary: labels for reports, among the languages below; "und" (ISO 639, undetermined) if unsure. Another
language that is close to one of them (Danish, Catalan) may be mistaken for it.
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections import Counter
from importlib import resources

__all__ = ["UNDETERMINED", "guess_language"]

UNDETERMINED = "und"

_LATIN = ("de", "en", "es", "fr", "it", "nl", "pl", "pt", "tr")

# Unicode's name of a script, its language, and letters of the script that only other languages use.
_SCRIPTS = {
    "ARABIC": ("ar", frozenset("پچژگکیےہٹڈڑ")),
    "ARMENIAN": ("hy", frozenset()),
    "CYRILLIC": ("ru", frozenset("іїєґўђѓљњћќџјәғқңөұүһ")),
    "GEORGIAN": ("ka", frozenset()),
    "GREEK": ("el", frozenset()),
    "HANGUL": ("ko", frozenset()),
    "HEBREW": ("he", frozenset()),
    "KANA": ("ja", frozenset()),
    "THAI": ("th", frozenset()),
}
_KANA = ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA")

_LETTERS = 1_000  # of a text are enough
_FEWEST = 4
_FOREIGN = 0.01  # tolerated share of letters that Arabic or Russian does not use
_LINES = 26  # the same for each language: more data would attract texts of unknown languages
_SMOOTHING = 0.3
# In nats per pair or triple: 99% of held-out sentences in these languages reach the first; if the two best
# languages are closer than the second, the guess is wrong about half the time.
_LEAST_FIT, _LEAST_LEAD = -7.15, 0.05


def guess_language(text: str) -> str:
    """The ISO 639-1 code of the text's language, or "und"."""
    words = re.findall(r"[^\W\d_]+", text.casefold()[: 4 * _LETTERS])
    letters = "".join(words)[:_LETTERS]
    if len(letters) < _FEWEST:
        return UNDETERMINED
    scripts = Counter(map(_script, letters))
    if scripts["CJK"] + scripts["KANA"] > len(letters) / 2:
        # Japanese mixes both; Chinese may quote a Japanese name
        return "ja" if scripts["KANA"] > 0.1 * len(letters) else "zh"
    script, count = scripts.most_common(1)[0]
    if count <= len(letters) / 2:
        return UNDETERMINED
    if script == "LATIN":
        return _guess_latin(" ".join(words)[:_LETTERS])
    language, foreign = _SCRIPTS.get(script, (UNDETERMINED, frozenset()))
    return UNDETERMINED if sum(c in foreign for c in letters) > _FOREIGN * len(letters) else language


@functools.cache
def _script(letter: str) -> str:
    first = unicodedata.name(letter, "?").split()[0]
    return "KANA" if first in _KANA else first


def _guess_latin(words: str) -> str:
    found = Counter(_grams(words))
    total = sum(found.values())
    profiles = _profiles()
    fit = {
        language: sum(count * profile.get(gram, floors[len(gram)]) for gram, count in found.items()) / total
        for language, (profile, floors) in profiles.items()
    }
    best, second = sorted(fit, key=fit.__getitem__, reverse=True)[:2]
    sure = fit[best] >= _LEAST_FIT and fit[best] - fit[second] >= _LEAST_LEAD
    return best if sure else UNDETERMINED


def _grams(words: str) -> list[str]:
    """Pairs and triples of letters, including the spaces around words."""
    padded = f" {words} "
    return [padded[i : i + n] for n in (2, 3) for i in range(len(padded) - n + 1)]


@functools.cache
def _profiles() -> dict[str, tuple[dict[str, float], dict[int, float]]]:
    """For each language, log P(gram) of seen grams, and of an unseen gram by its length."""
    counts = {language: Counter(_grams(_sample(language))) for language in _LATIN}
    kinds = Counter(len(gram) for gram in set().union(*counts.values()))
    profiles = {}
    for language, seen in counts.items():
        total = {n: sum(c for gram, c in seen.items() if len(gram) == n) for n in kinds}
        norm = {n: math.log(total[n] + _SMOOTHING * (kinds[n] + 1)) for n in kinds}
        logs = {gram: math.log(count + _SMOOTHING) - norm[len(gram)] for gram, count in seen.items()}
        profiles[language] = (logs, {n: math.log(_SMOOTHING) - norm[n] for n in kinds})
    return profiles


def _sample(language: str) -> str:
    file = resources.files("dewmark") / "data" / "ordinary" / f"{language}.txt"
    lines = file.read_text(encoding="utf-8").splitlines()[:_LINES]
    return " ".join(re.findall(r"[^\W\d_]+", " ".join(lines).casefold()))
