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

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

from dewmark.arrays import F32
from dewmark.errors import ModelError
from dewmark.registry import ENCODERS
from dewmark.workspace import Progress, silent

__all__ = ["Encoder", "cannot_load"]

_ENGLISH = "en"
# As their makers list them. XLM-RoBERTa's languages are those that e5 starts from.
_USE_M3 = "ar de en es fr it ja ko nl pl pt ru th tr zh"
_SBERT = (
    "ar bg ca cs da de el en es et fa fi fr gl gu he hi hr hu hy id it ja ka ko ku lt lv mk mn mr ms my nl "
    "no pl pt ro ru sk sl sq sr sv th tr uk ur vi zh"
)
_XLM_R = (
    "af am ar as az be bg bn br bs ca cs cy da de el en eo es et eu fa fi fr fy ga gd gl gu ha he hi hr hu "
    "hy id is it ja jv ka kk km kn ko ku ky la lo lt lv mg mk ml mn mr ms my ne nl no om or pa pl ps pt ro "
    "ru sa sd si sk sl so sq sr su sv sw ta te th tl tr ug uk ur uz vi xh yi zh"
)
_PACKAGED = {"use-m3": _USE_M3, "minilm": _ENGLISH}
_FAMILIES = (
    (re.compile(r"paraphrase-multilingual-", re.IGNORECASE), _SBERT),
    (re.compile(r"multilingual-e5-", re.IGNORECASE), _XLM_R),
    (re.compile(r"/all-(?:minilm|mpnet|distilroberta)-", re.IGNORECASE), _ENGLISH),
)


class Encoder(ABC):
    """Maps texts to vectors; safe to share between threads.

    ``name`` is the name that `dewmark.encoders.load_encoder` takes. Derived tables are cached under
    ``identity``: two encoders may share one only if they give the same vectors on every machine. ``device``
    is a torch device or ``auto``. ``languages`` are the ISO 639 codes of the languages it knows, None if it
    does not say (`encoder_languages`).
    """

    name: str
    identity: str
    languages: frozenset[str] | None = None

    def __init__(self, *, device: str = "auto", progress: Progress = silent) -> None:
        self.device, self.progress = device, progress
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


def encoder_languages(name: str) -> frozenset[str] | None:
    """The languages of an encoder that `dewmark.encoders.load_encoder` finds by this name; None if unknown.

    The name is enough, so that a stored detector, which may not need the encoder itself, knows them too. A
    registered class declares them as its attribute ``languages``.
    """
    if name in _PACKAGED:
        return _codes(_PACKAGED[name])
    if name in ENCODERS:
        return getattr(ENCODERS[name], "languages", None)
    return next((_codes(languages) for family, languages in _FAMILIES if family.search(name)), None)


def _codes(languages: str) -> frozenset[str]:
    return frozenset(languages.split())
