"""dewmark: watermarks for language models that survive paraphrase and translation.

The names below are the whole public surface. They are imported on first use, so that ``import dewmark``
loads neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dewmark.version import __version__

_PUBLIC = {
    "Attribution": "dewmark.types",
    "Decoding": "dewmark.decoding",
    "Detection": "dewmark.types",
    "DewmarkError": "dewmark.errors",
    "Generation": "dewmark.types",
    "Key": "dewmark.core.keys",
    "Located": "dewmark.passages",
    "Passage": "dewmark.passages",
    "TokenScore": "dewmark.types",
    "Verdict": "dewmark.types",
    "Watermark": "dewmark.watermark",
    "export_detector": "dewmark.detector",
    "identify": "dewmark.watermark",
    "load_detector": "dewmark.detector",
    "load_host": "dewmark.hosts",
    "load_scheme": "dewmark.watermark",
    "locate": "dewmark.passages",
}

__all__ = [
    "Attribution",
    "Decoding",
    "Detection",
    "DewmarkError",
    "Generation",
    "Key",
    "Located",
    "Passage",
    "TokenScore",
    "Verdict",
    "Watermark",
    "__version__",
    "export_detector",
    "identify",
    "load_detector",
    "load_host",
    "load_scheme",
    "locate",
]

if TYPE_CHECKING:
    from dewmark.core.keys import Key
    from dewmark.decoding import Decoding
    from dewmark.detector import export_detector, load_detector
    from dewmark.errors import DewmarkError
    from dewmark.hosts import load_host
    from dewmark.passages import Located, Passage, locate
    from dewmark.types import Attribution, Detection, Generation, TokenScore, Verdict
    from dewmark.watermark import Watermark, identify, load_scheme


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'dewmark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
