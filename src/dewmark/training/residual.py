"""The network that SIR and ATW train: an input layer, two residual blocks, an output layer."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.training.loop import generator

__all__ = ["ResidualNetwork"]

_FAR = 1 << 40  # a step number that no training reaches


class ResidualNetwork(torch.nn.Module):
    """d → hidden → two residual blocks → outputs; what the first layer reads is for subclasses to say."""

    def __init__(self, width: int, seed: int, *, hidden: int, outputs: int) -> None:
        super().__init__()
        sizes = {"input": (width, hidden), "first": (hidden, hidden), "second": (hidden, hidden)}
        source = generator(seed, _FAR)
        for name, (rows, columns) in {**sizes, "output": (hidden, outputs)}.items():
            weights = torch.randn(rows, columns, generator=source) / math.sqrt(rows)
            self.register_parameter(f"{name}_W", torch.nn.Parameter(weights))
            self.register_parameter(f"{name}_b", torch.nn.Parameter(torch.zeros(columns)))

    def arrays(self) -> dict[str, NDArray[np.float16]]:
        """Weights and biases by the names that the schemes read."""
        found = ((name.replace("_", "."), tensor) for name, tensor in self.named_parameters())
        return {name: tensor.detach().half().cpu().numpy() for name, tensor in found}

    def layer(self, name: str, h: torch.Tensor) -> torch.Tensor:
        """One layer's affine map of rows (N, ·)."""
        return h @ self.get_parameter(f"{name}_W") + self.get_parameter(f"{name}_b")

    def after_input(self, h: torch.Tensor) -> torch.Tensor:
        """What the first layer gave, (N, hidden), through the rest: (N, outputs)."""
        for name in ("first", "second"):
            h = h + torch.relu(self.layer(name, h))
        return self.layer("output", h)
