"""Universal Sentence Encoder multilingual v3: in numpy on the CPU, in torch on a device.

The package that carries the weights brings a forward pass in numpy and a tokenizer in Python. The CPU keeps
that numpy; elsewhere the forward pass is ours (`use_torch`), and then the tokenizer is what takes the time,
hence `WordPieces`. Both give the same vectors but for rounding (torch on a CPU: 3e-7), so the encoder has one
identity.

The forward pass of Universal Sentence Encoder multilingual v3 in torch, for batches on a CUDA device.

Each piece's embedding x (512) goes through three branches of 256, of orders n = 2, 3 and 5, each two
residual convolutions over n neighbouring pieces; embedding and branches are normalised, summed over the text
and divided by √length, and a small network makes the vector of the text from the sum. Convolutions are
products of matrices here: those are in full float32 unless torch is told otherwise, while cuDNN's
convolutions are in TF32.
Boundary: texts or padded ids in, unit rows out; what becomes of them is the callers' business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import layer_norm, normalize, pad, relu

from dewmark.arrays import F32, I64
from dewmark.encoders.base import Encoder, cannot_load, same_device
from dewmark.encoders.window_ids import TokenRows, WordCutter, Words, ids_and_mask, packed, padded, token_rows
from dewmark.errors import DewmarkError, ModelError
from dewmark.models.packaged import PACKAGED, fetch
from dewmark.models.unpacked import load_use, load_use_tokenizer
from dewmark.workspace import Progress, Tokenizer

if TYPE_CHECKING:
    import torch

    from dewmark.cuda.encoder import GraphedEncoder

__all__ = ["TorchUSE", "USEEncoder", "WordPieces", "batches"]


_ORDERS = ((2, 0), (3, 1), (5, 2))  # neighbours in all, and how many of them stand before the piece

# Pieces in a batch, padding included: about 3,000 windows, and half a gigabyte while they are computed.
_BUDGET = 1 << 15


class TorchUSE:
    """The weights of one file on a device; safe to share between threads."""

    fill = 0

    def __init__(self, weights: Path, pieces: WordPieces, *, device: torch.device) -> None:
        try:
            with np.load(weights, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            chunks = [arrays.pop(f"q{i + 1}") for i in range(len(arrays["lo"]))]
            for name in ("proj{}", "proj_b{}", "ln_g{}", "ln_b{}"):  # the three branches side by side
                joined = [arrays.pop(name.format(n)) for n, _ in _ORDERS]
                arrays[name.format("s")] = np.concatenate(joined, axis=-1)
        except (OSError, KeyError, ValueError) as error:
            raise ModelError(
                f"cannot read {weights} ({error}): delete {weights.parents[2]} and run again"
            ) from error
        self.device = device
        self._pieces = pieces
        self._eps = float(arrays.pop("eps"))
        # Row i is row i // 17 of the chunk i % 17. It stays in bytes: 65 MB, where float32 would be 262.
        table = np.stack(chunks, axis=1).reshape(-1, chunks[0].shape[1])
        self._table = torch.from_numpy(table).to(device)
        self._weights = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        self.dim = int(arrays["d3"].shape[1])

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> F32:
        """N texts to (N, dim), unit rows, in batches of like length."""
        found = self._pieces.rows(texts)
        rows = np.empty((len(found), self.dim), dtype=np.float32)
        for batch in batches(np.fromiter(map(len, found), dtype=np.int64, count=len(found)), budget=_BUDGET):
            given = padded([found[i] for i in batch.tolist()]).to(self.device)
            rows[batch] = self(*ids_and_mask(given)).cpu().numpy()
        return rows

    def tokenize(self, texts: Sequence[str], *, multiple: int) -> torch.Tensor:
        """Ids (N, T) of N texts, on the CPU, -1 where none is; T is a multiple of ``multiple``."""
        return padded(self._pieces.rows(texts), multiple=multiple)

    def of_windows(self, tokenizer: Tokenizer) -> TokenRows | None:
        """The rows of windows of a host's ids, whose tokens are cut beforehand."""
        return token_rows(self._pieces, tokenizer)

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Ids and mask (N, T), each row with a piece at least, to unit rows (N, dim), float32."""
        weights, eps = self._weights, self._eps
        present = mask.to(torch.float32).unsqueeze(-1)
        chunk = ids % len(weights["lo"])
        x = self._table[ids].float() * weights["scale"][chunk, None] + weights["lo"][chunk, None]
        branches = _affine(x, weights["projs"], weights["proj_bs"])
        branches = layer_norm(branches, branches.shape[-1:], weights["ln_gs"], weights["ln_bs"], eps)
        features = [x]
        for (n, before), h in zip(_ORDERS, branches.mul_(present).chunk(len(_ORDERS), dim=-1), strict=True):
            for layer in (1, 2):
                c = _affine(_neighbours(h, n, before), weights[f"w{layer}_{n}"], weights[f"b{layer}_{n}"])
                h = (relu(c) + h).mul_(present)  # beyond the text's ends there is nothing
            features.append(h)
        y = torch.cat(features, dim=-1)
        y = layer_norm(y, y.shape[-1:], weights["ln_g"], weights["ln_b"], eps).mul_(present).sum(dim=1)
        length = present.sum(dim=1)
        # The projection of a sum, in place of the sum of projections.
        y = (y @ weights["cnn_W"] + length * weights["cnn_b"]) / length.sqrt()
        y = relu(y @ weights["p1"] + relu(y @ weights["d0"]) @ weights["d1"])
        y = torch.tanh(y @ weights["p3"] + relu(y @ weights["d2"]) @ weights["d3"])
        return normalize(y, dim=-1, eps=eps**0.5)


def _affine(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """(N, T, a) to (N, T, b), as one product."""
    return torch.addmm(bias, x.flatten(0, 1), weight).view(*x.shape[:2], -1)


def _neighbours(x: torch.Tensor, n: int, before: int) -> torch.Tensor:
    """(N, T, a) to (N, T, n a): each piece with those around it, zero beyond the edges."""
    tokens = x.shape[1]
    wide = pad(x, (0, 0, before, n - 1 - before))
    return torch.cat([wide[:, i : i + tokens] for i in range(n)], dim=-1)


def batches(lengths: I64, *, budget: int) -> Iterator[I64]:
    """Indices of rows, by length; padded, a batch is at most ``budget`` ids, or one row."""
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order].tolist()
    start = 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or (end + 1 - start) * ordered[end] > budget:
            yield order[start:end]
            start = end


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
        from dewmark.cuda.encoder import GraphedEncoder

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
