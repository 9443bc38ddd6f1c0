"""The contract of an encoder: texts in, vectors out.

An encoder knows no keys, tokenizers of hosts, or whitening. The smallest one is a class with three attributes
and a method:

    class Letters(Encoder):
        name = "letters"
        identity = "letters-1"
        dim = 26

        def encode(self, texts):
            return np.array([[t.count(c) for c in ascii_lowercase] for t in texts], dtype=np.float32)

    ENCODERS.register("letters", Letters)
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

from dewmark.arrays import F32
from dewmark.errors import ModelError
from dewmark.workspace import Progress, silent

__all__ = ["Encoder", "cannot_load"]


class Encoder(ABC):
    """Maps texts to vectors; safe to share between threads.

    ``name`` is the name that `dewmark.encoders.load_encoder` takes. Derived tables are cached under
    ``identity``: two encoders may share one only if they give the same vectors on every machine. ``device``
    is a torch device or ``auto``. ``languages`` are the ISO 639 codes of the languages it knows, None if it
    does not say (`dewmark.encoders.languages`).
    """

    name: str
    identity: str
    languages: frozenset[str] | None = None

    def __init__(self, *, device: str = "auto", progress: Progress = silent) -> None:
        self.device = device
        self.progress = progress
        self._lock = threading.RLock()

    @property
    @abstractmethod
    def dim(self) -> int:
        """The dimension of the vectors."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> F32:
        """N texts, possibly empty strings, to (N, dim); rows need not have unit norm."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.identity!r})"


def cannot_load(name: str, error: Exception) -> ModelError:
    """Another library's error while loading an encoder, as one line with the remedies."""
    from dewmark.models.packaged import PACKAGED

    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    encoders = " or ".join(model.name for model in PACKAGED.values() if model.role == "encoder")
    return ModelError(
        f"cannot load the encoder {name}: {reason.rstrip('.')}; fetch it with dewmark models pull {name}, "
        f"give a local folder, or use {encoders}"
    )
