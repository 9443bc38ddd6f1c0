"""Training of TS on the tiny host: its losses, and an artifact that the scheme uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dewmark.core.keys import Key
from dewmark.errors import InputError
from dewmark.registry import SCHEMES
from dewmark.workspace import Workspace
from dewmark_lab.testing.trial import tiny_host
from dewmark_lab.training import ts
from dewmark_lab.training.job import TrainingJob, train_artifact
from dewmark_lab.training.texts import FileTexts


@pytest.fixture
def job(topic_job: Callable[..., TrainingJob], monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrainingJob]:
    monkeypatch.setattr(ts, "TEXTS", 24)
    monkeypatch.setattr(ts, "LENGTH", 40)
    return topic_job


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


def test_training_makes_gamma_depend_on_tokens(job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ts, "RATE", 1e-2)  # a dozen steps must show an effect
    artifact, report = train_artifact(ts.train, job("ts", 12))
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


def test_the_losses_conflict(job) -> None:
    """A larger δ is easier to detect and changes more words."""
    one = job("ts", 1)
    kept = ts.likely_candidates(one, one.texts_for(24))
    material = ts._Material.of(one, kept, torch.device("cpu"))

    def judged(gamma: float, delta: float) -> dict[str, float]:
        networks = torch.nn.ModuleDict(
            {"gamma": ts.TSNetwork(32, gamma, 0), "delta": ts.TSNetwork(32, delta, 1)}
        )
        return ts.TSLearner(networks, material, seed=0).judge()

    weak, strong = judged(-1.5, 0.0), judged(-1.5, 3.0)
    assert strong["z"] > weak["z"] + 1.0
    assert strong["cosine"] < weak["cosine"]
    assert judged(-1.5, -20.0)["cosine"] == pytest.approx(1.0, abs=1e-4)  # no bias: the same words
    assert abs(judged(-1.5, -20.0)["z"]) < 1.0


def test_short_texts_are_rejected(job, short_texts: FileTexts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ts, "TEXTS", 3)
    with pytest.raises(InputError, match="longer"):
        ts.train(dataclasses.replace(job("ts", 1), texts=short_texts))
