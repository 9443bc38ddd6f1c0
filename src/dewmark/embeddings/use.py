"""Universal Sentence Encoder multilingual v3: in numpy on the CPU, in torch on a device.

The package that carries the weights brings a forward pass in numpy and a tokenizer in Python. The CPU keeps
that numpy; elsewhere the forward pass is ours (`use_torch`), and then the tokenizer is what takes the time,
hence `WordPieces`. Both give the same vectors but for rounding (torch on a CPU: 3e-7), so the encoder has one
identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dewmark.arrays import F32
from dewmark.embeddings.encoders import Encoder, cannot_load, same_device
from dewmark.embeddings.foreign import load_use, load_use_tokenizer
from dewmark.embeddings.joining import WordCutter, Words
from dewmark.embeddings.packaged import PACKAGED, fetch
from dewmark.embeddings.packing import packed
from dewmark.errors import DewmarkError
from dewmark.workspace import Progress

if TYPE_CHECKING:
    import torch

    from dewmark.embeddings.graphed import GraphedEncoder

__all__ = ["USEEncoder", "WordPieces"]


_UNKNOWN, _AROUND = packed([0]), (packed([1]), packed([2]))
_EMPTY, _NO_WORDS = b"".join(_AROUND), _UNKNOWN.join(_AROUND)


class USEEncoder(Encoder):
    """Universal Sentence Encoder multilingual v3; ``device`` is ``auto`` or a torch device."""

    def __init__(self, *, progress: Progress | None = None, device: str = "auto") -> None:
        self._package = PACKAGED["use-m3"]
        super().__init__(self._package.name, self._package.identity)
        self._progress = progress
        self._device = device
        self._model: Any = None
        self._graphs: GraphedEncoder | None = None

    @property
    def dim(self) -> int:
        """512, known without loading anything."""
        return self._package.dim

    def encode(self, texts: Sequence[str]) -> F32:
        """N texts to (N, 512), unit rows."""
        return np.asarray(self._loaded().encode(list(texts)), dtype=np.float32)

    def graphed(self, device: torch.device) -> GraphedEncoder | None:
        """The encoder as CUDA graphs, if it was loaded onto that device."""
        from dewmark.embeddings.graphed import GraphedEncoder
        from dewmark.embeddings.use_torch import TorchUSE

        with self._lock:
            model = self._loaded()
            if not isinstance(model, TorchUSE) or not same_device(model.device, device):
                return None
            if self._graphs is None:
                self._graphs = GraphedEncoder(model)
            return self._graphs

    def _loaded(self) -> Any:  # noqa: ANN401 - the package's class or TorchUSE: both have encode
        with self._lock:
            if self._model is None:
                try:
                    self._model = self._load()
                except DewmarkError:
                    raise
                except Exception as error:  # no such device, or no room on it
                    raise cannot_load(self.name, error) from error
        return self._model

    def _load(self) -> Any:  # noqa: ANN401
        folder = fetch(self.name, progress=self._progress) / self._package.entry
        if self._device == "cpu":
            return load_use(folder)
        import torch

        automatic = "cuda" if torch.cuda.is_available() else "cpu"
        device = torch.device(automatic if self._device == "auto" else self._device)
        if device.type == "cpu":
            return load_use(folder)
        from dewmark.embeddings.use_torch import TorchUSE

        pieces = WordPieces(load_use_tokenizer(folder))
        return TorchUSE(folder / "resources" / "weights.npz", pieces, device=device)


class WordPieces(WordCutter):
    """The ids that the package's tokenizer gives, word by word: most words have been seen before.

    That cutting at spaces changes nothing rests on three facts about its file: no rule of the normaliser
    takes in a space, and none gives two in a row; a piece has the sign of a space at its start or not at
    all; and scores are multiples of 2⁻²², so that sums of them are exact and the best cut of a word does not
    depend on what stands before it.
    """

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401 - the package's own class
        self._tokenizer = tokenizer
        super().__init__(_AROUND, Words(self._cut))

    def rows(self, texts: Sequence[str]) -> list[bytes]:
        """The ids of each text and those of its two ends."""
        return self.many(texts, _AROUND) if texts else []

    def finished(self, rows: list[bytes]) -> list[bytes]:
        """Rows; a text without words is one unknown word."""
        return [row if row != _EMPTY else _NO_WORDS for row in rows]

    def _cut(self, words: Sequence[str]) -> list[bytes]:
        """The ids of words. White space is cut as one unknown word, though it is none.

        An unknown word has the sign of a space before it.
        """
        cut = (packed(self._tokenizer.encode(word, add_bos=False, add_eos=False)) for word in words)
        return [b"" if ids == _UNKNOWN else ids for ids in cut]
