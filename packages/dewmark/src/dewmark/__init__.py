"""dewmark: watermarks for language models that survive paraphrase and translation.

The names below are the whole public surface: the facade (`Watermark`, `Detector`, `load_scheme`,
`detect_texts`), its results, and the contracts of the extension points with their registries: `Scheme`,
`Encoder` and `Host`; `dewmark_lab.attacks` has that of attacks. They are imported on first use, so that
``import dewmark`` loads neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dewmark.version import __version__

if TYPE_CHECKING:
    from dewmark.core.keys import Key
    from dewmark.decoding import Decoding
    from dewmark.detect import Examined, detect_texts
    from dewmark.detector import Detector
    from dewmark.encoders import load_encoder
    from dewmark.encoders.base import Encoder
    from dewmark.errors import ConfigError, DewmarkError
    from dewmark.hosts import load_host
    from dewmark.hosts.base import Host
    from dewmark.hosts.transformers.watermarking_config import WatermarkingConfig
    from dewmark.mark import ChoosingSession, Session
    from dewmark.opening import Keys, load_scheme
    from dewmark.registry import ENCODERS, HOSTS, SCHEMES
    from dewmark.scheme import BoundScheme, Needs, Reading, Scheme, State
    from dewmark.stats.evidence import Evidence
    from dewmark.stats.key_test import Statistic, key_test
    from dewmark.types import (
        Coverage,
        Detection,
        Extent,
        Generation,
        Looks,
        Passage,
        TokenScore,
        Verdict,
    )
    from dewmark.watermark import Watermark
    from dewmark.workspace import HostInfo, Tokenized, Workspace

__all__ = [
    "ENCODERS",
    "HOSTS",
    "SCHEMES",
    "BoundScheme",
    "ChoosingSession",
    "ConfigError",
    "Coverage",
    "Decoding",
    "Detection",
    "Detector",
    "DewmarkError",
    "Encoder",
    "Evidence",
    "Examined",
    "Extent",
    "Generation",
    "Host",
    "HostInfo",
    "Key",
    "Keys",
    "Looks",
    "Needs",
    "Passage",
    "Reading",
    "Scheme",
    "Session",
    "State",
    "Statistic",
    "TokenScore",
    "Tokenized",
    "Verdict",
    "Watermark",
    "WatermarkingConfig",
    "Workspace",
    "__version__",
    "detect_texts",
    "key_test",
    "load_encoder",
    "load_host",
    "load_scheme",
]

_MODULES = {
    "dewmark.core.keys": "Key",
    "dewmark.decoding": "Decoding",
    "dewmark.detect": "Examined detect_texts",
    "dewmark.detector": "Detector",
    "dewmark.encoders": "load_encoder",
    "dewmark.encoders.base": "Encoder",
    "dewmark.errors": "ConfigError DewmarkError",
    "dewmark.hosts": "load_host",
    "dewmark.hosts.base": "Host",
    "dewmark.hosts.transformers.watermarking_config": "WatermarkingConfig",
    "dewmark.opening": "Keys load_scheme",
    "dewmark.registry": "ENCODERS HOSTS SCHEMES",
    "dewmark.mark": "ChoosingSession Session",
    "dewmark.scheme": "BoundScheme Needs Reading Scheme State",
    "dewmark.stats.evidence": "Evidence",
    "dewmark.stats.key_test": "Statistic key_test",
    "dewmark.types": "Coverage Detection Extent Generation Looks Passage TokenScore Verdict",
    "dewmark.watermark": "Watermark",
    "dewmark.workspace": "HostInfo Tokenized Workspace",
}
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'dewmark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
