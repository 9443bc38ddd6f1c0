"""A training loop that can be killed at any moment and still ends with the same bytes.

All randomness of step i comes from the seed and i (`rng`, `generator`), so a checkpoint needs no generator
state: it holds the step's number and the learner's arrays. It is written atomically every few seconds,
between two steps. A killed run repeats the steps since the last checkpoint.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dewmark.errors import ArtifactError, NumericalError
from dewmark.storage import load_bundle, save_bundle
from dewmark_lab.training.job import TrainingJob

if TYPE_CHECKING:
    import torch

BEYOND_STEPS = 1 << 40  # a step number that no training reaches, for randomness outside of the steps
CHECKPOINT_SECONDS = 10.0  # between two checkpoints
_SMOOTHING = 0.98  # of the reported loss: an average over about 50 steps
_STRIDE = 1_000_003  # between seeds of `generator`: no training has so many steps


class TorchLearner(ABC):
    """What is trained: torch modules and optimizers by name.

    A learning rate that changes must be set from the step's number, not by a scheduler object.
    """

    def __init__(
        self, modules: Mapping[str, torch.nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]
    ) -> None:
        self._modules = dict(modules)
        self._optimizers = dict(optimizers)

    @abstractmethod
    def step(self, index: int) -> float:
        """Take one step; returns its loss."""

    def minimize(self, loss: torch.Tensor) -> float:
        """Take a gradient step with every optimizer; returns the loss."""
        import torch

        for optimizer in self._optimizers.values():
            optimizer.zero_grad()
        torch.autograd.backward(loss)
        for optimizer in self._optimizers.values():
            optimizer.step()
        return float(loss.detach())

    def state(self) -> dict[str, NDArray[Any]]:
        """The modules' weights and the optimizers' tensors."""
        arrays = {}
        for name, module in self._modules.items():
            for key, tensor in module.state_dict().items():
                arrays[f"module.{name}.{key}"] = tensor.detach().cpu().numpy().copy()
        for name, optimizer in self._optimizers.items():
            for i, kept in optimizer.state_dict()["state"].items():
                for key, value in kept.items():
                    if value is not None:
                        array = value.detach().cpu().numpy().copy() if hasattr(value, "detach") else value
                        arrays[f"optimizer.{name}.{i}.{key}"] = np.asarray(array)
        return arrays

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore modules and optimizers."""
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
            optimizer.load_state_dict({**optimizer.state_dict(), "state": kept})


def run_steps(
    learner: TorchLearner, job: TrainingJob, *, steps: int, name: str = "steps", description: str = "training"
) -> float:
    """Take the remaining steps; returns the smoothed loss. Checkpoints go to ``job.work/name``."""
    done, smoothed = _resume(learner, job, name)
    saved = time.monotonic()
    for index in range(done, steps):
        job.progress(description, index, steps)
        loss = learner.step(index)
        if not np.isfinite(loss):
            raise NumericalError(f"the loss of step {index} is {loss}: try other texts or another --seed")
        smoothed = loss if index == 0 else _SMOOTHING * smoothed + (1.0 - _SMOOTHING) * loss
        if time.monotonic() - saved >= CHECKPOINT_SECONDS or index + 1 == steps:
            meta = {"job": job.identity, "step": index + 1, "loss": smoothed}
            save_bundle(job.work / name, meta=meta, arrays=learner.state())
            saved = time.monotonic()
    job.progress(description, steps, steps)
    return smoothed


def rng(seed: int, step: int) -> np.random.Generator:
    """The numpy generator of one step."""
    return np.random.default_rng([seed, step])


def generator(seed: int, step: int) -> torch.Generator:
    """The torch generator of one step. It is on the CPU: move the draws, so that devices agree."""
    import torch

    return torch.Generator().manual_seed(seed * _STRIDE + step)


def _resume(learner: TorchLearner, job: TrainingJob, name: str) -> tuple[int, float]:
    """Load this job's checkpoint, if there is one; returns the number of steps done and the loss."""
    try:
        bundle = load_bundle(job.work / name)
    except ArtifactError:
        return 0, 0.0
    if bundle.meta.get("job") != job.identity:
        return 0, 0.0
    learner.load(bundle.arrays)
    return int(bundle.meta["step"]), float(bundle.meta["loss"])
