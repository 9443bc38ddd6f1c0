"""Chat models: conversations in, answers out.

`ChatModel` is all that paraphrase, translation and judging know of a model. `LocalChat` runs a host with a
chat template, `EndpointChat` asks a server over HTTP, `CachedChat` keeps answers on disk, and `ChatSettings`
opens one of them from plain settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dewmark.hosts.base import Conversation

OnAnswer = Callable[[int, str], None]


class ChatModel(Protocol):
    """A model that answers conversations."""

    def identity(self) -> dict[str, object]:
        """Everything that decides an answer besides conversation, seed and length; no secrets."""

    def complete(
        self,
        conversations: Sequence[Conversation],
        *,
        seeds: Sequence[int],
        max_new_tokens: int,
        on_answer: OnAnswer | None = None,
    ) -> list[str]:
        """One answer each, in order; ``on_answer`` gets (index, answer) as soon as one arrives.

        ``on_answer`` is called in any order, by one thread at a time but not always by the caller's.
        """
