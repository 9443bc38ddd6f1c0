"""The forward pass of Llama and Qwen2 in plain PyTorch, so that a converted host writes without transformers.

Importing transformers and its model classes takes twice as long as importing torch, and the hosts that ship
with dewmark need little of it. The operations are those of transformers on a CPU, in the same order, so the
logits are the same to the last bit (`tests/hosts/test_plain_llama.py`).

Boundary: token ids in, logits and a key-value cache out, as `decoding_loop.CachedForward` calls it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, scaled_dot_product_attention, silu

_WEIGHTS = "model.safetensors"

Kept = tuple[Tensor, Tensor]  # a layer's keys and values (batch, heads, tokens, d)
Parts = Mapping[str, tuple[Tensor, Tensor | None]]  # a layer's weights and biases, by name


class LlamaOutput(NamedTuple):
    """What a forward pass returns, under the names of transformers."""

    logits: Tensor
    past_key_values: tuple[Kept, ...]


class PlainLlama(torch.nn.Module):
    """A Llama or Qwen2 model that `convert_gguf` saved in a folder, for inference on a CPU."""

    @staticmethod
    def can_load(folder: Path) -> bool:
        """Whether this module computes the model of a converted folder."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return (
            config.get("model_type") in {"llama", "qwen2"}
            and config.get("hidden_act") == "silu"
            and (config.get("rope_parameters") or {}).get("rope_type") == "default"
            and not config.get("use_sliding_window")
            and (folder / _WEIGHTS).is_file()  # not in shards
        )

    def __init__(self, folder: Path, *, dtype: torch.dtype) -> None:
        from safetensors import safe_open

        super().__init__()
        self.dtype = dtype
        self.config = _namespace(folder / "config.json")
        self.config.get_text_config = lambda: self.config
        self.generation_config = _namespace(folder / "generation_config.json")
        with safe_open(str(folder / _WEIGHTS), framework="pt") as file:
            weights = {name: file.get_tensor(name).to(dtype) for name in file.keys()}  # noqa: SIM118
        self._embeddings = weights["model.embed_tokens.weight"]
        self._head = weights.get("lm_head.weight", self._embeddings)
        self._norm = weights["model.norm.weight"]
        self._layers: list[dict[str, tuple[Tensor, Tensor | None]]] = []
        for i in range(self.config.num_hidden_layers):
            names = [name for name in weights if name.startswith(f"model.layers.{i}.")]
            parts = [name.removesuffix(".weight") for name in names if name.endswith(".weight")]
            both = ((weights[f"{part}.weight"], weights.get(f"{part}.bias")) for part in parts)
            self._layers.append(dict(zip((part.split(".")[-1] for part in parts), both, strict=True)))
        heads: int = self.config.num_attention_heads
        self._head_size: int = getattr(self.config, "head_dim", None) or self.config.hidden_size // heads
        self._groups = heads // self.config.num_key_value_heads
        steps = torch.arange(0, self._head_size, 2, dtype=torch.float) / self._head_size
        self._frequencies = 1.0 / (self.config.rope_parameters["rope_theta"] ** steps)

    def get_input_embeddings(self) -> SimpleNamespace:
        """An object with the embeddings (vocab, d) as ``weight``."""
        return SimpleNamespace(weight=self._embeddings)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: tuple[Kept, ...] | None = None,
        logits_to_keep: int = 0,
        use_cache: bool = True,
        return_dict: bool = True,
    ) -> LlamaOutput:
        """Logits of the last ``logits_to_keep`` tokens (0: all) of ``input_ids`` (batch, new tokens).

        ``attention_mask`` (batch, past and new tokens) is 0 at padding. ``use_cache`` and ``return_dict`` are
        always on.
        """
        new = input_ids.shape[1]
        past = 0 if past_key_values is None else past_key_values[0][0].shape[2]
        if position_ids is None:
            position_ids = torch.arange(past, past + new)[None]
        mask = None
        if attention_mask is not None or (past and new > 1):
            mask = torch.ones(new, past + new, dtype=torch.bool).tril(past)[None, None]
            if attention_mask is not None:
                mask = mask & attention_mask[:, None, None].bool()
        angles = position_ids[..., None].float() * self._frequencies
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        turn = angles.cos().to(self.dtype), angles.sin().to(self.dtype)
        hidden = embedding(input_ids, self._embeddings)
        cache = []
        for i, layer in enumerate(self._layers):
            x = self._scaled(hidden, layer["input_layernorm"][0])
            before = None if past_key_values is None else past_key_values[i]
            attended, kept = self._attend(layer, x, turn, mask, before)
            cache.append(kept)
            hidden = hidden + attended
            x = self._scaled(hidden, layer["post_attention_layernorm"][0])
            gated = silu(linear(x, *layer["gate_proj"])) * linear(x, *layer["up_proj"])
            hidden = hidden + linear(gated, *layer["down_proj"])
        last = self._scaled(hidden, self._norm)[:, -logits_to_keep:].contiguous()  # multiplied as one matrix
        return LlamaOutput(linear(last, self._head), tuple(cache))

    def _attend(
        self, layer: Parts, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor | None, before: Kept | None
    ) -> tuple[Tensor, Kept]:
        """Attention of ``x`` (batch, new, d) to itself and the tokens before it; all keys and values."""
        batch, new, _ = x.shape

        def project(name: str) -> Tensor:
            return linear(x, *layer[name]).view(batch, new, -1, self._head_size).transpose(1, 2)

        queries, keys = _turned(project("q_proj"), *turn), _turned(project("k_proj"), *turn)
        values = project("v_proj")
        if before is not None:
            keys, values = torch.cat((before[0], keys), dim=2), torch.cat((before[1], values), dim=2)
        kept = keys, values
        if mask is not None:  # then no fast attention shares heads
            keys, values = (each.repeat_interleave(self._groups, dim=1) for each in kept)
        attended = scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None and new > 1,
            scale=self._head_size**-0.5,
            enable_gqa=mask is None,
        )
        return linear(attended.transpose(1, 2).reshape(batch, new, -1), *layer["o_proj"]), kept

    def _scaled(self, x: Tensor, weight: Tensor) -> Tensor:
        """``x`` (batch, new, d) divided by its root mean square in float32, times ``weight`` (d,)."""
        x = x.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return weight * x.to(self.dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: ``x`` (batch, heads, new, d), each half of d turned against the other."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _namespace(file: Path) -> SimpleNamespace:
    return SimpleNamespace(**json.loads(file.read_text(encoding="utf-8")))
