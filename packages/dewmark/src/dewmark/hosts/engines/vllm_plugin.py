"""Called by vLLM in each of its processes (group ``vllm.general_plugins``); idle unless switched on."""

from __future__ import annotations

import os

SWITCH = "DEWMARK_VLLM_WATERMARKER"


def register() -> None:
    """Make vLLM's own watermark the default mark if ``DEWMARK_VLLM_WATERMARKER`` is 1."""
    if os.environ.get(SWITCH) == "1":
        from dewmark.hosts.engines.vllm_watermarker import patch_create_watermarker

        patch_create_watermarker()
