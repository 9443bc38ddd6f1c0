"""Training of TS and ATW on the tiny host: losses, artifacts, and their use by the schemes."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.fakes import BagEncoder
from tests.lab.training.conftest import tiny_job

from dewmark.artifacts import Artifact
from dewmark.baselines.learned.atw import SemanticMap
from dewmark.core.keys import Key
from dewmark.errors import InputError
from dewmark.lab.training import atw, ts
from dewmark.lab.training.job import Job, train_artifact
from dewmark.lab.training.texts import FileTexts
from dewmark.registry import SCHEMES, TRAINERS
from dewmark.testing.trial import tiny_host
from dewmark.workspace import Workspace


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bag_encoder: BagEncoder):
    """Makes a scheme's job: 24 texts of 60 words, each with its own topic."""
    monkeypatch.setattr(ts, "TEXTS", 24)
    monkeypatch.setattr(ts, "LENGTH", 40)
    monkeypatch.setattr(atw, "TEXTS", 24)
    source, tokenizer = random.Random(0), tiny_host().info.tokenizer
    topics = [source.sample(range(4, 400), 25) for _ in range(24)]
    texts = tokenizer.decode([source.choices(topic, k=60) for topic in topics])
    file = tmp_path / "texts.txt"
    file.write_text("\n\n".join(texts), encoding="utf-8")

    def make(scheme: str, steps: int, out: str = "out") -> Job:
        return tiny_job(scheme, file, tmp_path / out, steps=steps)

    return make


def trained(job: Job) -> tuple[Artifact, dict[str, float]]:
    return train_artifact(TRAINERS[job.scheme], job)


def test_min_norm_gives_the_shortest_convex_combination() -> None:
    """No point of the segment between them is shorter."""
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        a, b = (torch.randn(6, dtype=torch.float64, generator=draw) for _ in range(2))
        share = ts.min_norm((a[:2], a[2:]), (b[:2], b[2:]))
        shortest = share * a + (1.0 - share) * b
        grid = torch.linspace(0.0, 1.0, 101, dtype=torch.float64)[:, None]
        assert shortest.norm() <= (grid * a + (1.0 - grid) * b).norm(dim=1).min() + 1e-12
        assert min(float(shortest @ a), float(shortest @ b)) > -1e-12  # a descent direction for both
    one = (torch.tensor([1.0, 0.0]),)
    assert ts.min_norm(one, (torch.tensor([5.0, 0.0]),)) == 1.0
    assert ts.min_norm(one, one) == 0.5


def test_ts_trains_and_the_scheme_uses_it(job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ts, "RATE", 1e-2)  # a dozen steps must show an effect
    artifact, report = trained(job("ts", 12))
    assert {name: array.shape for name, array in artifact.arrays.items()} == {
        f"{net}.{part}": shape
        for net in ("gamma", "delta")
        for part, shape in (("A", (32, 64)), ("a", (64,)), ("B", (64, 1)), ("b", (1,)))
    }
    assert report["gamma_at_start"] == pytest.approx(0.25, abs=0.01)
    assert report["delta_at_start"] == pytest.approx(2.0, abs=0.05)
    assert report["gamma_deviation"] > 2.0 * report["gamma_deviation_at_start"]  # γ now depends on the token
    assert report["cosine"] > report["cosine_at_start"]  # MGDA favours the loss with the smaller gradient
    scheme = SCHEMES["ts"]().with_settings({"artifact": str(artifact.path)})
    bound = scheme.bind(Key(bytes(32)), tiny_host().info, Workspace(cache=tmp_path / "cache"))
    assert bound.artifact_identity == artifact.identity
    assert bound.parameters.gamma[:-1].std() > 0.0


def test_ts_losses_conflict(job) -> None:
    """A larger δ is easier to detect and changes more words."""
    one = job("ts", 1)
    kept = ts._candidates(one, one.texts_for(24))
    material = ts._Material.of(one, kept, torch.device("cpu"))

    def judged(gamma: float, delta: float) -> dict[str, float]:
        networks = torch.nn.ModuleDict({"gamma": ts.Network(32, gamma, 0), "delta": ts.Network(32, delta, 1)})
        return ts.Learner(networks, material, seed=0).judge()

    weak, strong = judged(-1.5, 0.0), judged(-1.5, 3.0)
    assert strong["z"] > weak["z"] + 1.0
    assert strong["cosine"] < weak["cosine"]
    assert judged(-1.5, -20.0)["cosine"] == pytest.approx(1.0, abs=1e-4)  # no bias: the same words
    assert abs(judged(-1.5, -20.0)["z"]) < 1.0


def test_atw_training_aligns_views_of_a_text(job, tmp_path: Path) -> None:
    """Signs of two views agree more than before, and those of different texts stay uncorrelated."""
    _, before = trained(job("atw", 1, "short"))
    artifact, after = trained(job("atw", 60))
    assert after["views_agree"] > max(before["views_agree"], 0.85)
    assert abs(after["texts_correlate"]) < 0.15
    assert after["loss"] < before["loss"]
    scheme = SCHEMES["atw"]().with_settings({"artifact": str(artifact.path)})
    bound = scheme.bind(Key(bytes(32)), tiny_host().info, Workspace(cache=tmp_path / "cache"))
    assert bound.artifact_identity == artifact.identity
    assert bound.halves.semantics.outputs == 384


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


def test_atw_losses_vanish_where_they_should() -> None:
    e = torch.eye(4)  # unrelated texts, whose usual cosine is 0
    signs = 3.0 * torch.tensor([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [-1, 1, 1, -1]]).float()
    distance, balance, invariance = atw.losses(e, e, signs, signs)
    assert float(invariance) == pytest.approx(0.0, abs=1e-6)
    assert float(distance) == pytest.approx(0.0, abs=1e-6)  # orthogonal signs for orthogonal texts
    assert float(balance) > 0.1  # the first row and the first column lean to one side
    assert float(atw.losses(e, e, signs, -signs)[2]) == pytest.approx(2.0)


@pytest.mark.parametrize("scheme", ["ts", "atw"])
def test_short_texts_are_rejected(job, scheme: str, tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "short.txt"
    file.write_text("\n\n".join(f" the {word}" for word in ("old", "new", "sea")), encoding="utf-8")
    monkeypatch.setattr({"ts": ts, "atw": atw}[scheme], "TEXTS", 3)
    with pytest.raises(InputError, match="longer"):
        trained(dataclasses.replace(job(scheme, 1), texts=FileTexts(file)))
