"""The training loop: a killed training ends with the same bytes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tests.training.conftest import tiny_job

from dewmark.errors import NumericalError
from dewmark_lab.training import loop
from dewmark_lab.training.loop import TorchLearner, generator, rng, run_steps

STEPS = 12


@pytest.fixture
def job(tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("one text\n\nanother text\n")
    return tiny_job("sir", texts, tmp_path / "out")


class Line(TorchLearner):
    """Fits a line with Adam, whose state must be restored, to random points of each step."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.net = torch.nn.Linear(3, 1)
        with torch.no_grad():
            self.net.weight.copy_(torch.randn(1, 3, generator=generator(0, 10**6)))
            self.net.bias.zero_()
        self._adam = torch.optim.Adam(self.net.parameters(), lr=0.05)
        super().__init__({"net": self.net}, {"adam": self._adam})
        self._stop_at = stop_at
        self.taken: list[int] = []

    def step(self, index: int) -> float:
        if index == self._stop_at:
            raise KeyboardInterrupt("killed")
        self.taken.append(index)
        x = torch.from_numpy(rng(7, index).normal(size=(8, 3)).astype(np.float32))
        loss = (self.net(x).squeeze(1) - x.sum(dim=1)).square().mean()
        self._adam.zero_grad()
        torch.autograd.backward(loss)
        self._adam.step()
        return float(loss.detach())


def weights(learner: Line) -> bytes:
    return learner.net.weight.detach().numpy().tobytes() + learner.net.bias.detach().numpy().tobytes()


@pytest.mark.parametrize("stop_at", [0, 1, 5, STEPS - 1])
def test_a_killed_training_ends_in_the_same_bytes(job, monkeypatch, stop_at):
    whole = Line()
    loss = run_steps(whole, job, steps=STEPS, name="whole")
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt, match="killed"):
        run_steps(Line(stop_at), job, steps=STEPS)
    rest = Line()
    assert run_steps(rest, job, steps=STEPS) == loss
    assert rest.taken == list(range(stop_at, STEPS))
    assert weights(rest) == weights(whole)


def test_a_finished_training_takes_no_more_steps(job):
    done = Line()
    loss = run_steps(done, job, steps=STEPS)
    again = Line()
    assert run_steps(again, job, steps=STEPS) == loss
    assert again.taken == []
    assert weights(again) == weights(done)


def test_another_job_s_checkpoint_is_ignored(job):
    run_steps(Line(), job, steps=STEPS)
    other = Line()
    run_steps(other, dataclasses.replace(job, seed=1), steps=STEPS)
    assert other.taken == list(range(STEPS))


def test_a_loss_of_nan_stops_the_training(job):
    class Broken(Line):
        def step(self, index: int) -> float:
            return float("nan")

    with pytest.raises(NumericalError, match="step 0"):
        run_steps(Broken(), job, steps=STEPS)


def test_cached_arrays_are_made_once_per_job(job):
    made = []

    def make() -> dict[str, np.ndarray]:
        made.append(1)
        return {"x": np.arange(3)}

    for _ in range(2):
        np.testing.assert_array_equal(job.cached("x", make)["x"], np.arange(3))
    assert len(made) == 1
    dataclasses.replace(job, seed=1).cached("x", make)
    assert len(made) == 2
    next((job.work / "x").glob("*.npy")).write_bytes(b"damaged")
    dataclasses.replace(job, seed=1).cached("x", make)
    assert len(made) == 3
