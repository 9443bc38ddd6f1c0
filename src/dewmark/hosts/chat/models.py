"""Chat models: conversations in, answers out, whether a host of ours writes them or somebody's endpoint.

`ChatModel` is all that paraphrase, translation and judging know of a model. `LocalChat` fills it in with any
host that has a chat template; `dewmark.hosts.chat.endpoint` does so over HTTP,
`dewmark.hosts.chat.answers` remembers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, InputError

if TYPE_CHECKING:
    from dewmark.hosts.base import Host
    from dewmark.types import Generation
    from dewmark.workspace import Progress

__all__ = ["ChatModel", "Conversation", "LocalChat", "Message", "OnAnswer", "Render", "chat_template"]

Message = Mapping[str, str]
"""``{"role": "system" | "user" | "assistant", "content": text}``"""

Conversation = Sequence[Message]
Render = Callable[[Conversation], str]
OnAnswer = Callable[[int, str], None]


class ChatModel(Protocol):
    """A model that answers conversations."""

    def identity(self) -> dict[str, object]:
        """All that decides an answer beside conversation, seed and length; no secrets."""

    def complete(
        self,
        conversations: Sequence[Conversation],
        *,
        seeds: Sequence[int],
        max_new_tokens: int,
        on_answer: OnAnswer | None = None,
    ) -> list[str]:
        """One answer each, in order; ``on_answer`` gets (index, answer) as soon as one is there.

        ``on_answer`` is called in any order, by one thread at a time but not always by the caller's.
        """


def chat_template(name: str) -> Render | None:
    """How a host by name wants conversations to be written, or None where its files do not say."""
    from transformers import AutoTokenizer

    from dewmark.hosts.transformers.files import load_error, resolve

    source = resolve(name, weights=False)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.location, **source.options)
    except (OSError, ValueError) as error:
        raise load_error(name, error) from error
    if not tokenizer.chat_template:
        return None

    def render(messages: Conversation) -> str:
        try:
            return str(
                tokenizer.apply_chat_template(
                    [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
                )
            )
        except Exception as error:  # a template raises whatever its author chose
            raise InputError("the model's chat template refuses this conversation") from error

    return render


class LocalChat:
    """A host that answers; ``open_host`` loads its weights when the first answer is asked for."""

    def __init__(
        self,
        open_host: Callable[[], Host],
        *,
        identity: str,
        render: Render,
        temperature: float = 1.0,
        top_p: float = 1.0,
        batch_size: int = 8,
    ) -> None:
        self._open_host = open_host
        self._identity = identity
        self._render = render
        self._temperature = temperature
        self._top_p = top_p
        self._batch_size = batch_size

    @classmethod
    def load(
        cls,
        name: str,
        *,
        device: str = "auto",
        dtype: str = "auto",
        temperature: float = 1.0,
        top_p: float = 1.0,
        batch_size: int = 8,
        progress: Progress | None = None,
    ) -> LocalChat:
        """A packaged name, a local folder or .gguf file, or a hub id; it must have a chat template."""
        from dewmark.hosts import host_info, load_host

        render = chat_template(name)
        if render is None:
            raise ConfigError(
                f"{name} has no chat template, so it takes no instructions: choose an instruction-tuned "
                "model, such as smollm2-135m"
            )
        return cls(
            functools.partial(load_host, name, device=device, dtype=dtype, progress=progress),
            identity=host_info(name, progress=progress).identity,
            render=render,
            temperature=temperature,
            top_p=top_p,
            batch_size=batch_size,
        )

    @functools.cached_property
    def host(self) -> Host:
        """The host with its weights."""
        return self._open_host()

    def identity(self) -> dict[str, object]:
        """The host's files and how it samples."""
        return {"host": self._identity, "temperature": self._temperature, "top_p": self._top_p}

    def complete(
        self,
        conversations: Sequence[Conversation],
        *,
        seeds: Sequence[int],
        max_new_tokens: int,
        on_answer: OnAnswer | None = None,
    ) -> list[str]:
        """One answer each; an answer depends on its conversation and seed, not on the batch."""
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
            decoding=Decoding(
                max_new_tokens=max_new_tokens, temperature=self._temperature, top_p=self._top_p
            ),
            batch_size=self._batch_size,
            on_batch=collect,
        )
        return answers
