"""Which chat model to ask, as plain settings: an endpoint or a local host, its sampling, its prices.

Attacks inherit these fields and judges use them. Boundary: nothing is loaded or sent before
`ChatSettings.open`, which reads the API key from its environment variable; no field contains it.

`CachedChat` keeps answers on disk: a run that was killed asks only for what is missing. The name of an
answer's file is the SHA-256 of everything that decides the answer: the model's identity, the conversation,
the seed, the length; no credentials. A broken file counts as missing, so processes may share a folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dewmark import config
from dewmark.errors import ConfigError
from dewmark.hosts.base import Conversation
from dewmark.storage import atomic_write
from dewmark.workspace import Progress
from dewmark_lab.chat import ChatModel, OnAnswer
from dewmark_lab.chat.endpoint import EndpointChat, LengthField, check_base_url
from dewmark_lab.chat.local import LocalChat


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


BASE_URL_VARIABLE = "OPENAI_BASE_URL"
_PER_MESSAGE = 4  # tokens of overhead per message in a chat format


@dataclass(frozen=True)
class ChatSettings:
    """The settings of a chat model: ``base_url`` and ``model`` name an endpoint, ``host`` a local one.

    ``temperature`` and ``top_p`` None mean the endpoint's, or the local host's, own defaults.
    ``per_minute`` limits how many requests are started, 0 is no limit. Prices are per million tokens, in any
    currency. ``answers`` is the folder of cached answers, by default one in dewmark's cache.
    """

    base_url: str | None = None
    model: str | None = None
    host: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_new_tokens: int = 1024
    key_env: str | None = "OPENAI_API_KEY"
    length_field: LengthField = "max_tokens"
    send_seed: bool = True
    concurrency: int = 8
    per_minute: float = 0.0
    retries: int = 8
    timeout: float = 120.0
    price_in: float | None = None
    price_out: float | None = None
    answers: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    batch_size: int = 8

    def __post_init__(self) -> None:
        for name, value in config.coerced(self).items():
            object.__setattr__(self, name, value)
        self.check()

    def check(self) -> None:
        """Raise `ConfigError` if a setting is out of range or two contradict each other."""
        for name in ("max_new_tokens", "concurrency", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("per_minute", "retries", "temperature", "price_in", "price_out"):
            if (getattr(self, name) or 0) < 0:
                raise ConfigError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.timeout <= 0:
            raise ConfigError(f"timeout must be above 0 seconds, got {self.timeout}")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p must lie in (0, 1], got {self.top_p}")
        if self.host is not None and (self.base_url is not None or self.model is not None):
            raise ConfigError("host names a local model, base_url and model an endpoint: give only one")
        if self.base_url is not None:
            check_base_url(self.base_url, with_key=False)

    def open(self, progress: Progress | None = None) -> CachedChat:
        """The model, with its answers cached on disk."""
        folder = config.cache_dir() / "answers" if self.answers is None else Path(self.answers).expanduser()
        return CachedChat(self._model(progress), folder)

    def _model(self, progress: Progress | None) -> ChatModel:
        if self.host is not None:
            return LocalChat.load(
                self.host,
                device=self.device,
                dtype=self.dtype,
                temperature=self.temperature,
                top_p=self.top_p,
                batch_size=self.batch_size,
                progress=progress,
            )
        base_url = self.base_url or os.environ.get(BASE_URL_VARIABLE)
        if not base_url or self.model is None:
            raise ConfigError(
                "no chat model given: for an endpoint set model and base_url, such as "
                f"https://api.openai.com/v1 (or the variable {BASE_URL_VARIABLE}); for a local model set "
                "host, such as smollm2-135m"
            )
        key = os.environ.get(self.key_env, "").strip() if self.key_env is not None else ""
        return EndpointChat(
            base_url,
            self.model,
            key=key or None,
            temperature=self.temperature,
            top_p=self.top_p,
            send_seed=self.send_seed,
            length_field=self.length_field,
            concurrency=self.concurrency,
            per_minute=self.per_minute,
            retries=self.retries,
            timeout=self.timeout,
        )

    def estimate(self, conversations: Sequence[Conversation], *, answers: Sequence[str]) -> CostEstimate:
        """Estimate the cost of these conversations; ``answers`` are texts as long as the expected ones.

        A token is counted as 4 bytes of UTF-8: close for English, too many for scripts with several bytes per
        letter.
        """
        sent = sum(
            _tokens(message["content"]) + _PER_MESSAGE
            for conversation in conversations
            for message in conversation
        )
        received = sum(min(_tokens(answer), self.max_new_tokens) for answer in answers)
        cost = None
        if self.price_in is not None and self.price_out is not None:
            cost = (sent * self.price_in + received * self.price_out) / 1e6
        return CostEstimate(self.host or self.model or "?", len(conversations), sent, received, cost)


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The expected use of a model; ``cost`` is None if no prices are known."""

    model: str
    requests: int
    tokens_in: int
    tokens_out: int
    cost: float | None

    def __str__(self) -> str:
        money = "" if self.cost is None else f", about {self.cost:.3g} at the prices given"
        return (
            f"{self.requests} requests to {self.model}, about {self.tokens_in} tokens in and "
            f"{self.tokens_out} out{money}"
        )

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values."""
        return dataclasses.asdict(self)


def _tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "replace")) // 4)
