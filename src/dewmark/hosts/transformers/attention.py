"""Attention of one new token per row to keys that several heads share, without a copy of the keys per head.

On a GPU, transformers copies shared keys and values once per head in every step if rows are padded: no fast
kernel takes both a mask and shared keys. The heads that share a key can be read as several positions of one
head, and then an ordinary masked kernel serves. In Qwen2.5-1.5B six heads share each key.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["share_keys"]

_NAME = "dewmark_shared_keys"


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
