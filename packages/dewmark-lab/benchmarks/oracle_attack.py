"""A detector as an oracle: queries that find the words that carry the mark (docs/service.md).

    python benchmarks/oracle_attack.py --detector DIR --texts marked.jsonl

The attacker has a marked text and a token, and wants to know which words to replace. Every query replaces a
random share of the words; a regression of the answers on the replaced words estimates what each word counts.
Then the words that count most are replaced until the detector itself no longer finds the mark (``words``). It
is compared with replacing words ``blind``ly. Kinds of answers:

- ``rounded``: z rounded to a whole number between -5 and 5, as public tokens were given it before; the share
  of replaced words is such that z falls into that range;
- ``verdict``: marked or not, at a share at which both occur;
- ``shared``: the verdict, with one answer for texts that are nearly the same, as public tokens get it now. An
  answer that is shared is no news (``answers`` counts the others, ``bytes`` what they cost: the default
  budget of a public token is 2,000,000). Tried at the share of ``verdict``, and at a larger one at which most
  texts get an answer of their own.

Shares of 0.45 to 0.65 are those at which a text of 200 words with z near 10 is marked about half of the time;
``marked`` says how often it was. The level of the verdicts is that of public tokens, 1e-4.

Prints one JSON object per text and kind.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from script_inputs import script_parser

from dewmark.detector import Detector
from dewmark.scheme import BoundScheme
from dewmark_desk.public_answers import PublicAnswers
from dewmark_desk.store import Store

KINDS = (("rounded", 0.45), ("verdict", 0.55), ("shared", 0.55), ("shared", 0.65))
Answer = Callable[[str], float | None]  # a text's answer as a number; None if it is no news


class Victim:
    """A marked text in words, and what replaces them."""

    def __init__(self, words: list[str], bound: BoundScheme, random_: random.Random, fpr: float) -> None:
        self.words, self.bound, self.random, self.fpr = words, bound, random_, fpr
        self.others = random_.sample(words, len(words))

    def edited(self, replaced: NDArray[np.bool_]) -> str:
        """The text with some of its words replaced by others of its words."""
        pairs = zip(self.words, self.others, replaced, strict=True)
        return " ".join(other if gone else word for word, other, gone in pairs)

    def is_marked(self, replaced: NDArray[np.bool_]) -> bool:
        """The detector's own verdict."""
        return self.bound.detect(self.edited(replaced), fpr=self.fpr).is_marked

    def words_needed(self, order: list[int]) -> int:
        """How many words, replaced in this order, end the mark (by bisection)."""
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            low, high = (
                (middle + 1, high) if self.is_marked(np.isin(self.places, order[:middle])) else (low, middle)
            )
        return low

    @functools.cache  # noqa: B019 - a script
    def truth(self) -> NDArray[np.float64]:
        """How much z falls if one word is replaced."""
        z = [self.bound.detect(self.edited(self.places == i)).z for i in (-1, *self.places)]
        return z[0] - np.array(z[1:])

    @property
    def places(self) -> NDArray[np.int64]:
        """0, 1, … for the words."""
        return np.arange(len(self.words))

    def draw(self, share: float) -> NDArray[np.bool_]:
        """Random words to replace."""
        return np.array([self.random.random() < share for _ in self.words])


def measure(
    victim: Victim, answer: Answer, share: float, queries: int
) -> tuple[NDArray[np.float64], int, int, float | None]:
    """What each word counts by regression, the number of answers that were news, their bytes, their mean."""
    rows, values, size = [], [], 0
    for _ in range(queries):
        replaced = victim.draw(share)
        text = victim.edited(replaced)
        if (value := answer(text)) is not None:
            rows.append(replaced)
            values.append(value)
            size += len(text.encode())
    if len(rows) < 2:
        return np.zeros(len(victim.words)), len(rows), size, None
    design = np.stack(rows).astype(float)
    design -= design.mean(axis=0)
    target = np.array(values) - np.mean(values)
    ridge = design.T @ design + 1e-1 * len(rows) * share * np.eye(len(victim.words))
    return -np.linalg.solve(ridge, design.T @ target), len(rows), size, round(float(np.mean(values)), 3)


def answers_of(kind: str, victim: Victim, folder: str) -> Answer:
    bound, fpr = victim.bound, victim.fpr
    if kind == "rounded":
        return lambda text: float(np.clip(round(bound.detect(text).z), -5, 5))
    if kind == "verdict":
        return lambda text: float(bound.detect(text, fpr=fpr).is_marked)
    shared = PublicAnswers(Store(f"sqlite:///{folder}/{random.randrange(1 << 30)}.db"))

    def ask(text: str) -> float | None:
        (sketch,) = shared.sketches([text])
        if shared.find("attacker", [sketch])[0] is not None:
            return None
        verdict = bound.detect(text, fpr=fpr).is_marked
        shared.keep("attacker", sketch, {"verdict": verdict})
        return float(verdict)

    return ask


def attack(victim: Victim, kind: str, queries: int, share: float, folder: str) -> dict[str, object]:
    """The attack with one kind of answers."""
    estimated, news, size, marked = measure(victim, answers_of(kind, victim, folder), share, queries)
    known = bool(estimated.any())
    return {
        "kind": kind,
        "share": share,
        "queries": queries,
        "answers": news,
        "marked": marked,
        "bytes": size,
        "r": round(float(np.corrcoef(estimated, victim.truth())[0, 1]), 3) if known else None,
        "words": victim.words_needed([int(i) for i in np.argsort(-estimated)]) if known else None,
    }


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--detector", required=True, help="folder of a saved detector")
    parser.add_argument("--texts", type=Path, required=True, help="JSONL file with a marked text per line")
    parser.add_argument("--count", type=int, default=1, help="texts to attack")
    parser.add_argument("--words", type=int, default=200)
    parser.add_argument("--queries", type=int, default=4176)
    parser.add_argument("--fpr", type=float, default=1e-4, help="level of the verdicts (--public-fpr)")
    options: argparse.Namespace = parser.parse_args()
    bound = Detector.load(options.detector).scheme
    lines = options.texts.read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        for line in lines[: options.count]:
            words = json.loads(line)["text"].split()[: options.words]
            victim = Victim(words, bound, random.Random(0), options.fpr)
            blind = [
                victim.words_needed(victim.random.sample(range(len(words)), len(words))) for _ in range(9)
            ]
            best = victim.words_needed([int(i) for i in np.argsort(-victim.truth())])
            known = {"words": len(words), "z": bound.detect(" ".join(words)).z, "best": best}
            print(json.dumps({**known, "blind": float(np.median(blind))}), flush=True)
            for kind, share in KINDS:
                print(json.dumps(attack(victim, kind, options.queries, share, folder)), flush=True)


if __name__ == "__main__":
    main()
