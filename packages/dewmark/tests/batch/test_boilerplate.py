"""Boilerplate of a corpus: what many rows share is found, left out, or counted once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dewmark.batch.boilerplate import ROWS, Boilerplate, Mode, template_weights
from dewmark.batch.sources import open_source

NAMES = ["Anna", "Boris", "Clara", "Dmitri", "Elena", "Farid", "Grace", "Hugo", "Imani", "Jonas"]
FORM = (
    "Dear {name}, thank you for your order, which we will send to {place} within five working days of today."
)
WORDS = ["red", "green", "sea", "hill", "town", "cat", "dog", "old", "new", "run"]
OWN = [" ".join(np.random.default_rng(i).choice(WORDS, size=20)) for i in range(10)]


def letters() -> list[str]:
    return [FORM.format(name=name, place=f"{name}ville") for name in NAMES]


def test_what_rows_share_is_left_out() -> None:
    texts = [f"{letter} {own}" for letter, own in zip(letters(), OWN, strict=True)]
    found = Boilerplate.find(texts)
    for text, name, own in zip(texts, NAMES, OWN, strict=True):
        stripped = found.without(text)
        assert own in stripped
        assert "thank you" not in stripped
        assert name in stripped
    assert found.without("Nothing of this occurs anywhere else in the corpus at all.").startswith(
        "Nothing of"
    )


def test_a_few_rows_are_no_template() -> None:
    texts = [*letters()[: ROWS - 1], *OWN]
    assert len(Boilerplate.find(texts).runs) == 0
    assert Boilerplate.find(texts).without(texts[0]) == texts[0]
    assert Boilerplate.find([]).template("a text") is None


def test_copies_of_a_template_have_its_name() -> None:
    bills = [
        f"This is a reminder that bill number {i} of last month is still open, please pay it soon."
        for i in range(8)
    ]
    found = Boilerplate.find([*letters(), *bills, *OWN], mode=Mode.ONCE)
    names = [found.template(text) for text in (*letters(), *bills, *OWN)]
    assert len(set(names[:10])) == len(set(names[10:18])) == 1
    assert names[0] != names[10]
    assert set(names[18:]) == {None}
    weights = template_weights(names)
    assert weights.sum() == pytest.approx(12.0)  # two templates and ten texts
    assert weights[0] == pytest.approx(0.1)


def test_a_long_text_with_a_shared_footer_is_no_copy() -> None:
    texts = [f"{' '.join(OWN[i:])} {letters()[0]}" for i in range(5)]
    found = Boilerplate.find(texts, mode=Mode.ONCE)
    assert len(found.runs)
    assert found.template("completely other words " * 20 + letters()[0]) is None


def test_the_rows_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in letters()), encoding="utf-8")
    source = open_source(str(path))
    found = Boilerplate.of_source(source, Mode.DROP)
    assert found.identity == Boilerplate.find(letters()).identity
    assert Boilerplate.of_source(source, Mode.KEEP) is None
