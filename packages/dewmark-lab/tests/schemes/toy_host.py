"""A toy vocabulary whose words are numbers, each its own id, and a language model over it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from dewmark.core.keys import Key
from dewmark.registry import SCHEMES
from dewmark.scheme import BoundScheme, Scheme
from dewmark.workspace import HostInfo, Tokenized, Workspace

VOCAB = 320
KNOWN = 300  # higher ids pad the host's vocabulary
SPECIAL = frozenset({0, 1, 2})


class Numbers:
    """A tokenizer: "17 4 17" is the ids 17, 4, 17."""

    identity = "numbers"
    size = KNOWN
    special_ids = SPECIAL
    pad_id = 0

    def encode(self, texts: Sequence[str]) -> list[Tokenized]:
        rows = []
        for text in texts:
            offsets, start = [], 0
            for word in text.split(" ") if text else []:
                offsets.append((start, start + len(word)))
                start += len(word) + 1
            rows.append(Tokenized(text, tuple(int(text[a:b]) for a, b in offsets), tuple(offsets)))
        return rows

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        return [" ".join(map(str, row)) for row in batch]

    def save(self, folder: Path) -> None:
        raise NotImplementedError


class ToyModel:
    """A language model that is certain at even positions and uncertain at odd ones, whatever the text."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], list[tuple[int, ...]]]] = []

    def next_logits(
        self, prompts: Sequence[str], completions: Sequence[Sequence[int]]
    ) -> Iterator[torch.Tensor]:
        self.calls.append((list(prompts), [tuple(ids) for ids in completions]))
        for ids in completions:
            logits = torch.zeros(len(ids), VOCAB)
            logits[::2, 7] = 20.0
            yield logits


HOST = HostInfo("numbers", "numbers", VOCAB, Numbers(), lambda: np.zeros((VOCAB, 1), dtype=np.float32))


def key(index: int) -> Key:
    """The key with this index."""
    return Key(hashlib.sha256(f"key {index}".encode()).digest())


def bind(name: str, index: int = 0, *, model: ToyModel | None = None, **settings: object) -> BoundScheme:
    """A registered scheme bound to a key and the toy vocabulary."""
    workspace = Workspace(cache=Path(), open_host=(lambda _: model) if model else None)
    return _scheme(name, **settings).bind(key(index), HOST, workspace)


@functools.cache
def _scheme(name: str, **settings: object) -> Scheme:
    scheme: Scheme = SCHEMES[name]().with_settings(settings)
    return scheme


def numbers(count: int, *, seed: int = 0, top: int = KNOWN) -> str:
    """A text of ``count`` random ids, none special; a small ``top`` makes it repetitive."""
    return " ".join(map(str, np.random.default_rng(seed).integers(3, top, count)))


def random_words(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    """Keyed words (rows, width), int64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2**32, (rows, width), generator=generator)


def raw_logits(rows: int, width: int, *, scale: float = 2.0, seed: int = 1) -> torch.Tensor:
    """Normal logits (rows, width)."""
    return scale * torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
