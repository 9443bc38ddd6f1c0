"""A disk cache for the answers of a chat model: a run that was killed asks only for what is missing.

The name of an answer's file is the SHA-256 of everything that decides the answer: the model's identity, the
conversation, the seed, the length; no credentials. Files are written atomically, and a broken one counts as
missing, so several processes may share a folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from dewmark.hosts.base import Conversation
from dewmark.storage import atomic_write
from dewmark_lab.chat import ChatModel, OnAnswer


class CachedChat:
    """A chat model that asks another one only for answers that are not in ``folder`` yet."""

    def __init__(self, model: ChatModel, folder: Path) -> None:
        self.model = model
        self._folder = folder

    def identity(self) -> dict[str, object]:
        """The identity of the model behind the cache."""
        return self.model.identity()

    def missing(
        self, conversations: Sequence[Conversation], *, seeds: Sequence[int], max_new_tokens: int
    ) -> list[int]:
        """Indices of the conversations whose answers are not cached."""
        requests = self._requests(conversations, seeds, max_new_tokens)
        return [index for index, request in enumerate(requests) if self._cached(request) is None]

    def complete(
        self,
        conversations: Sequence[Conversation],
        *,
        seeds: Sequence[int],
        max_new_tokens: int,
        on_answer: OnAnswer | None = None,
    ) -> list[str]:
        """One answer each; equal requests are sent once."""
        requests = self._requests(conversations, seeds, max_new_tokens)
        places: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            places.setdefault(request, []).append(index)
        answers = [""] * len(requests)

        def settle(request: str, answer: str) -> None:
            for index in places[request]:
                answers[index] = answer
                if on_answer is not None:
                    on_answer(index, answer)

        unknown: list[str] = []
        for request in places:
            cached = self._cached(request)
            if cached is None:
                unknown.append(request)
            else:
                settle(request, cached)

        def arrived(number: int, answer: str) -> None:
            self._store(unknown[number], answer)
            settle(unknown[number], answer)

        firsts = [places[request][0] for request in unknown]
        if firsts:
            self.model.complete(
                [conversations[i] for i in firsts],
                seeds=[seeds[i] for i in firsts],
                max_new_tokens=max_new_tokens,
                on_answer=arrived,
            )
        return answers

    def _requests(
        self, conversations: Sequence[Conversation], seeds: Sequence[int], max_new_tokens: int
    ) -> list[str]:
        """Canonical JSON of everything that decides each answer."""
        model = self.identity()
        return [
            json.dumps(
                {
                    "model": model,
                    "messages": [dict(message) for message in conversation],
                    "seed": seed,
                    "max_new_tokens": max_new_tokens,
                },
                sort_keys=True,
            )
            for conversation, seed in zip(conversations, seeds, strict=True)
        ]

    def _file(self, request: str) -> Path:
        digest = hashlib.sha256(request.encode()).hexdigest()
        return self._folder / digest[:2] / f"{digest}.json"

    def _cached(self, request: str) -> str | None:
        try:
            row = json.loads(self._file(request).read_text(encoding="utf-8"))
            answer = row["answer"] if row["request"] == json.loads(request) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return answer if isinstance(answer, str) else None

    def _store(self, request: str, answer: str) -> None:
        row = {"request": json.loads(request), "answer": answer}
        with atomic_write(self._file(request), private=True) as stream:  # it contains somebody's text
            stream.write(json.dumps(row, ensure_ascii=True).encode())
