"""The environment of a scheme: a host's vocabulary, its tokenizer, a cache folder, progress reports.

Boundary: descriptions and protocols only. Hosts implement them, schemes use them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F32, I64
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    import torch

__all__ = [
    "Expectations",
    "HostInfo",
    "LanguageModel",
    "Progress",
    "Texts",
    "Tokenized",
    "Tokenizer",
    "Workspace",
    "no_host",
    "silent",
]

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A text as token ids, each with its (start, end) character offsets into the text.

    ``forms`` are the words' forms (`dewmark.text.words`), where the units are words.
    """

    text: str
    ids: tuple[int, ...]
    offsets: Sequence[tuple[int, int]]
    forms: tuple[str, ...] = ()


Texts = Sequence[Tokenized]


class Tokenizer(Protocol):
    """A host's tokenizer, as schemes use it."""

    @property
    def identity(self) -> str:
        """A hash that two tokenizers share only if they tokenize every text the same way."""

    @property
    def size(self) -> int:
        """The number of ids (the host's logits may have more)."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids without text (start, end, padding, …)."""

    @property
    def pad_id(self) -> int | None:
        """The id for left-padding of prompts, if there is one."""

    @property
    def pieces(self) -> Mapping[int, bytes] | None:
        """The bytes of each id; None if joining them does not decode ids."""

    def encode(self, texts: Sequence[str]) -> list[Tokenized]:
        """Tokenize texts, without special tokens."""

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """Token ids to texts, without special tokens."""

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into a folder."""


@dataclass(frozen=True)
class HostInfo:
    """A host model's description, available without running it.

    ``vocab_size`` is the width of the host's logits. ``embeddings`` returns the input-embedding table,
    (vocab_size, d_T) float32, and is only called if no cached table exists. ``identity`` changes whenever
    that table or the tokenizer changes.
    """

    name: str
    identity: str
    vocab_size: int
    tokenizer: Tokenizer
    embeddings: Callable[[], F32]

    @functools.cached_property
    def markable(self) -> NDArray[np.bool_]:
        """A mask (vocab_size,) of the ids with text: known to the tokenizer and not special."""
        ids = np.zeros(self.vocab_size, dtype=bool)
        ids[: self.tokenizer.size] = True
        ids[[i for i in self.tokenizer.special_ids if i < self.vocab_size]] = False
        return ids


class _NoTokenizer:
    """The tokenizer of `no_host`: every use is an error."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ConfigError("no host is given, which is enough for detection: name one to generate with")


def no_host() -> HostInfo:
    """The stand-in host for schemes that detect without one (`Scheme.host_free`)."""

    def embeddings() -> NoReturn:
        raise ConfigError("no host is given, so there are no embeddings: name the host")

    return HostInfo("any", identity="", vocab_size=0, tokenizer=_NoTokenizer(), embeddings=embeddings)


class LanguageModel(Protocol):
    """A host that detection can run; only schemes whose `Needs` declare ``host_at_detection`` do so."""

    def next_logits(
        self, prompts: Sequence[str], completions: Sequence[Sequence[int]]
    ) -> Iterator[torch.Tensor]:
        """The host's logits (L, vocab), float32, for each completion of L ids, in the given order.

        Row i predicts id i from the prompt (or the host's start token if the prompt is empty) and the ids
        before it. Texts are batched internally; the logits of one text are held at a time.
        """


@dataclass(frozen=True)
class ExpectedWords:
    """Which words a language model expected at P places of a text, each the start of a word.

    ``starts`` (P,) are the places, as characters of the text, ascending. At place i the candidates are
    ``forms[j]`` for j in ``index[bounds[i] : bounds[i + 1]]``, with their ``probabilities``; the same form
    may come twice, and the probabilities sum to less than 1.
    """

    starts: I64
    bounds: I64
    index: I64
    probabilities: F32
    forms: tuple[str, ...]


class Expectations(Protocol):
    """A language model that reads texts for detection: the *reader* of a detector.

    It says which words could have stood in the place of each word. Its answer is a function of the text (and
    the prompt) alone, so it never invalidates a test over keys.
    """

    name: str
    """The model's name, as results give it."""
    identity: str
    """Changes with the model and with the way it is read."""

    def read(self, texts: Sequence[str], prompts: Sequence[str]) -> list[ExpectedWords]:
        """The words expected in each text, each after its prompt ("" if there is none)."""


class NoReader:
    """No reader at all, not even the one that comes with the package (`dewmark.dew.packaged_reader`)."""

    name = identity = "none"

    def read(self, texts: Sequence[str], prompts: Sequence[str]) -> list[ExpectedWords]:
        """Nothing is expected anywhere."""
        none = np.zeros(0, dtype=np.int64)
        nothing = ExpectedWords(none, np.zeros(1, dtype=np.int64), none, none.astype(np.float32), ())
        return [nothing for _ in texts]


NO_READER = NoReader()


class ReaderFolder:
    """A reader of the words of one lexicon (``dewmark train-reader``), named by its folder."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.folder = folder
        self.identity = hashlib.sha256((folder / "bundle.json").read_bytes()).hexdigest()[:16]

    def read(self, texts: Sequence[str], prompts: Sequence[str]) -> list[ExpectedWords]:
        """It expects vectors of its lexicon, not words."""
        raise ConfigError(f"the reader {self.name} reads the words of a lexicon: use it with the scheme dew")


def reader_in(name: object) -> ReaderFolder | None:
    """The reader in a folder, if ``name`` is one."""
    is_folder = isinstance(name, str) and (Path(name) / "bundle.json").is_file()
    return ReaderFolder(Path(str(name))) if is_folder else None


def silent(description: str, done: int, total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class Workspace:
    """The folder for derived files, and callbacks to report progress and find hosts.

    ``progress(description, done, total)`` is called periodically during work of more than a second.
    ``find_host`` returns another host's `HostInfo` by name (a donor of token embeddings); ``open_host`` loads
    the weights of the scheme's own host, or of another one by name. ``expectations`` read the texts that are
    detected, if the scheme makes use of them.
    """

    cache: Path
    progress: Progress = silent
    find_host: Callable[[str], HostInfo] | None = None
    open_host: Callable[[str | None], LanguageModel] | None = None
    expectations: Expectations | None = None
