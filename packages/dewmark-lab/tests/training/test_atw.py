"""Training of ATW on the tiny host: its losses, and an artifact that the scheme uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.fakes import BagEncoder

from dewmark.core.keys import Key
from dewmark.detect import score_text
from dewmark.errors import InputError
from dewmark.registry import SCHEMES
from dewmark.watermark import Watermark
from dewmark.workspace import Workspace
from dewmark_lab.schemes.learned.atw import SemanticMap
from dewmark_lab.testing.trial import tiny_host
from dewmark_lab.training import atw
from dewmark_lab.training.job import TrainingJob, train_artifact
from dewmark_lab.training.texts import FileTexts


@pytest.fixture
def job(topic_job: Callable[..., TrainingJob], monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrainingJob]:
    monkeypatch.setattr(atw, "TEXTS", 24)
    return topic_job


def test_training_aligns_views_of_a_text(job, tmp_path: Path) -> None:
    """Signs of two views agree more than before, and those of different texts stay uncorrelated."""
    _, before = train_artifact(atw.train, job("atw", 1, "short"))
    artifact, after = train_artifact(atw.train, job("atw", 60))
    assert after["views_agree"] > max(before["views_agree"], 0.85)
    assert abs(after["texts_correlate"]) < 0.15
    assert after["loss"] < before["loss"]
    scheme = SCHEMES["atw"]().with_settings({"artifact": str(artifact.path)})
    bound = scheme.bind(Key(bytes(32)), tiny_host().info, Workspace(cache=tmp_path / "cache"))
    assert bound.artifact_identity == artifact.identity
    assert bound.semantics.outputs == 384


def test_encoded_contexts_mark_and_detect_alike(job, tmp_path: Path, monkeypatch) -> None:
    """The encoder runs on the text so far at every step, and reads the same prefixes again to detect."""
    monkeypatch.setattr(atw, "CUTS", 2)
    artifact, _ = train_artifact(atw.train, dataclasses.replace(job("atw", 5), contexts="encoded"))
    assert artifact.card["parameters"] == {"contexts": "encoded"}
    assert "--contexts encoded" in artifact.card["training"]["command"]
    settings = {"artifact": str(artifact.path), "refresh": 1, "alpha": 0.0, "delta": 3.0}
    wm = Watermark(Key(bytes(32)), host=tiny_host(), scheme="atw", settings=settings)
    bound = wm.scheme
    ids = tiny_host().info.tokenizer.encode([" the old bridge over the river"])[0].ids
    first, last = bound.semantics.prefixes(ids, [3, 6])
    np.testing.assert_allclose(bound.semantics.rows([ids[:3], ids])[0], first, atol=1e-6)
    assert first @ last < 0.999
    text = wm.generate(" the old bridge", max_new_tokens=60, seed=1).text
    found = wm.detect(text)
    assert found.p_value < 1e-6
    workspace = Workspace(cache=tmp_path / "cache", open_host=lambda _: tiny_host())
    stored = bound.scheme.restore(bound.state(), tiny_host().info, "stored", workspace)
    assert score_text(stored, text).p_value == pytest.approx(found.p_value)


def test_the_scheme_computes_the_trained_network(bag_encoder: BagEncoder) -> None:
    """numpy and torch give the same signs, except where half precision moves an output across 0."""
    network = atw.SignNetwork(bag_encoder.dim, seed=3)
    table = np.zeros((tiny_host().info.vocab_size, bag_encoder.dim), dtype=np.float16)
    semantics = SemanticMap.of(table, network.arrays(), "test", tiny_host().info)
    e = np.random.default_rng(0).normal(size=(50, bag_encoder.dim)).astype(np.float32)
    e /= np.linalg.norm(e, axis=1, keepdims=True)
    with torch.no_grad():
        T = network(torch.from_numpy(e)).numpy()
    clear = np.abs(T) > 0.01
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(semantics.signs(e)[clear], np.sign(T)[clear])


def test_losses_vanish_for_orthogonal_texts() -> None:
    e = torch.eye(4)  # unrelated texts, whose usual cosine is 0
    signs = 3.0 * torch.tensor([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [-1, 1, 1, -1]]).float()
    distance, balance, invariance = atw.losses(e, e, signs, signs)
    assert float(invariance) == pytest.approx(0.0, abs=1e-6)
    assert float(distance) == pytest.approx(0.0, abs=1e-6)  # orthogonal signs for orthogonal texts
    assert float(balance) > 0.1  # the first row and the first column lean to one side
    assert float(atw.losses(e, e, signs, -signs)[2]) == pytest.approx(2.0)


def test_short_texts_are_rejected(job, short_texts: FileTexts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atw, "TEXTS", 3)
    with pytest.raises(InputError, match="longer"):
        atw.train(dataclasses.replace(job("atw", 1), texts=short_texts))
