"""OpenAI's requests and answers, as far as a marked completion goes; other fields of theirs are ignored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

__all__ = ["ChatRequest", "Choice", "CompletionRequest", "Head", "Kind", "body", "chunk", "event", "models"]

Kind = Literal["text", "chat"]


def _not_tiny(temperature: float) -> float:
    """Logits over a tiny temperature are infinite."""
    if 0.0 < temperature < 0.01:
        raise ValueError("temperature must be 0 or at least 0.01")
    return temperature


Temperature = Annotated[float, Field(ge=0.0, le=2.0), AfterValidator(_not_tiny)]
Stop = Annotated[str, Field(min_length=1, max_length=200)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="ignore")

    model: str = Field(max_length=500)
    max_tokens: int | None = Field(None, ge=1)
    temperature: Temperature | None = None
    top_p: float | None = Field(None, ge=1e-6, le=1.0)
    n: int | None = Field(None, ge=1, le=8)
    seed: int | None = Field(None, ge=0, lt=1 << 62)
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop sequences."""
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a count of tokens."""
        return bool((self.stream_options or {}).get("include_usage"))


class CompletionRequest(_Request):
    """Texts to continue."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=8)]
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    logprobs: Literal[0] | None = None
    suffix: None = None


class Part(BaseModel):
    """A piece of a message; only text is understood."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]

    def to_dict(self) -> dict[str, str]:
        """Role and text."""
        parts = self.content
        return {
            "role": self.role,
            "content": parts if isinstance(parts, str) else "".join(part.text for part in parts),
        }


class ChatRequest(_Request):
    """A conversation to go on with."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=1000)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: Literal[False] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None


class Head(BaseModel):
    """What all pieces of one answer have in common."""

    id: str
    created: int
    model: str
    kind: Kind
    fingerprint: str

    def to_dict(self, *, streamed: bool) -> dict[str, Any]:
        """Plain JSON values."""
        names = {
            "text": "text_completion",
            "chat": "chat.completion.chunk" if streamed else "chat.completion",
        }
        return {
            "id": self.id,
            "object": names[self.kind],
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class Choice(BaseModel):
    """One finished text."""

    text: str
    reason: Literal["stop", "length"]


def body(head: Head, choices: Sequence[Choice], usage: dict[str, int]) -> dict[str, Any]:
    """A whole answer."""
    rows: list[dict[str, Any]] = []
    for index, choice in enumerate(choices):
        row: dict[str, Any] = {"index": index, "finish_reason": choice.reason, "logprobs": None}
        if head.kind == "text":
            row["text"] = choice.text
        else:
            row["message"] = {"role": "assistant", "content": choice.text, "refusal": None}
        rows.append(row)
    return {**head.to_dict(streamed=False), "choices": rows, "usage": usage}


def chunk(
    head: Head, index: int, piece: str | None, *, first: bool = False, reason: str | None = None
) -> dict[str, Any]:
    """One piece of a streamed answer; no piece: the text's end, with its reason."""
    row: dict[str, Any] = {"index": index, "finish_reason": reason, "logprobs": None}
    if head.kind == "text":
        row["text"] = piece or ""
    else:
        row["delta"] = {
            **({"role": "assistant"} if first else {}),
            **({"content": piece} if piece is not None else {}),
        }
    return {**head.to_dict(streamed=True), "choices": [row]}


def event(value: dict[str, Any] | str) -> bytes:
    """One server-sent event."""
    data = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"data: {data}\n\n".encode()


def models(names: Sequence[str], *, created: int) -> dict[str, Any]:
    """The list of models."""
    rows = [{"id": name, "object": "model", "created": created, "owned_by": "dewmark"} for name in names]
    return {"object": "list", "data": rows}
