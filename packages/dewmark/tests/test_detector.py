"""Saved detectors: the same verdicts without weights, private files, clear errors for broken ones."""

from __future__ import annotations

import dataclasses
import json
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
from tests.fakes import COMPOSED

import dewmark
from dewmark.detect import detect_texts, score_texts
from dewmark.errors import ArtifactError, ModelError, StorageError
from dewmark.types import Verdict
from dewmark_lab.testing.fake_host import FakeHost, tiny_model

PROMPT = " the old bridge over the river"
SECRET = bytes(range(7, 39))


def make_watermark(**settings: object) -> dewmark.Watermark:
    """DEW as the paper has it, with a strong bias, on the tiny host."""
    contexts = {} if settings else COMPOSED
    settings = {**contexts, "lambda": 3.0, **settings}
    return dewmark.Watermark(dewmark.Key(SECRET), host=FakeHost(400), scheme="dew-paper", settings=settings)


MODES = [{"mode": "token_only"}, {"mode": "neither"}]


@pytest.mark.parametrize("settings", [{}, {"whiten_contexts": True}, {"context_encoding": "window"}, *MODES])
def test_a_saved_detector_agrees_without_weights(bag_encoder, tmp_path, settings) -> None:
    watermark = make_watermark(**settings)
    scheme = watermark.scheme
    text = watermark.generate(PROMPT, max_new_tokens=100, min_new_tokens=100, seed=1).text
    texts = [text, PROMPT * 12]
    watermark.detector().save(tmp_path / "detector")
    assert not list((tmp_path / "detector").rglob("*.safetensors"))
    for file in (tmp_path / "detector").rglob("*"):
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
        assert file.is_dir() or SECRET not in file.read_bytes()
        assert file.is_dir() or SECRET.hex().encode() not in file.read_bytes()
    detector = dewmark.Detector.load(tmp_path / "detector")
    assert detector.scheme.fingerprint == scheme.fingerprint
    for ours, theirs in zip(detector.detect_batch(texts), score_texts(scheme, texts), strict=True):
        assert ours.p_value == pytest.approx(theirs.p_value, rel=1e-6)
        assert ours.tokens == theirs.tokens
    assert detector.detect(text).is_marked
    (ours,), (theirs,) = detector.examine([text]), watermark.examine([text])
    assert ours.passages == theirs.passages
    assert ours.judged.coverage == detector.detect(text).coverage


@pytest.fixture
def saved(bag_encoder, tmp_path) -> Path:
    make_watermark().detector().save(tmp_path / "detector")
    return tmp_path / "detector"


def test_broken_detectors_are_rejected(saved, tmp_path) -> None:
    with pytest.raises(StorageError, match="already exists"):
        make_watermark().detector().save(saved)
    with pytest.raises(ArtifactError, match="not a detector"):
        dewmark.Detector.load(tmp_path / "none")
    table = saved / "state" / "fold_product.npy"
    good = table.read_bytes()
    table.write_bytes(good[:-8] + b"\x00" * 8)
    with pytest.raises(ArtifactError, match=r"fold_product\.npy is corrupt"):
        dewmark.Detector.load(saved)
    table.unlink()
    with pytest.raises(ArtifactError, match="missing"):
        dewmark.Detector.load(saved)
    table.write_bytes(good)
    index = json.loads((saved / "detector.json").read_text())
    (saved / "detector.json").write_text(json.dumps({**index, "format": 99}))
    with pytest.raises(ArtifactError, match="format"):
        dewmark.Detector.load(saved)
    (saved / "detector.json").write_text("{")
    with pytest.raises(ArtifactError, match="corrupt"):
        dewmark.Detector.load(saved)


def test_a_detector_with_another_tokenizer_is_rejected(saved, tmp_path) -> None:
    _, other = tiny_model(300, kind="bytes")
    shutil.rmtree(saved / "tokenizer")
    other.save_pretrained(saved / "tokenizer")
    with pytest.raises(ModelError, match="not the one"):
        dewmark.Detector.load(saved)


def test_tables_are_shared_memory_maps(saved) -> None:
    bound = dewmark.Detector.load(saved).scheme
    assert isinstance(bound.reader.token_rows, np.memmap)
    assert not bound.reader.token_rows.flags.writeable


def test_prompts_stay_with_their_texts_around_blank_ones(monkeypatch) -> None:
    bound, given = dewmark.load_scheme(dewmark.Key(SECRET)), []
    texts = ["", "The first text.", " \n", "The second text."]
    (blank,) = score_texts(bound, [""], blank=True)
    made = [dataclasses.replace(blank, z=z) for z in (1.0, 2.0)]

    def whole(readings, **_):
        given.append([(each.text.text, each.prompt.text) for each in readings])
        return made

    monkeypatch.setattr(bound, "whole", whole)
    examined = detect_texts(texts, bound, prompts=["w", "x", "y", "z"], blank=True)
    alone = score_texts(bound, texts, prompts=["w", "x", "y", "z"], blank=True)
    for found in ([each.judged for each in examined], [each.detection for each in examined], alone):
        assert [found[1].z, found[3].z] == [1.0, 2.0]
        assert found[0].verdict is found[2].verdict is Verdict.TOO_SHORT
    assert given == [[(texts[1], "x"), (texts[3], "z")]] * 2
