"""A public detector as an oracle: what an attacker who knows its code learns (docs/security.md).

    python benchmarks/oracle_attack.py --detector DIR --texts marked.jsonl
    python benchmarks/oracle_attack.py --detector DIR --texts marked.jsonl --tokens 10

The attacker has marked texts and public tokens with the default budgets, and keeps a copy of the service's
own rule for prices (`dewmark_desk.resemblance`): of several variants it sends the cheapest, to the token that
charges least. ``--prices none`` is a service that answers everything at one text each. Two attacks:

- **removal**: which words of a marked text carry the mark? Every query keeps a random part of the text.
  ``random`` replaces the other words by ordinary ones, ``near`` also the kept ones by words of similar
  meaning, which leaves part of the mark and changes what is compared, ``runs`` keeps runs of four words. A
  regression of the verdicts on the kept words estimates what each counts; ``words`` is how many must be
  replaced, the weightiest first, until the detector itself finds no mark, ``blind`` in random order.
- **forgery**: words of an unmarked text are chosen among words of similar meaning. Each query shows it with
  random choices beside as much of a marked text as makes both verdicts likely, and a regression on the
  choices says which to make. ``p`` is the p-value of the text that results, and ``chance`` that of random
  choices (``forged_z``, z); ``attributable`` is what the detector of a ring says.

Prints one JSON object per attack and text.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from script_inputs import script_parser
from service_load import ordinary_texts

from dewmark.config import cache_dir
from dewmark.detector import Detector
from dewmark.encoders.lexicon import load_lexicon
from dewmark.scheme import BoundScheme
from dewmark.text.words import form_of
from dewmark.workspace import Workspace
from dewmark_desk.api_tokens import PUBLIC_BYTES, PUBLIC_TEXTS, Caller
from dewmark_desk.resemblance import Resemblance
from dewmark_desk.store import Store
from dewmark_desk.verdicts import Query

LEVEL = 1e-4
VARIANTS = 8  # from which the attacker chooses the cheapest
Row = NDArray[np.float64]
Draw = Callable[[], tuple[Row, str]]


class Oracle:
    """Public tokens of a service, and the attacker's own copy of its prices."""

    def __init__(self, bound: BoundScheme, folder: str, *, tokens: int, priced: bool) -> None:
        self.bound, self.priced = bound, priced
        self._rules = [
            Resemblance(Store(f"sqlite:///{folder}/{random.random()}.db"), remember=False) for _ in range(2)
        ]
        self.left = {Caller(str(i), "", frozenset()): [PUBLIC_TEXTS, PUBLIC_BYTES] for i in range(tokens)}
        self.answered = 0

    def price(self, text: str, token: Caller) -> int:
        """What the attacker expects an answer to cost."""
        if not self.priced:
            return 1
        known = self._rules[1]._known.get(token.id)
        return 2 ** max((known.resembling(self._rules[1].sketch(Query(text))[1]) if known else 0) - 3, 0)

    def ask(self, draw: Draw) -> tuple[Row, bool] | None:
        """The verdict on the cheapest of some variants; None if no token can pay for any."""
        offers = []
        for _ in range(VARIANTS if self.priced else 1):
            row, text = draw()
            size = len(text.encode())
            tokens = [token for token, left in self.left.items() if left[1] >= size]
            offers += [(self.price(text, token), random.random(), token, row, text) for token in tokens]
            if offers and min(offers)[0] == 1:
                break
        if not offers:
            return None
        price, _, token, row, text = min(offers, key=lambda offer: offer[:2])
        if self.priced:
            price = self._rules[0].ask(token, [Query(text)]).price
            self._rules[1].ask(token, [Query(text)])
        if price > self.left[token][0]:
            self.left[token][0] = 0
            del self.left[token]
            return None if not self.left else self.ask(draw)
        self.left[token][0] -= price
        self.left[token][1] -= len(text.encode())
        self.answered += 1
        return row, self.bound.detect(text, fpr=LEVEL).is_marked


class Words:
    """Ordinary words, and words of similar meaning."""

    def __init__(self) -> None:
        lexicon = load_lexicon(workspace=Workspace(cache_dir()))
        self.ordinary = sorted({word.strip(".,;:!?") for text in ordinary_texts(40) for word in text.split()})
        rows = np.argsort(-lexicon.frequency)[:30_000]
        self._forms = ["", *lexicon.forms]
        self._rows, self._vectors = rows, lexicon.tokens(rows)
        self._lexicon = lexicon
        self._near: dict[str, list[str]] = {}

    def near(self, word: str, count: int = 8) -> list[str]:
        """Words of similar meaning; ordinary ones for a word outside the lexicon."""
        form = form_of(word.strip(".,;:!?\"'()"))
        if form not in self._near:
            row = self._lexicon.rows([form])
            found: list[str] = []
            if row[0]:
                likeness = self._vectors @ self._lexicon.tokens(row)[0]
                found = [self._forms[self._rows[i]] for i in np.argsort(-likeness)[1 : count + 1]]
            self._near[form] = found or random.sample(self.ordinary, count)
        return self._near[form]


def regression(rows: Sequence[Row], answers: Sequence[bool]) -> Row:
    """What each column adds to an answer."""
    design = np.stack(rows)
    design = design - design.mean(axis=0)
    target = np.array(answers, dtype=float) - np.mean(answers)
    ridge = design.T @ design + 0.02 * len(rows) * np.eye(design.shape[1])
    return np.asarray(np.linalg.solve(ridge, design.T @ target))


