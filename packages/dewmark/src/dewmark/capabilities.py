"""What only some bound schemes can do, as protocols.

A bound scheme has a protocol's methods or it has not. `capability` gives it as one that has them, or raises
an error that names the scheme and the remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.scheme import BoundScheme
from dewmark.types import DraftCount
from dewmark.verdict import DEFAULT_FPR
from dewmark.workspace import Texts, Tokenizer

if TYPE_CHECKING:
    import torch

    from dewmark.stats.evidence import Evidence


__all__ = [
    "ChoosesDrafts",
    "Drafts",
    "KeepsRecords",
    "capability",
    "evidence_of",
    "for_member",
    "record",
]


class StreamDetector(Protocol):
    """Watches one text while it grows; the p-value so far is valid whenever you stop."""

    fpr: float
    words: int
    """The number of words read."""
    scored: int
    """The number of words that are evidence."""
    p_value: float
    """The p-value so far."""

    @property
    def log_e(self) -> float:
        """The logarithm of the e-process, whose mean over keys is at most 1 on unmarked text."""

    @property
    def is_marked(self) -> bool:
        """Whether the p-value has reached the level."""

    @property
    def origin(self) -> dict[str, int | str | None]:
        """The ``member``, ``payload`` and ``epoch`` that fit, None where the text does not tell."""

    def update(self, piece: str) -> float:
        """Read the next piece of the text; its last word may go on in the next piece."""

    def finish(self) -> float:
        """The text has ended: read its last word, too."""


class Drafts(Protocol):
    """Writes one batch of texts with a host's model, choosing between drafts of their sentences.

    ``at_once`` is how many drafts of a sentence it writes together: their number bounds the memory.
    """

    at_once: int

    def write(
        self,
        model: Any,  # noqa: ANN401 - a causal language model of transformers
        prompts: Sequence[Sequence[int]],
        *,
        decoding: Decoding,
        seeds: Sequence[int],
        tokenizer: Tokenizer,
        eos_ids: Sequence[int],
        fill_id: int,
        writable: torch.Tensor,
    ) -> list[tuple[list[int], DraftCount]]:
        """Complete prompts (token ids); returns each row's new ids and what choosing cost.

        ``fill_id`` pads rows, and ``writable`` (vocab,) says which ids a text may contain.
        """


@runtime_checkable
class HasRing(Protocol):
    """Its key may have members, payloads and epochs."""

    def for_member(self, *, member: int | None = None, payload: int | None = None) -> BoundScheme:
        """The same scheme, marking as one member of the key's ring and with a payload."""


@runtime_checkable
class HasPublicDetector(Protocol):
    """Its detector has a part that may be published."""

    def public(self) -> BoundScheme:
        """The part of this detector that may be published: it detects, but attributes nothing."""


@runtime_checkable
class FollowsStreams(Protocol):
    """Detects in a text that is still arriving."""

    def follow(self, *, prompt: str | None = None, fpr: float = DEFAULT_FPR) -> StreamDetector:
        """Watch a text while it arrives; its p-value is valid whenever you stop."""


@runtime_checkable
class ChoosesDrafts(Protocol):
    """Marks whole sentences: its `Needs` say ``drafts``.

    Of several drafts of a row's next sentence, the text continues with the first that carries the mark.
    """

    def drafts(self, prompts: Sequence[str]) -> Drafts:
        """Start choosing the sentences that follow these prompts."""


@runtime_checkable
class KeepsRecords(Protocol):
    """Records what it marked."""

    def finished(self, texts: Sequence[str], *, seeds: Sequence[int]) -> None:
        """Called by hosts after every batch with the finished texts and their seeds.

        With a `processor` in your own loop, call it yourself.
        """


_LACKS = {
    HasRing: "carries neither members nor payloads: use dew",
    HasPublicDetector: "has no detector that could be published: use dew",
    FollowsStreams: "does not follow streams: use dew, or detect the whole text",
    ChoosesDrafts: "marks token by token: use its session",
}

_P = TypeVar("_P")


def capability(bound: BoundScheme, protocol: type[_P]) -> _P:
    """The bound scheme as one that can do what a protocol says; `ConfigError` if it cannot."""
    if isinstance(bound, protocol):
        return bound
    raise ConfigError(f"{bound.scheme.name} {_LACKS[protocol]}")


def evidence_of(bound: BoundScheme, texts: Texts, prompts: Texts) -> list[Evidence]:
    """The evidence of tokenized texts, each after its prompt; `ConfigError` if the scheme has none."""
    found = bound.evidence(bound.read(texts, prompts))
    if found is None:
        raise ConfigError(
            f"{bound.scheme.name} has no known covariance of scores over keys, which this needs: use another "
            "scheme"
        )
    return list(found)


def for_member(bound: BoundScheme, *, member: int | None, payload: int | None) -> BoundScheme:
    """The scheme as a member of its key's ring and with a payload, where one is given."""
    if member is None and payload is None:
        return bound
    return capability(bound, HasRing).for_member(member=member, payload=payload)


def record(bound: object, texts: Sequence[str], *, seeds: Sequence[int]) -> None:
    """Let a scheme that keeps records know the finished texts and their seeds."""
    if isinstance(bound, KeepsRecords):
        bound.finished(texts, seeds=seeds)
