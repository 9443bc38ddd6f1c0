"""Texts built to break the test: in every door z is standard normal over keys, or there is no verdict.

What is cut from a text needs no key, so somebody can search for texts of which next to nothing is left. Such
texts had p = 1e-240 under keys that nobody marked with.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.many_keys import score_under

from dewmark.core.keys import Key
from dewmark.detect import score_text, score_texts
from dewmark.dew.form import FormKey
from dewmark.dew.matrix import TextMatrix, z_scores
from dewmark.dew.ring import EpochMatrices, KeyMatrices
from dewmark.dew.scheme import DEW, BoundDEW
from dewmark.dew.sequential import SequentialDetector
from dewmark.types import Looks, Verdict
from dewmark.verdict import decide
from dewmark.workspace import Workspace, no_host

KEY = Key(bytes(range(32)))
KEYS, AT_ONCE = 3000, 500
WORDS = """an old bridge over the river leads to harbour where ships wait for wind and a bell rings at dusk of
in is you that it he was on are as with his they be this have from or one had by but not what all were we when
your can said there each which she do how their if up across goes port boats stay until comes sounds"""
COMMON = np.array(WORDS.split())
DRILL = [np.array(part.split()) for part in ("He She It They We", "is was will can had", "here there up now")]


def chosen(rng: np.random.Generator, words: np.ndarray, count: int) -> list[str]:
    return words[rng.integers(len(words), size=count)].tolist()


def hostile_text(kind: int, rng: np.random.Generator, words: int) -> str:
    """Drills, salads of few and of many words, one sentence with a word exchanged, a word over and over."""
    if kind == 0:
        columns = [chosen(rng, part, words // 3 + 1) for part in DRILL]
        return ". ".join(" ".join(row) for row in zip(*columns, strict=True))
    if kind == 1:
        return " ".join(chosen(rng, rng.choice(COMMON, int(rng.integers(2, 7))), words))
    if kind == 2:
        return " ".join(chosen(rng, rng.choice(COMMON, int(rng.integers(30, 90))), words))
    if kind == 3:
        sentence, lines = chosen(rng, COMMON, 7), []
        for word in chosen(rng, COMMON, words // 7 + 1):
            sentence[3] = word
            lines.append(" ".join(sentence))
        return ". ".join(lines)
    rest, often = chosen(rng, COMMON, words // 3), str(rng.choice(COMMON))
    return " ".join(f"{often} {often} {word}" for word in rest)


@pytest.fixture(scope="module")
def bound() -> BoundDEW:
    made = DEW().bind(KEY, no_host(), Workspace(cache=Path("unused")))
    assert isinstance(made, BoundDEW)
    return made


@pytest.fixture(scope="module")
def texts() -> list[str]:
    rng = np.random.default_rng(11)
    return [hostile_text(i % 5, rng, int(rng.integers(20, 260))) for i in range(250)]


@pytest.fixture(scope="module")
def matrices(bound, texts) -> list[TextMatrix]:
    readings = bound.read(bound.tokenize(texts), bound.tokenize([""] * len(texts)))
    return [each.matrix for each in readings]


def deviations(matrices: list[TextMatrix]) -> np.ndarray:
    """sd of z over keys of the texts that are tested."""
    tested = [each for each in matrices if each.square > 0.0]
    F = np.stack([each.F for each in tested]).astype(np.float32)
    square = np.array([each.square for each in tested], dtype=np.float32)
    rng, total = np.random.default_rng(5), np.zeros(len(tested))
    for _ in range(KEYS // AT_ONCE):
        W = rng.standard_normal((AT_ONCE, *F.shape[1:]), dtype=np.float32)
        total += np.square(z_scores(F, square, W), dtype=np.float64).sum(axis=1)
    return np.sqrt(total / KEYS)


def test_the_deviation_of_z_over_keys_is_1(matrices) -> None:
    """Of a sample of 3,000 it has a standard error of 0.013."""
    found = deviations(matrices)
    assert 50 < len(found) < 240  # the others leave too little to test
    assert np.abs(found - 1.0).max() < 0.06


@pytest.mark.parametrize("kind", range(5))
def test_texts_of_thirty_thousand_words(bound, kind) -> None:
    text = hostile_text(kind, np.random.default_rng(kind), 30_000)
    (reading,) = bound.read(bound.tokenize([text]), bound.tokenize([""]))
    matrix = reading.matrix
    if matrix.square > 0.0:
        assert np.abs(deviations([matrix]) - 1.0).max() < 0.06


def test_every_door_gives_the_same_z(bound, texts, matrices) -> None:
    some = texts[:60]
    expected = [matrix.test(bound.own) for matrix in matrices[:60]]
    many = score_under(bound.scheme, [KEY, Key(bytes(32))], some, no_host(), bound.workspace)
    ring = DEW().bind(Key(bytes(range(32)), members=4), no_host(), bound.workspace)
    doors = {
        "detect": [score_text(bound, text) for text in some[:30]],
        "batch": score_texts(bound, some),
        "many keys": [row[0] for row in many],
    }
    for name, found in doors.items():
        for one, each in zip(expected, found, strict=False):
            assert each.z == pytest.approx(one.z, abs=1e-3), name
    for one, each, row, member in zip(expected, doors["batch"], many, score_texts(ring, some), strict=True):
        if one.effective_length == 0.0:
            for shown in (each, decide(row, fpr=0.01, looks=Looks(keys=len(row))), member):
                assert (shown.p_value, shown.verdict) == (1.0, Verdict.TOO_SHORT)


def test_the_innovations_of_a_stream_have_deviation_1(bound, texts) -> None:
    """A stream under 1,500 keys at once: each word's innovation has a standard error of 0.018."""
    rng = np.random.default_rng(3)
    d_T, d_C = bound.own.W.shape
    W = rng.standard_normal((1500, d_T, d_C), dtype=np.float32)
    uses = KeyMatrices([EpochMatrices(None, len(W), 0, W, tuple(FormKey(i, i * i) for i in range(len(W))))])
    for text in [text[:150] for text in texts[:3]]:
        stream = SequentialDetector(bound.reader, uses, limit=bound.scheme.flatten)
        stream.update(text)
        if stream.rows is not None:
            innovations = stream.rows.innovations[: stream.rows.count]
            assert np.abs(innovations.std(axis=1) - 1.0).max() < 0.085
