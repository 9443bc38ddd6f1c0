"""Models in local folders and on the Hugging Face hub, loaded quietly."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from dewmark.extras import require

__all__ = ["quiet_libraries"]


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence the libraries' progress bars and all log lines below an error, then restore both."""
    hub = require("huggingface_hub.utils", extra="host")
    bars = require("transformers.utils.logging", extra="host")
    with contextlib.ExitStack() as restored:
        for logger in map(logging.getLogger, ("sentence_transformers", "transformers", "huggingface_hub")):
            restored.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        if not hub.are_progress_bars_disabled():
            restored.callback(hub.enable_progress_bars)
        if bars.is_progress_bar_enabled():
            restored.callback(bars.enable_progress_bar)
        bars.disable_progress_bar()
        hub.disable_progress_bars()
        yield