def learned(
    oracle: Oracle, draw: Callable[[float], tuple[Row, str]], queries: int
) -> tuple[Row | None, float]:
    """Ask with shares that keep both verdicts likely; returns the regression and the share marked."""
    share, rows, answers = 0.5, [], []
    for _ in range(queries):
        found = oracle.ask(functools.partial(draw, share))
        if found is None:
            break
        rows.append(found[0])
        answers.append(found[1])
        share = float(np.clip(share + (-0.02 if found[1] else 0.02), 0.05, 0.95))
    if len(set(answers)) < 2:
        return None, float(np.mean(answers)) if answers else 0.0
    return regression(rows, answers), float(np.mean(answers))


def removal(oracle: Oracle, text: str, kind: str, words: Words, queries: int) -> dict[str, object]:
    """Find and replace the words that carry the mark."""
    given = text.split()
    others = [random.choice(words.ordinary) for _ in given]

    def draw(share: float) -> tuple[Row, str]:
        keep = np.random.default_rng(random.getrandbits(32)).random(len(given)) < share
        if kind == "runs":
            keep = np.repeat(
                np.random.default_rng(random.getrandbits(32)).random(len(given) // 4 + 1) < share, 4
            )[: len(given)]
        shown = [random.choice([word, *words.near(word)]) for word in given] if kind == "near" else given
        pieces = [
            word if kept else random.choice(words.ordinary) for word, kept in zip(shown, keep, strict=True)
        ]
        return keep.astype(float), " ".join(pieces)

    weights, marked = learned(oracle, draw, queries)

    def needed(order: Sequence[int]) -> int:
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            gone = set(order[:middle])
            edited = " ".join(others[i] if i in gone else word for i, word in enumerate(given))
            if oracle.bound.detect(edited, fpr=LEVEL).is_marked:
                low = middle + 1
            else:
                high = middle
        return low

    blind = [needed(random.sample(range(len(given)), len(given))) for _ in range(7)]
    return {
        "attack": f"removal, {kind}",
        "of": len(given),
        "answers": oracle.answered,
        "marked": round(marked, 2),
        "words": None if weights is None else needed([int(i) for i in np.argsort(-weights)]),
        "blind": float(np.median(blind)),
    }


def forgery(oracle: Oracle, carrier: str, target: str, words: Words, queries: int) -> dict[str, object]:
    """Choose the words of an unmarked text so that it is called marked."""
    given, marked = target.split(), carrier.split()
    choices = [[word, *words.near(word, 3)] for word in given]
    sizes = [len(each) for each in choices]

    def spelled(chosen: Sequence[int]) -> str:
        return " ".join(each[i] for each, i in zip(choices, chosen, strict=True))

    def draw(share: float) -> tuple[Row, str]:
        chosen = [random.randrange(size) for size in sizes]
        row = np.zeros(sum(sizes))
        row[np.cumsum([0, *sizes[:-1]]) + chosen] = 1.0
        count = max(4, int(share * len(marked)))
        start = random.randrange(max(1, len(marked) - count))
        part = marked[start : start + count]
        shown = [word if random.random() < 0.8 else random.choice(words.near(word)) for word in part]
        return row, f"{' '.join(shown)} {spelled(chosen)}"

    weights, share = learned(oracle, draw, queries)
    ends = np.cumsum([0, *sizes])
    chance = oracle.bound.detect(spelled([random.randrange(size) for size in sizes]))
    found = None
    if weights is not None:
        best = [int(np.argmax(weights[ends[i] : ends[i + 1]])) for i in range(len(given))]
        found = oracle.bound.detect(spelled(best))
    return {
        "attack": "forgery",
        "of": len(given),
        "answers": oracle.answered,
        "marked": round(share, 2),
        "p": None if found is None else found.p_value,
        "forged_z": None if found is None else round(found.z, 2),
        "chance": round(chance.z, 2),
        "attributable": None if found is None or found.forgery is None else found.forgery.attributable,
    }


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--detector", required=True, help="folder of a saved detector")
    parser.add_argument("--texts", type=Path, required=True, help="JSONL file with a marked text per line")
    parser.add_argument("--count", type=int, default=3, help="texts to attack")
    parser.add_argument("--words", type=int, default=180)
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--queries", type=int, default=1000, help="per token")
    parser.add_argument("--prices", choices=["service", "none"], default="service")
    parser.add_argument("--attacks", nargs="*", default=["random", "near", "runs", "forgery"])
    options: argparse.Namespace = parser.parse_args()
    bound = Detector.load(options.detector).scheme
    words, queries = Words(), options.queries * options.tokens
    lines = options.texts.read_text(encoding="utf-8").splitlines()[: options.count]
    targets = ordinary_texts(options.count)
    with tempfile.TemporaryDirectory() as folder:
        for i, line in enumerate(lines):
            text = " ".join(json.loads(line)["text"].split()[: options.words])
            for kind in options.attacks:
                random.seed(i)
                oracle = Oracle(bound, folder, tokens=options.tokens, priced=options.prices == "service")
                if kind == "forgery":
                    target = " ".join(targets[i].split()[:60])
                    found = forgery(oracle, text, target, words, queries)
                else:
                    found = removal(oracle, text, kind, words, queries)
                known = {"text": i, "z": round(bound.detect(text).z, 1), "tokens": options.tokens}
                print(json.dumps({**known, "prices": options.prices, **found}), flush=True)


if __name__ == "__main__":
    main()
