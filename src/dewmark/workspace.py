"""What a scheme may see of the world: a host's vocabulary, its tokenizer, a cache folder, a progress bar.

Boundary: descriptions and protocols only; engines fill them in, schemes use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dewmark.errors import ConfigError

if TYPE_CHECKING:
    import torch

__all__ = [
    "Follower",
    "HostInfo",
    "LanguageModel",
    "Progress",
    "Tokenized",
    "Tokenizer",
    "Workspace",
    "no_host",
    "silent",
]

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

    @property
    def pieces(self) -> Sequence[str | None] | None:
        """The text of each id, None for half a character, where the text of ids is theirs joined."""

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


class _NoTokenizer:
    """Stands where a tokenizer would, and says that there is none."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ConfigError("no host is known here, which is enough to detect: name the host that is to write")


def no_host() -> HostInfo:
    """What a scheme that detects without any host is bound to (`Scheme.host_free`)."""

    def embeddings() -> NoReturn:
        raise ConfigError("no host is known here: it has no embeddings")

    return HostInfo("any", identity="", vocab_size=0, tokenizer=_NoTokenizer(), embeddings=embeddings)


class LanguageModel(Protocol):
    """A host as a detector may run it: only schemes whose `Needs` declare ``host_at_detection`` do."""

    def next_logits(
        self, prompts: Sequence[str], completions: Sequence[Sequence[int]]
    ) -> Iterator[torch.Tensor]:
        """For each completion of L ids the host's logits (L, vocab), float32, in the order given.

        Row i is what the host predicts for id i after the prompt (or its own start token, where the prompt
        is empty) and the ids before. Texts are batched inside; one text's logits are held at a time.
        """


@runtime_checkable
class Follower(LanguageModel, Protocol):
    """A language model that can also go along while another one writes."""

    def follow(self, attention_mask: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """A function of ids (batch, length), longer at each call, to the logits (batch, vocab) after them.

        ``attention_mask`` (batch, prompt length) says what of the prompts is padding. Keys and values of what
        was read are kept from call to call.
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
