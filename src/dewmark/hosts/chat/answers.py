"""Answers of a chat model kept on disk: a run that was killed asks only for what is missing.

An answer's file is named by the SHA-256 of all that decides it: the model's identity, the conversation, the
seed, the length. No credential is among them. Files are written whole or not at all, and a broken one counts
as missing, so several processes may share a folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from dewmark.hosts.chat.models import ChatModel, Conversation, OnAnswer
from dewmark.storage import atomic_write

__all__ = ["RememberingChat"]


class RememberingChat:
    """A chat model that asks another one only for answers that ``folder`` does not hold yet."""

    def __init__(self, model: ChatModel, folder: Path) -> None:
        self.model = model
        self._folder = folder

    def identity(self) -> dict[str, object]:
        """That of the model behind it."""
        return self.model.identity()

    def missing(
        self, conversations: Sequence[Conversation], *, seeds: Sequence[int], max_new_tokens: int
    ) -> list[int]:
        """Indices of the conversations whose answers must still be asked for."""
        requests = self._requests(conversations, seeds, max_new_tokens)
        return [index for index, request in enumerate(requests) if self._kept(request) is None]

    def complete(
        self,
        conversations: Sequence[Conversation],
        *,
        seeds: Sequence[int],
        max_new_tokens: int,
        on_answer: OnAnswer | None = None,
    ) -> list[str]:
        """One answer each; of equal requests one is asked."""
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
            kept = self._kept(request)
            if kept is None:
                unknown.append(request)
            else:
                settle(request, kept)

        def arrived(number: int, answer: str) -> None:
            self._keep(unknown[number], answer)
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
        """Canonical JSON of all that decides each answer."""
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

    def _kept(self, request: str) -> str | None:
        try:
            row = json.loads(self._file(request).read_text(encoding="utf-8"))
            answer = row["answer"] if row["request"] == json.loads(request) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return answer if isinstance(answer, str) else None

    def _keep(self, request: str, answer: str) -> None:
        row = {"request": json.loads(request), "answer": answer}
        with atomic_write(self._file(request), private=True) as stream:  # it holds somebody's text
            stream.write(json.dumps(row, ensure_ascii=True).encode())
