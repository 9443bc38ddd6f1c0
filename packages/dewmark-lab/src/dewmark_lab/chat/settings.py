"""Chat models and which one to ask, as plain settings: an endpoint or a local host, and its sampling.

`ChatModel` is all that paraphrase, translation and judging know of a model: `LocalChat` runs a host with a
chat template, `EndpointChat` asks a server over HTTP, `CachedChat` keeps answers on disk. Attacks inherit the
fields of `ChatSettings` and judges use them. Boundary: nothing is loaded or sent before `ChatSettings.open`,
which reads the API key from its environment variable; no field contains it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from dewmark import config
from dewmark.decoding import CHAT_DECODING, Decoding
from dewmark.errors import ConfigError
from dewmark.hosts import chat_format, host_info, load_host
from dewmark.hosts.base import Conversation
from dewmark.storage import atomic_write
from dewmark.workspace import Progress
from dewmark_lab.chat.endpoint import EndpointChat, LengthField, OnAnswer, check_base_url

if TYPE_CHECKING:
    from dewmark.hosts.base import Host
    from dewmark.types import Generation


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


def counted(progress: Progress, description: str, total: int) -> OnAnswer:
    """An ``on_answer`` that reports how many answers have arrived."""
    done = itertools.count(1)
    return lambda _index, _answer: progress(description, next(done), total)


class LocalChat:
    """A host as a chat model; ``open_host`` loads its weights for the first answer."""

    def __init__(
        self,
        open_host: Callable[[], Host],
        *,
        identity: str,
        render: Callable[[Conversation], str],
        decoding: Decoding = CHAT_DECODING,
        batch_size: int = 8,
    ) -> None:
        self._open_host, self._identity, self._render = open_host, identity, render
        self._decoding, self._batch_size = decoding, batch_size

    @functools.cached_property
    def host(self) -> Host:
        """The host, loaded on first use."""
        return self._open_host()

    def identity(self) -> dict[str, object]:
        """The host's identity and its sampling options."""
        return {
            "host": self._identity,
            "temperature": self._decoding.temperature,
            "top_p": self._decoding.top_p,
            "top_k": self._decoding.top_k,
        }

    def complete(
        self,
        conversations: Sequence[Conversation],
        *,
        seeds: Sequence[int],
        max_new_tokens: int,
        on_answer: OnAnswer | None = None,
    ) -> list[str]:
        """One answer each; an answer depends on its conversation and seed, not on its batch."""
        answers: list[str] = []

        def collect(batch: list[Generation]) -> None:
            for generation in batch:
                answers.append(generation.text.strip())
                if on_answer is not None:
                    on_answer(len(answers) - 1, answers[-1])

        self.host.generate(
            [self._render(conversation) for conversation in conversations],
            scheme=None,
            seeds=seeds,
            decoding=dataclasses.replace(self._decoding, max_new_tokens=max_new_tokens),
            batch_size=self._batch_size,
            on_batch=collect,
        )
        return answers


class CachedChat:
    """A chat model that asks another one only for answers that are not in ``folder`` yet.

    The name of an answer's file is the SHA-256 of everything that decides the answer: the model's identity,
    the conversation, the seed, the length; no credentials. A broken file counts as missing, so processes may
    share a folder.
    """

    def __init__(self, model: ChatModel, folder: Path) -> None:
        self.model, self._folder = model, folder

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
            new, own = [conversations[i] for i in firsts], [seeds[i] for i in firsts]
            self.model.complete(new, seeds=own, max_new_tokens=max_new_tokens, on_answer=arrived)
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
    ``answers`` is the folder of cached answers, by default one in dewmark's cache.
    """

    base_url: str | None = None
    model: str | None = None
    host: str | None = None
    temperature: Annotated[float | None, "at least 0"] = None
    top_p: Annotated[float | None, "in (0, 1]"] = None
    max_new_tokens: Annotated[int, "at least 1"] = 1024
    key_env: str | None = "OPENAI_API_KEY"
    length_field: LengthField = "max_tokens"
    send_seed: bool = True
    concurrency: Annotated[int, "at least 1"] = 8
    retries: Annotated[int, "at least 0"] = 8
    timeout: Annotated[float, "positive"] = 120.0
    answers: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    batch_size: Annotated[int, "at least 1"] = 8

    def __post_init__(self) -> None:
        for name, value in config.coerced(self).items():
            object.__setattr__(self, name, value)
        self.check()

    def check(self) -> None:
        """Raise `ConfigError` if two settings contradict each other, or the address is none."""
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
            form = chat_format(self.host, progress=progress)
            given = {"temperature": self.temperature, "top_p": self.top_p}
            stated: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
            return LocalChat(
                functools.partial(
                    load_host, self.host, device=self.device, dtype=self.dtype, progress=progress
                ),
                identity=host_info(self.host, progress=progress).identity,
                render=form.render,
                decoding=dataclasses.replace(form.decoding, **stated),
                batch_size=self.batch_size,
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
            retries=self.retries,
            timeout=self.timeout,
        )

    def estimate(self, conversations: Sequence[Conversation], *, answers: Sequence[str]) -> CostEstimate:
        """Estimate the use for these conversations; ``answers`` are texts as long as the expected ones.

        A token is counted as 4 bytes of UTF-8: close for English, too many for scripts with several bytes per
        letter.
        """
        sent = sum(
            _tokens(message["content"]) + _PER_MESSAGE
            for conversation in conversations
            for message in conversation
        )
        received = sum(min(_tokens(answer), self.max_new_tokens) for answer in answers)
        return CostEstimate(self.host or self.model or "?", len(conversations), sent, received)


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The expected use of a model."""

    model: str
    requests: int
    tokens_in: int
    tokens_out: int

    def __str__(self) -> str:
        return (
            f"{self.requests} requests to {self.model}, about {self.tokens_in} tokens in and "
            f"{self.tokens_out} out"
        )


def _tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "replace")) // 4)
