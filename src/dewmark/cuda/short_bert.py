"""The layers of BERT and its like for short texts on a GPU, in eight kernels a layer in place of thirteen.

Queries, keys and values come from one product, attention is made for a few tokens, and each sum is normalised
in one pass. The weights are those of the model of transformers, and so is the result, up to rounding.
Boundary: ids in, one vector a token out; pooling stays with the model around it.
"""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear

__all__ = ["ShortBert", "short_bert"]

_KINDS = ("BertModel", "RobertaModel", "XLMRobertaModel")


def short_bert(model: Any) -> ShortBert | None:  # noqa: ANN401 - any model of transformers
    """The model's layers in this form, where it is of a known kind on a CUDA device with Triton."""
    if not _known(model) or model.device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    return ShortBert(model)


def _known(model: Any) -> bool:  # noqa: ANN401 - see `short_bert`
    """Whether the model is of a kind whose layers are known here, without adapters or packed weights."""
    return (
        type(model).__name__ in _KINDS
        and not model.config.is_decoder
        and all(type(part) is torch.nn.Linear for layer in model.encoder.layer for part in _products(layer))
    )


def _products(layer: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401 - a module of transformers
    attention = layer.attention.self
    return attention.query, attention.key, attention.value


class _Layer(NamedTuple):
    """One layer: weight (3 * width, width) and bias (3 * width) of its joined product, then its own parts."""

    joined: tuple[torch.Tensor, torch.Tensor]
    attention: Any
    intermediate: Any
    output: Any


class ShortBert:
    """The layers of an encoder of transformers, for texts of at most ``longest`` tokens."""

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
        """Ids and mask (N, T) to one vector a token, (N, T, width)."""
        from dewmark.cuda.encoder_kernels import add_norm, attend

        x: torch.Tensor = self._embeddings(input_ids=ids)
        for layer in self._layers:
            mixed = attend(linear(x, *layer.joined), mask, heads=self._heads)
            x = add_norm(layer.attention.dense(mixed), x, layer.attention.LayerNorm)
            x = add_norm(layer.output.dense(layer.intermediate(x)), x, layer.output.LayerNorm)
        return x


def _joined(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ANN401 - a module of transformers
    """Weights and biases of queries, keys and values, one below the other."""
    weight = torch.cat([part.weight.detach() for part in _products(layer)])
    return weight, torch.cat([part.bias.detach() for part in _products(layer)])
