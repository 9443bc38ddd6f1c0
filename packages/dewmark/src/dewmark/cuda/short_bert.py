"""BERT-like layers for short texts on a GPU, in eight kernels per layer instead of thirteen.

Queries, keys and values come from one product, attention is specialised for a few tokens, and each residual
sum is normalised in the same pass. Weights and results are those of the transformers model, up to rounding.
Pooling is left to the caller.
"""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear

__all__ = ["ShortBert", "short_bert"]

_KINDS = ("BertModel", "RobertaModel", "XLMRobertaModel")


def short_bert(model: Any) -> ShortBert | None:  # noqa: ANN401 - any transformers model
    """The model's layers in this form, if it is of a supported kind on a CUDA device with Triton."""
    if not _known(model) or model.device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    return ShortBert(model)


def _known(model: Any) -> bool:  # noqa: ANN401 - see `short_bert`
    """Whether the model is of a supported kind, without adapters or quantized weights."""
    return (
        type(model).__name__ in _KINDS
        and not model.config.is_decoder
        and all(type(part) is torch.nn.Linear for layer in model.encoder.layer for part in _products(layer))
    )


def _products(layer: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401 - a transformers module
    attention = layer.attention.self
    return attention.query, attention.key, attention.value


class _Layer(NamedTuple):
    """One layer: weight (3 * width, width) and bias (3 * width) of the joined product, and its modules."""

    joined: tuple[torch.Tensor, torch.Tensor]
    attention: Any
    intermediate: Any
    output: Any


class ShortBert:
    """The layers of a transformers encoder, for texts of at most ``longest`` tokens."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401 - see `short_bert`
        from dewmark.cuda.encoder_kernels import MOST_TOKENS

        self.longest = MOST_TOKENS
        self._embeddings = model.embeddings
        self._heads: int = model.config.num_attention_heads
        self._layers = [
            _Layer(_joined(layer), layer.attention.output, layer.intermediate, layer.output)
            for layer in model.encoder.layer
        ]

    @torch.no_grad()
    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Ids and mask (N, T) to one vector per token, (N, T, width)."""
        from dewmark.cuda.encoder_kernels import add_norm, attend

        x: torch.Tensor = self._embeddings(input_ids=ids)
        for layer in self._layers:
            mixed = attend(linear(x, *layer.joined), mask, heads=self._heads)
            x = add_norm(layer.attention.dense(mixed), x, layer.attention.LayerNorm)
            x = add_norm(layer.output.dense(layer.intermediate(x)), x, layer.output.LayerNorm)
        return x


def _joined(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ANN401 - a transformers module
    """The stacked weights and biases of queries, keys and values."""
    weight = torch.cat([part.weight.detach() for part in _products(layer)])
    return weight, torch.cat([part.bias.detach() for part in _products(layer)])
