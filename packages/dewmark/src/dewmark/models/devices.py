"""Devices and number types by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dewmark.errors import ConfigError

if TYPE_CHECKING:
    import torch

__all__ = ["torch_device", "torch_dtype"]

_DTYPES = ("float32", "bfloat16", "float16")


def torch_device(name: str) -> torch.device:
    """The device of this name; ``auto`` is CUDA if available, else the CPU."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r} is not available, torch finds no CUDA here: use device='cpu'")
    return device


def torch_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of this name; ``auto`` is bfloat16 on CUDA, else float32."""
    import torch

    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in _DTYPES:
        raise ConfigError(f"unknown dtype {name!r}: use auto, {', '.join(_DTYPES)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype
