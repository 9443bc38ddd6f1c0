"""Random weights for timing: a decoder in Llama-3.2-3B's shape, an encoder in MPNet-base's, a mark's tables.

`Decoder` is plain PyTorch with fixed shapes, so that a whole step can be captured in a CUDA graph; `llama`
and `sentence_encoder` are models of transformers and sentence-transformers. What they say means nothing;
their cost is that of the real ones.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.nn import functional

from dewmark.cuda.bias_step import WindowMark
from dewmark.cuda.window_contexts import window_rows
from dewmark.dew.alignment import DeviceTables, TokenChannel
from dewmark.dew.marking import BiasSession
from dewmark.dew.scheme import DEW
from dewmark.encoders.contexts import WindowContexts
from dewmark.encoders.sentence_transformers import SentenceTransformerEncoder

DEVICE = torch.device("cuda")
N = 3072
SCHEME = DEW(units="token", sampler="bias")


@dataclass(frozen=True)
class Shape:
    """Sizes of a transformer."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocab: int


LLAMA_3B = Shape(layers=28, width=3072, heads=24, kv_heads=8, hidden=8192, vocab=128_256)
MPNET_BASE = Shape(layers=12, width=768, heads=12, kv_heads=12, hidden=3072, vocab=250_002)
LETTERS = [chr(97 + i) for i in range(26)]
PIECES = [*LETTERS, *(a + b for a in LETTERS for b in LETTERS)]
PIECES += [f"##{piece}" for piece in PIECES]


def _matrix(*size: int, device: torch.device) -> torch.Tensor:
    return torch.randn(*size, device=device, dtype=torch.bfloat16) * size[-1] ** -0.5


class Decoder:
    """One token a call for a batch of rows, with keys and values in buffers of a fixed length."""

    def __init__(self, shape: Shape, *, batch: int, length: int, device: torch.device) -> None:
        self.shape = shape
        head = shape.width // shape.heads
        kv = shape.kv_heads * head
        sizes = {
            "qkv": (shape.width + 2 * kv, shape.width),
            "out": (shape.width, shape.width),
            "up": (2 * shape.hidden, shape.width),
            "down": (shape.width, shape.hidden),
        }
        self.layers = [
            {name: _matrix(*size, device=device) for name, size in sizes.items()} for _ in range(shape.layers)
        ]
        self.embedding = _matrix(shape.vocab, shape.width, device=device)
        self.resize(batch, length)

    def resize(self, batch: int, length: int) -> None:
        """Take other batches."""
        shape, device = self.shape, self.embedding.device
        head = shape.width // shape.heads
        kept = (shape.layers, 2, batch, shape.kv_heads, length, head)
        self.cache = torch.zeros(kept, device=device, dtype=torch.bfloat16)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.places = torch.arange(length, device=device)
        angles = torch.outer(self.places.float(), 5e5 ** -(torch.arange(0, head, 2, device=device) / head))
        self.turns = torch.cat((angles.cos(), angles.sin()), dim=-1).to(torch.bfloat16)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) after ids (batch,), which go to the next place."""
        shape, batch = self.shape, len(ids)
        head = shape.width // shape.heads
        cos, sin = self.turns[self.position].chunk(2, dim=-1)
        seen = (self.places <= self.position)[None, None, None, :]
        x = self.embedding[ids]
        for weights, cache in zip(self.layers, self.cache, strict=True):
            qkv = functional.linear(functional.rms_norm(x, (shape.width,)), weights["qkv"]).view(
                batch, -1, 1, head
            )
            q, k, v = qkv.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
            q, k = _turned(q, cos, sin), _turned(k, cos, sin)
            cache[0].index_copy_(2, self.position, k)
            cache[1].index_copy_(2, self.position, v)
            groups = q.view(batch, shape.kv_heads, -1, head)
            alike = (groups @ cache[0].transpose(-1, -2)) * head**-0.5
            mixed = alike.masked_fill(~seen, -float("inf")).softmax(dim=-1) @ cache[1]
            x = x + functional.linear(mixed.reshape(batch, -1), weights["out"])
            gate, up = functional.linear(functional.rms_norm(x, (shape.width,)), weights["up"]).chunk(
                2, dim=-1
            )
            x = x + functional.linear(functional.silu(gate) * up, weights["down"])
        self.position += 1
        return functional.linear(functional.rms_norm(x, (shape.width,)), self.embedding)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def spellings() -> list[str]:
    """A word for every token of the host."""
    return [" " + "".join(LETTERS[(i // 26**j) % 26] for j in range(3)) for i in range(LLAMA_3B.vocab)]


def llama() -> torch.nn.Module:
    """A transformers model of random weights in Llama-3.2-3B's shape."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LLAMA_3B
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.width,
        intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=True,
    )
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
    return model


def sentence_encoder(folder: Path) -> SentenceTransformerEncoder:
    """A sentence-transformers model of random weights in MPNet-base's shape, over pieces of letters."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    shape = MPNET_BASE
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES]))
    config = BertConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.hidden,
    )
    BertModel(config).to(torch.bfloat16).save_pretrained(folder)
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    return SentenceTransformerEncoder(
        "random", identity="random", source=lambda: str(folder), device="cuda", dtype="bfloat16"
    )


class Setting:
    """A scheme's tables as if of some key, an encoder of random weights, a tokenizer that spells."""

    def __init__(self) -> None:
        vocab, width = LLAMA_3B.vocab, MPNET_BASE.width
        rows = torch.randn(vocab + 1, width, device=DEVICE, dtype=torch.float16)
        rows[-1] = 0.0
        R_C = torch.randn(width, N, device=DEVICE)
        Q = torch.randn(vocab, width, device=DEVICE) / N**0.5
        self.composed = DeviceTables(Q=Q, G=R_C @ R_C.T, context_rows=rows)
        self.window = dataclasses.replace(self.composed, context_rows=None)
        spelling = spellings()
        self.tokenizer = SimpleNamespace(
            identity="spelled",
            size=vocab,
            pad_id=None,
            special_ids=(),
            pieces=spelling,
            decode=lambda texts: ["".join(map(spelling.__getitem__, text)) for text in texts],
        )
        encoder = sentence_encoder(Path(tempfile.mkdtemp()))
        self.contexts = WindowContexts(encoder, self.tokenizer, None)

    def window_mark(self, batch: int) -> WindowMark:
        """The mark with window contexts for a captured host."""
        encoded = window_rows(self.contexts, DEVICE)
        return WindowMark(SCHEME, self.window, n=N, batch=batch, encoded=encoded)

    def session(self, kind: str, prompt: torch.Tensor) -> BiasSession:
        """A session of the library over a bound scheme that has what sessions ask for."""
        shared: dict[str, object] = {f"tables on {prompt.device}": getattr(self, kind)}

        def share(name: str, make: Callable[[], object]) -> object:
            if name not in shared:
                shared[name] = make()
            return shared[name]

        bound = SimpleNamespace(
            scheme=SCHEME,
            hashed=None,
            fold=SimpleNamespace(n=N),
            host=SimpleNamespace(vocab_size=LLAMA_3B.vocab, tokenizer=self.tokenizer),
            shared=share,
        )
        reader = SimpleNamespace(k=SCHEME.k, contexts=self.contexts if kind == "window" else None)
        return BiasSession(SCHEME, TokenChannel(bound, reader, prompt, None), vocab_size=LLAMA_3B.vocab)
