"""Any scheme of dewmark behind MarkLLM's `AutoWatermark`; importing this module registers the name.

    given = {"scheme": "dew", "key": "my.key", "settings": {"strength": 2.0}}
    mark = AutoWatermark.load("dewmark", given, TransformersConfig(model=…, tokenizer=…, max_new_tokens=200))

Its detection, quality and attack pipelines then take ``mark`` like one of MarkLLM's own.
"""
# ruff: noqa: ANN401 - MarkLLM has no types

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from markllm.watermark import auto_watermark
from markllm.watermark.base import BaseWatermark

import dewmark

auto_watermark.WATERMARK_MAPPING_NAMES["dewmark"] = f"{__name__}.Dewmark"


class Dewmark(BaseWatermark):
    """A scheme and a key: ``algorithm_config`` has ``scheme``, ``key`` (a file), ``host``, ``settings``."""

    def __init__(self, algorithm_config: dict[str, Any], transformers_config: Any, *_: Any) -> None:
        model, given = transformers_config.model, {"scheme": "dew", "settings": {}, **algorithm_config}
        self.config = SimpleNamespace(  # the names that MarkLLM's own algorithms give these things
            generation_model=model,
            generation_tokenizer=transformers_config.tokenizer,
            device=transformers_config.device,
            gen_kwargs={"do_sample": True, **transformers_config.gen_kwargs},
        )
        key, host = dewmark.Key.load(given["key"]), given.get("host", model.name_or_path)
        self.scheme = dewmark.load_scheme(key, scheme=given["scheme"], host=host, settings=given["settings"])

    def generate_watermarked_text(self, prompt: str, *_: Any, **__: Any) -> str:
        """The prompt and its marked continuation, as MarkLLM returns them."""
        ids = self.config.generation_tokenizer(prompt, return_tensors="pt").to(self.config.device)
        mark, more = dewmark.WatermarkingConfig(self.scheme), self.config.gen_kwargs
        with torch.inference_mode():
            out = self.config.generation_model.generate(**ids, **more, watermarking_config=mark)
        return str(self.config.generation_tokenizer.batch_decode(out, skip_special_tokens=True)[0])

    def detect_watermark(self, text: str, return_dict: bool = True, *_: Any, **__: Any) -> Any:
        """The verdict at p < 0.01, and z as the score."""
        found = dewmark.Detector(self.scheme).detect(text)
        result = {"is_watermarked": found.p_value < 0.01, "score": found.z}
        return result if return_dict else tuple(result.values())
