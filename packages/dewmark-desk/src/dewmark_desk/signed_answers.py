"""Manifests in answers of OpenAI's format, whole or streamed: the service's own, or those of an engine.

A manifest follows the text of its choice. In a stream it is a piece of its own, before the one that says how
the choice ended. Answers that a program reads (JSON, tool calls) get none: the characters would not parse.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["SignedAnswers", "is_read_by_programs"]

Json = dict[str, Any]


def is_read_by_programs(request: Json) -> bool:
    """Whether a request asks for JSON or offers tools, so that its answers must stay as they are."""
    named = request.get("response_format") or {}
    asked = ("tools", "json_schema", "regex", "ebnf", "structured_outputs")
    return named.get("type", "text") != "text" or any(request.get(name) for name in asked)


class SignedAnswers:
    """Appends what ``manifest`` makes of a text to one answer's texts; None leaves them as they are."""

    def __init__(self, manifest: Callable[[str], str] | None) -> None:
        self._manifest = manifest
        self._texts: dict[int, str] = defaultdict(str)

    def whole(self, answer: Json) -> Json:
        """A finished answer, with manifests."""
        for choice in answer.get("choices", ()):
            holder, name = (choice["message"], "content") if "message" in choice else (choice, "text")
            holder[name] = self._signed(holder.get(name))
        return answer

    def piece(self, chunk: Json) -> Iterator[Json]:
        """A piece of a streamed answer; what ends a choice comes after its manifest."""
        for choice in chunk.get("choices", ()):
            delta, index = choice.get("delta"), choice["index"]
            said = (choice.get("text") if delta is None else delta.get("content")) or ""
            self._texts[index] += said
            if choice.get("finish_reason") is None:
                continue
            text = self._texts.pop(index)
            if appended := (self._signed(text) or "")[len(text) :]:
                more = said + appended
                words = {"text": more} if delta is None else {"delta": {**delta, "content": more}}
                yield {**chunk, "choices": [{**choice, **words, "finish_reason": None}]}
                ended: Json = {"text": ""} if delta is None else {"delta": {}}
                choice |= ended
        yield chunk

    def _signed(self, text: str | None) -> str | None:
        if self._manifest is None or text is None or not text.strip():
            return text
        return text + self._manifest(text)
