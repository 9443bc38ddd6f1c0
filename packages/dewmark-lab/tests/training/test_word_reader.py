"""The reader that comes with the package: on in every door, causal, and without effect on the null."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.fakes import tiny_lexicon

import dewmark
from dewmark.core.keys import Key
from dewmark.detect import score_text, score_texts
from dewmark.dew.packaged_reader import load_packaged_reader
from dewmark.dew.scheme import DEW
from dewmark.encoders.contexts import register_texts
from dewmark.encoders.lexicon import Lexicon, load_lexicon
from dewmark.text.words import words
from dewmark.workspace import NO_READER, Workspace, no_host
from dewmark_lab.training.word_reader import Example, ReaderNetwork, Training, train

WORKSPACE = Workspace(cache=Path("unused"))
TEXTS = [" ".join(text.split()) for text in register_texts() if len(text.split()) > 60]


@cache
def lexicon() -> Lexicon:
    return load_lexicon(workspace=WORKSPACE)


def rows_of(text: str) -> np.ndarray:
    return lexicon().rows([word.form for word in words(text)])


def test_it_expects_from_the_words_before_alone() -> None:
    reader = load_packaged_reader(lexicon())
    rows = rows_of(TEXTS[0])[:60]
    changed = rows.copy()
    changed[40:] = rows_of(TEXTS[1])[:20]
    before, after = reader.means(rows), reader.means(changed)
    np.testing.assert_allclose(before[:41], after[:41], atol=1e-5)
    assert np.abs(before[42:] - after[42:]).max() > 0.01


def test_it_explains_human_prose_that_nobody_trained_on() -> None:
    """At least 5% of the variance of words, beyond the mean word of all these texts."""
    reader = load_packaged_reader(lexicon())
    rows = [rows_of(text) for text in TEXTS]
    t = np.concatenate([lexicon().tokens(each)[each > 0] for each in rows])
    left = t - np.concatenate([reader.means(each)[each > 0] for each in rows])
    assert np.sum(left**2) < 0.95 * np.sum((t - t.mean(axis=0)) ** 2)


def test_z_is_standard_normal_over_keys() -> None:
    """Over 40 texts and 60 keys; their z are nearly independent."""
    keys = [Key(i.to_bytes(32, "big")) for i in range(60)]
    bound = DEW().bind(keys[0], no_host(), WORKSPACE)
    readings = bound.read(bound.tokenize(TEXTS[:40]), bound.tokenize([""] * 40))
    found = DEW().whole_under(keys, readings, fpr=0.01, workspace=WORKSPACE)
    assert found is not None
    z = np.array([[each.z for each in row] for row in found])
    assert abs(z.mean()) < 4.5 / np.sqrt(z.size)
    assert abs(z.std() - 1.0) < 4.5 / np.sqrt(2 * z.size)


@pytest.mark.parametrize("reader", [None, "none"])
def test_doors_agree_with_and_without_it(reader) -> None:
    key = Key(bytes(range(32)))
    bound = dewmark.load_scheme(key, reader=reader)
    one = [score_text(bound, text).z for text in TEXTS[:6]]
    many = dewmark.detect_texts(TEXTS[:6], dewmark.Keys([key], reader=reader))
    np.testing.assert_allclose(one, [each.detections[0].z for each in many], atol=2e-4)
    np.testing.assert_allclose(one, [each.z for each in score_texts(bound, TEXTS[:6])], atol=2e-4)
    other = dewmark.load_scheme(key, reader="none" if reader is None else None)
    assert np.abs(np.array(one) - [score_text(other, text).z for text in TEXTS[:6]]).max() > 0.05


def test_a_reader_of_another_lexicon_is_left_out() -> None:
    folder = str(tiny_lexicon())
    assert load_packaged_reader(load_lexicon(folder, workspace=WORKSPACE)) is None
    bound = DEW(lexicon=folder).bind(Key(bytes(32)), no_host(), WORKSPACE)
    text = "the old house on the hill over the water and the road to the sea"
    assert score_text(bound, text).z == score_text(bound.reading_with(NO_READER), text).z


def test_training_writes_the_network_that_is_read(tmp_path) -> None:
    """A network trained for a moment gives in numpy what it gives in torch, up to its 8-bit table."""
    rng = np.random.default_rng(0)
    rows = [rows_of(text)[:80].astype(np.int32) for text in TEXTS[:12]]
    data = [
        Example(each, rng.normal(0.0, 0.1, (len(each), lexicon().dim)).astype(np.float16), each >= 0)
        for each in rows
    ]
    options = Training(width=32, inner=48, table=500, epochs=2, batch=4)
    shares = train(data, data, lexicon(), tmp_path / "reader", options=options)
    assert set(shares) == {"network", "model"}
    reader = load_packaged_reader(lexicon(), tmp_path / "reader")
    units = torch.from_numpy(lexicon().tokens(np.arange(len(lexicon()) + 1)))
    places = torch.from_numpy(reader._place)
    network = ReaderNetwork(units, places, width=32, inner=48)
    with torch.no_grad():
        for name, value in reader._weights.items():
            if name not in ("scales", "unlisted"):
                getattr(network, name).copy_(torch.from_numpy(value))
        network.table.weight[0].copy_(torch.from_numpy(reader._weights["unlisted"]))
        network.table.weight[1:].copy_(torch.from_numpy(reader._table * reader._weights["scales"]))
        expected = network(torch.from_numpy(rows[0].astype(np.int64))[None])[0].numpy()
    np.testing.assert_allclose(reader.means(rows[0].astype(np.int64)), expected, atol=1e-4)
