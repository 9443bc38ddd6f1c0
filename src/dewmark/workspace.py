"""What a scheme may see of the world: a host's vocabulary, its tokenizer, a cache folder, a progress bar.

Boundary: descriptions and protocols only; engines fill them in, schemes use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

__all__ = ["HostInfo", "LanguageModel", "Progress", "Tokenized", "Tokenizer", "Workspace", "silent"]

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A text as token ids, each with its (start, end) character offsets into the text."""

    text: str
    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]


class Tokenizer(Protocol):
    """What a scheme needs of a host's tokenizer."""

    @property
    def identity(self) -> str:
        """A hash that two tokenizers share only if they cut every text alike."""

    @property
    def size(self) -> int:
        """How many ids the tokenizer knows (a host's logits may have more)."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that stand for no text (begin, end, padding, …)."""

    @property
    def pad_id(self) -> int | None:
        """The id that pads prompts on the left, if there is one."""

    def encode(self, texts: Sequence[str]) -> list[Tokenized]:
        """Cut texts into tokens, without special tokens."""

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """Token ids to text, special tokens left out."""

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into a folder."""


@dataclass(frozen=True)
class HostInfo:
    """What may be known of a host model without running it.

    ``vocab_size`` is the width of the host's logits. ``embeddings`` gives the input-embedding table,
    (vocab_size, d_T) float32, and is called only when no cached table serves. ``identity`` changes
    whenever the weights of that table or the tokenizer change.
    """

    name: str
    identity: str
    vocab_size: int
    tokenizer: Tokenizer
    embeddings: Callable[[], NDArray[np.float32]]


class LanguageModel(Protocol):
    """A host as a detector may run it: only schemes whose `Needs` declare ``host_at_detection`` do."""

    def next_logits(
        self, prompts: Sequence[str], completions: Sequence[Sequence[int]]
    ) -> Iterator[torch.Tensor]:
        """For each completion of L ids the host's logits (L, vocab), float32, in the order given.

        Row i is what the host predicts for id i after the prompt (or its own start token, where the prompt
        is empty) and the ids before. Texts are batched inside; one text's logits are held at a time.
        """


def silent(description: str, done: int, total: int) -> None:
    """Progress that goes nowhere."""


@dataclass(frozen=True)
class Workspace:
    """Where a scheme keeps derived files, and how it reports long work.

    ``progress(description, done, total)`` is called now and then during work of more than a second.
    ``find_host`` turns another host's name into its `HostInfo` (a donor of token embeddings);
    ``open_host`` loads the weights of the host that the scheme is bound to, or of another by its name.
    """

    cache: Path
    progress: Progress = silent
    find_host: Callable[[str], HostInfo] | None = None
    open_host: Callable[[str | None], LanguageModel] | None = None
