"""The contract that every watermarking scheme keeps.

Three objects, each with one lifetime:

- a `Scheme` is a frozen dataclass: its fields are its configuration, nothing else. It lives for ever.
- a `BoundScheme` is a scheme with a key and a host's vocabulary: immutable, shared by threads. It marks
  (through sessions) and it scores.
- a `Session` marks one batch of texts and dies with it, so nothing leaks from text to text.

A bound scheme sees a host only through `HostInfo`: tokenizer, vocabulary size, input embeddings. Scoring
therefore never runs the host, unless the scheme's `Needs` declare it.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dewmark import config as cfg
from dewmark.errors import ConfigError, InputError
from dewmark.types import Detection, Verdict

if TYPE_CHECKING:
    import torch

    from dewmark.core.keys import Key

__all__ = [
    "BoundScheme",
    "HostInfo",
    "Needs",
    "Progress",
    "Scheme",
    "Session",
    "State",
    "Tokenized",
    "Tokenizer",
    "Workspace",
    "silent",
]

Progress = Callable[[str, int, int], None]

DEFAULT_FPR = 0.01
MIN_EFFECTIVE_LENGTH = 16.0


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


def silent(description: str, done: int, total: int) -> None:
    """Progress that goes nowhere."""


@dataclass(frozen=True)
class Workspace:
    """Where a scheme keeps derived files, and how it reports long work.

    ``progress(description, done, total)`` is called now and then during work of more than a second.
    ``find_host`` turns another host's name into its `HostInfo` (a donor of token embeddings).
    """

    cache: Path
    progress: Progress = silent
    find_host: Callable[[str], HostInfo] | None = None


@dataclass(frozen=True, repr=False)
class State:
    """What a detector needs of a bound scheme, ready to be stored. As secret as the key."""

    meta: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a scheme asks of its surroundings; a mismatch is refused before anything runs."""

    embeddings: bool = False
    encoder: bool = False
    artifact: bool = False
    host_at_detection: bool = False
    sampling: bool = True


@dataclass(frozen=True)
class Scheme(ABC):
    """A watermarking scheme's configuration. Subclasses are frozen dataclasses and validate in `validate`."""

    name: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[Needs] = Needs()

    def __post_init__(self) -> None:
        for name, value in cfg.coerced(self).items():
            object.__setattr__(self, name, value)  # 2 and 2.0 are one configuration, with one hash
        self.validate()

    @abstractmethod
    def validate(self) -> None:
        """Raise `ConfigError` if a field is out of range."""

    @abstractmethod
    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> BoundScheme:
        """Join the scheme to a key and a host's vocabulary; may build and cache tables."""

    @abstractmethod
    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundScheme:
        """Rebuild a detector from what `BoundScheme.state` gave; it detects, it need not mark."""

    def with_settings(self, settings: dict[str, object]) -> Scheme:
        """A copy with some fields changed, by their public names."""
        return cfg.replace(self, settings)

    def to_dict(self) -> dict[str, object]:
        """The configuration as plain values."""
        return cfg.to_dict(self)


class Session(ABC):
    """Marks one batch of texts: call it with ids (batch, length) and logits (batch, vocab)."""

    @abstractmethod
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return marked logits, same shape.

        ``input_ids`` (batch, length) holds prompts and what was written so far, padded on the left;
        ``scores`` (batch, vocab) the host's logits for the next token. This is the signature of a
        transformers logits processor.
        """


class BoundScheme(ABC):
    """A scheme joined to a key and a host's vocabulary: it marks and it detects."""

    def __init__(self, scheme: Scheme, host: HostInfo, fingerprint: str) -> None:
        self.scheme = scheme
        self.host = host
        self.fingerprint = fingerprint

    @property
    def config_hash(self) -> str:
        """Names scheme, parameters, host and key, and gives none of them away."""
        return cfg.config_hash(self.scheme.name, self.scheme.to_dict(), self.host.identity, self.fingerprint)

    @abstractmethod
    def session(self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Session:
        """Start marking a batch of prompts, (batch, length), padded on the left.

        ``attention_mask`` (batch, length) says what is padding; without it a leading run of the
        tokenizer's padding id is taken for padding.
        """

    def processor(self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Session:
        """A logits processor for anybody's ``model.generate(logits_processor=[…])``."""
        return self.session(prompt_ids, attention_mask)

    @abstractmethod
    def detect_batch(
        self,
        texts: Sequence[str],
        *,
        prompts: Sequence[str | None] | None = None,
        fpr: float = DEFAULT_FPR,
        test: str | None = None,
    ) -> list[Detection]:
        """Score completions. A prompt, where given, is context only: it is never scored itself."""

    @abstractmethod
    def state(self) -> State:
        """All that detection needs beside the tokenizer. As secret as the key."""

    def detect(
        self, text: str, *, prompt: str | None = None, fpr: float = DEFAULT_FPR, test: str | None = None
    ) -> Detection:
        """Score one completion."""
        return self.detect_batch([text], prompts=[prompt], fpr=fpr, test=test)[0]


def check_texts(texts: Sequence[str], prompts: Sequence[str | None] | None, fpr: float) -> list[str]:
    """Validate what a detector was given; returns the prompts with None replaced by ''."""
    if not 0.0 < fpr < 1.0:
        raise ConfigError(f"fpr must lie in (0, 1), got {fpr}")
    given = [None] * len(texts) if prompts is None else list(prompts)
    if len(given) != len(texts):
        raise InputError(f"{len(texts)} texts but {len(given)} prompts: give one prompt per text, or none")
    for i, text in enumerate(texts):
        check_text(text, f"text {i}" if len(texts) > 1 else "the text")
    return [prompt or "" for prompt in given]


def check_text(text: str, what: str) -> None:
    """Refuse what is no text: nothing, NUL characters, lone surrogates."""
    if not isinstance(text, str):
        raise InputError(f"{what} must be a string, got {type(text).__name__}")
    if not text.strip():
        raise InputError(f"{what} is empty: there is nothing to score")
    if "\x00" in text:
        raise InputError(f"{what} holds NUL characters, it looks like binary data: give plain text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} holds a lone surrogate at character {error.start}: decode it properly"
        ) from None


def decide(p_value: float, effective_length: float, fpr: float) -> Verdict:
    """The verdict at level ``fpr``; a text worth too few independent tokens gets none."""
    if effective_length < MIN_EFFECTIVE_LENGTH:
        return Verdict.TOO_SHORT
    return Verdict.MARKED if p_value < fpr else Verdict.NOT_MARKED


def scheme_fields(scheme: type[Scheme]) -> dict[str, object]:
    """A scheme's parameters and their defaults, by public name."""
    return {f.name.rstrip("_"): f.default for f in dataclasses.fields(scheme)}
