"""Attention on a GPU: to keys that several heads share, without a copy per head, and to growing texts.

On a GPU, transformers copies shared keys and values once per head in every step if rows are padded: no fast
kernel takes both a mask and shared keys. The heads that share a key can be read as several positions of one
head, and then an ordinary masked kernel serves. In Qwen2.5-1.5B six heads share each key.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["growing_attention"]

_NAME = "dewmark_shared_keys"
_WITHOUT_PLANS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def growing_attention(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """A context for attention to texts of ever new lengths.

    On CUDA, PyTorch may choose cuDNN's kernels, which plan each new shape: 50 to 100 ms for every token of a
    growing text. The other kernels need no plan.
    """
    return sdpa_kernel(_WITHOUT_PLANS) if device.type == "cuda" else contextlib.nullcontext()


def share_keys(model: Any) -> None:  # noqa: ANN401 - any model of transformers
    """Make a model of transformers attend this way, if its heads share keys and PyTorch attends for it."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    config = model.config.get_text_config()
    heads, shared = (getattr(config, f"num_{name}", None) for name in ("attention_heads", "key_value_heads"))
    if not shared or heads == shared or getattr(config, "_attn_implementation", None) != "sdpa":
        return
    AttentionInterface.register(_NAME, shared_key_attention)
    AttentionMaskInterface.register(_NAME, sdpa_mask)
    model.set_attn_implementation(_NAME)


def shared_key_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,  # noqa: ANN401 - whatever transformers passes on
) -> tuple[torch.Tensor, None]:
    """Attention (batch, new, heads, d) of ``query`` (batch, heads, new, d); keys are (batch, shared, all, d).

    ``attention_mask`` (batch, 1, new, all) is True where a token is seen.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    batch, heads, new, d = query.shape
    shared = key.shape[1]
    if new > 1 or attention_mask is None or heads == shared or options.get("position_bias") is not None:
        result: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return result
    groups = heads // shared
    attended = scaled_dot_product_attention(
        query.reshape(batch, shared, groups, d),
        key,
        value,
        attn_mask=attention_mask.expand(-1, -1, groups, -1),
        scale=scaling,
    )
    return attended.reshape(batch, 1, heads, d), None
