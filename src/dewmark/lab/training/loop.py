"""A training loop that can be killed at any moment and gives the same bytes in the end.

All randomness of step i comes from the seed and i (`rng`, `generator`), so a checkpoint holds no generator:
only the step's number and what the steps change. It is written every few seconds, between two steps, whole or
not at all. A Ctrl-C loses the steps since then, which are made again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dewmark.errors import ArtifactError, NumericalError
from dewmark.lab.training.job import Job
from dewmark.storage import load_bundle, save_bundle

if TYPE_CHECKING:
    import torch

__all__ = ["Learner", "TorchLearner", "device_of", "generator", "rng", "run_steps"]

_SECONDS = 10.0
_SMOOTHING = 0.98  # of the loss that is told: about the last 50 steps
_STRIDE = 1_000_003  # seeds s and s + 1 share no step's randomness in any training that anyone runs


class Learner(Protocol):
    """What is trained: a step changes it, its state is all that later steps depend on."""

    def step(self, index: int) -> float:
        """Take one step; returns its loss."""

    def state(self) -> Mapping[str, NDArray[Any]]:
        """Arrays that `load` restores it from, bit by bit."""

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a state."""


class TorchLearner:
    """The state of torch modules and optimizers by name; a subclass adds `step`.

    A learning rate that changes is set by the step's number, not by a scheduler object.
    """

    def __init__(
        self, modules: Mapping[str, torch.nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]
    ) -> None:
        self._modules = dict(modules)
        self._optimizers = dict(optimizers)

    def state(self) -> dict[str, NDArray[Any]]:
        """Weights, and the tensors that the optimizers keep for each of them."""
        found = {}
        for name, module in self._modules.items():
            for key, tensor in module.state_dict().items():
                found[f"module.{name}.{key}"] = tensor.detach().cpu().numpy().copy()
        for name, optimizer in self._optimizers.items():
            for i, kept in optimizer.state_dict()["state"].items():
                for key, value in kept.items():
                    if value is not None:
                        array = value.detach().cpu().numpy().copy() if hasattr(value, "detach") else value
                        found[f"optimizer.{name}.{i}.{key}"] = np.asarray(array)
        return found

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Put weights and optimizers back."""
        import torch

        def tensors(prefix: str) -> dict[str, torch.Tensor]:
            return {
                key.removeprefix(prefix): torch.from_numpy(np.array(array))
                for key, array in state.items()
                if key.startswith(prefix)
            }

        for name, module in self._modules.items():
            module.load_state_dict(tensors(f"module.{name}."))
        for name, optimizer in self._optimizers.items():
            kept: dict[int, dict[str, torch.Tensor]] = {}
            for key, tensor in tensors(f"optimizer.{name}.").items():
                i, _, field = key.partition(".")
                kept.setdefault(int(i), {})[field] = tensor
            whole = optimizer.state_dict()
            optimizer.load_state_dict({**whole, "state": kept})


def run_steps(
    learner: Learner,
    job: Job,
    *,
    steps: int,
    name: str = "steps",
    description: str = "training",
    every: float = _SECONDS,
) -> float:
    """Take the steps that are left; returns the loss, smoothed over the last steps.

    Checkpoints go to ``job.work/name``; several loops of one job need different names.
    """
    folder = job.work / name
    done, smoothed = _resume(learner, job, name)
    saved = time.monotonic()
    for index in range(done, steps):
        job.progress(description, index, steps)
        loss = learner.step(index)
        if not np.isfinite(loss):
            raise NumericalError(f"the loss of step {index} is {loss}: try other texts or another --seed")
        smoothed = loss if index == 0 else _SMOOTHING * smoothed + (1.0 - _SMOOTHING) * loss
        if time.monotonic() - saved >= every or index + 1 == steps:
            meta = {"job": job.identity, "step": index + 1, "loss": smoothed}
            save_bundle(folder, meta=meta, arrays=learner.state())
            saved = time.monotonic()
    job.progress(description, steps, steps)
    return smoothed


def _resume(learner: Learner, job: Job, name: str) -> tuple[int, float]:
    """Load the checkpoint, if there is one of this job; returns how many steps are done, and the loss."""
    try:
        bundle = load_bundle(job.work / name)
    except ArtifactError:
        return 0, 0.0
    if bundle.meta.get("job") != job.identity:
        return 0, 0.0
    learner.load(bundle.arrays)
    return int(bundle.meta["step"]), float(bundle.meta["loss"])


def rng(seed: int, step: int) -> np.random.Generator:
    """The randomness of one step, for numpy."""
    return np.random.default_rng([seed, step])


def generator(seed: int, step: int) -> torch.Generator:
    """The randomness of one step, for torch, on the CPU: move what was drawn, so that devices agree."""
    import torch

    return torch.Generator().manual_seed(seed * _STRIDE + step)


def device_of(job: Job) -> torch.device:
    """The device that was asked for; auto takes a GPU if there is one."""
    import torch

    if job.device != "auto":
        return torch.device(job.device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
