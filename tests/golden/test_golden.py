"""A small part of the golden record, fast enough for every run; ``make golden`` compares all of it."""

from __future__ import annotations

import pytest
from tests.golden import record
from tests.golden.api import worlds
from tests.golden.compare import ELSEWHERE, differences

SOME = {
    "dew": ("dew: lexicon (the default)", "dew: tokens bias, window raw contexts (the paper)"),
    "baselines": ("baseline: kgw",),
    "stored": ("detectors kept in the repository", "keys", "words and languages"),
}


@pytest.mark.parametrize("file", SOME)
def test_nothing_has_changed(file: str) -> None:
    found = record.check([file], only=lambda name: name in SOME[file])
    assert sorted(found) == sorted(SOME[file])
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_every_scheme_is_in_the_record() -> None:
    assert worlds.uncovered() == []
    assert [file for file, sections in record.FILES.items() if set(record.read(file)) != set(sections)] == []


def test_a_difference_is_told_and_rounding_is_not() -> None:
    was = {"ids": [1, 2], "p": 1e-40, "z": 13.1, "text": "a", "scores": [0.0, 1.0]}
    assert list(differences(was, was)) == []
    close = {**was, "p": 1e-40 * (1 + 1e-5), "z": 13.1 * (1 + 1e-8), "scores": [1e-9, 1.0]}
    assert list(differences(was, close)) == []
    assert len(list(differences(was, close, exact=True))) == 3
    other = {"ids": [1, 3], "p": 1.01e-40, "z": 13.101, "text": "b", "scores": [0.0]}
    assert len(list(differences(was, other))) == 5
    assert list(differences({"a": 1}, {"b": 1})) == ["a: gone", "b: not in the record"]


def test_on_another_processor_last_bits_and_draws_may_differ_and_nothing_else() -> None:
    was = {"text": "a", "ids": [1, 2], "z": 2.0, "host": "llama@0123456789ab", "other tests": [{"p": 0.5}]}
    close = {**was, "z": 2.0001, "host": "llama@ba9876543210", "other tests": [{"p": 0.3}]}
    assert list(differences(was, close, tolerance=ELSEWHERE)) == []
    assert len(list(differences(was, close))) == 3
    assert len(list(differences(was, close, tolerance=ELSEWHERE, exact=True))) == 3
    other = {"text": "b", "ids": [1, 3], "z": 2.01, "host": "gemma", "other tests": [{"p": 0.01}]}
    assert len(list(differences(was, other, tolerance=ELSEWHERE))) == 5
