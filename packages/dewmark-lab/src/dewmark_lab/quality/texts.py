"""What a mark may do to the wording of texts, in numbers that need no model.

Of one text:

- *words per token*: a text cut into rare pieces, or into half words, has fewer.
- *unlisted*: of the words written in letters, the share that the package's lexicon does not have.
- *doubled*: words that repeat the word before them, per 100 words ("brazen brazen").
- *distinct*: distinct words in a window of 50, averaged over all windows, so that length does not matter.
- *repeated*: of the 4-grams of words, the share that repeat an earlier one.
- *loops*: whether a phrase of at most 32 words occurs three times in a row.

Of several texts:

- *top share* (`measuring.top_shares`): of all content words, the share of the 50 commonest: whether a key
  prefers certain words. It falls with the number of texts, so compare equal numbers.
- *Self-BLEU* and *identical pairs* of answers to one prompt: whether everybody gets the same answer.

Boundary: texts in, numbers out; None where a share has nothing to count.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from dewmark.text.words import repetition, words
from dewmark_lab.evaluation.quality import Words, listed_words, unlisted

TOP = 50
_WINDOW = 50  # words
_LONGEST_LOOP, _TURNS = 32, 3
_ORDERS = 4  # of BLEU
_NO_MATCH = 0.1  # matches that an order without any counts as, which keeps the geometric mean above 0


def text_measures(text: str, *, tokens: int, listed: Words | None = None) -> dict[str, float | None]:
    """The measures of a text that the host wrote in ``tokens`` tokens; ``listed`` is another word list."""
    forms = _forms(text)
    return {
        "words_per_token": len(forms) / tokens if tokens else None,
        "unlisted": unlisted(text, listed_words() if listed is None else listed),
        "doubled": doubled(text),
        "distinct": distinct_words(text),
        "repeated": repetition(text) if forms else None,
        "loops": float(loops(text)),
    }


def doubled(text: str) -> float | None:
    """Words of letters that repeat the word before them, per 100 words."""
    forms = _forms(text)
    same = sum(left == right and right.replace("'", "").isalpha() for left, right in pairwise(forms))
    return 100.0 * same / len(forms) if forms else None


def distinct_words(text: str, *, window: int = _WINDOW) -> float | None:
    """The share of distinct words in ``window`` neighbouring words, averaged over all windows of a text."""
    forms = _forms(text)
    if not forms:
        return None
    window = min(window, len(forms))
    inside = Counter(forms[:window])
    shares = [len(inside) / window]
    for gone, new in zip(forms, forms[window:], strict=False):
        inside[new] += 1
        inside[gone] -= 1
        if not inside[gone]:
            del inside[gone]
        shares.append(len(inside) / window)
    return statistics.fmean(shares)


def loops(text: str, *, turns: int = _TURNS, longest: int = _LONGEST_LOOP) -> bool:
    """Whether a phrase of at most ``longest`` words occurs ``turns`` times in a row."""
    forms = _forms(text)
    for length in range(1, min(longest, len(forms) // turns) + 1):
        run = 0  # words that equal the one a phrase before
        for earlier, later in zip(forms, forms[length:], strict=False):
            run = run + 1 if earlier == later else 0
            if run == (turns - 1) * length:
                return True
    return False


def self_bleu(texts: Sequence[str]) -> float | None:
    """The mean BLEU (0 to 100) of each text against all others; None of fewer than two.

    Words in lower case, orders 1 to 4 with equal weights, the brevity penalty of the nearest length. An order
    without a match counts 0.1 matches, and a text of fewer than four words only has as many orders.
    """
    if len(texts) < 2:
        return None
    forms = [each for text in texts if (each := _forms(text))]  # a text without words scores 0
    grams = [[_grams(each, n) for n in range(1, _ORDERS + 1)] for each in forms]
    most = [_two_largest([each[n] for each in grams]) for n in range(_ORDERS)]
    lengths = [len(each) for each in forms]
    total = 0.0
    for i, length in enumerate(lengths if len(forms) > 1 else ()):
        logs = []
        for n in range(min(_ORDERS, length)):
            matches = 0
            for gram, count in grams[i][n].items():
                first, second, owner = most[n][gram]
                matches += min(count, second if owner == i else first)
            logs.append(math.log((matches or _NO_MATCH) / (length - n)))
        _, nearest = min((abs(other - length), other) for j, other in enumerate(lengths) if j != i)
        total += math.exp(statistics.fmean(logs) + min(0.0, 1.0 - nearest / length))
    return 100.0 * total / len(texts)


def identical_pairs(texts: Sequence[str]) -> float | None:
    """Of all pairs of texts, the share that are the same to the letter; None of fewer than two."""
    counts = Counter(text.strip() for text in texts)
    same = sum(math.comb(count, 2) for count in counts.values())
    return same / math.comb(len(texts), 2) if len(texts) > 1 else None


def _forms(text: str) -> list[str]:
    return [word.form for word in words(text)]


def _grams(forms: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(forms[i : i + n]) for i in range(len(forms) - n + 1))


def _two_largest(counts: Sequence[Counter[tuple[str, ...]]]) -> dict[tuple[str, ...], tuple[int, int, int]]:
    """For each n-gram its largest count in a text, the largest in any other text, and which text has it."""
    found: dict[tuple[str, ...], tuple[int, int, int]] = {}
    for i, each in enumerate(counts):
        for gram, count in each.items():
            first, second, owner = found.get(gram, (0, 0, -1))
            found[gram] = (count, first, i) if count > first else (first, max(second, count), owner)
    return found
