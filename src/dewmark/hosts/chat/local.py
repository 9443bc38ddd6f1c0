"""A host with a chat template as a chat model, and the template itself."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, InputError
from dewmark.hosts import host_info, load_host
from dewmark.hosts.chat import Conversation, OnAnswer

if TYPE_CHECKING:
    from dewmark.hosts.base import Host
    from dewmark.types import Generation
    from dewmark.workspace import Progress

__all__ = ["LocalChat", "Render", "chat_template"]

Render = Callable[[Conversation], str]


def chat_template(name: str) -> Render | None:
    """The chat template of a host, as a function from a conversation to a prompt; None if it has none."""
    from transformers import AutoTokenizer

    from dewmark.hosts.transformers.model_files import load_error, resolve

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
            raise InputError(
                "the model's chat template rejects this conversation: change its roles"
            ) from error

    return render


class LocalChat:
    """A host as a chat model; ``open_host`` loads its weights for the first answer."""

    def __init__(
        self,
        open_host: Callable[[], Host],
        *,
        identity: str,
        render: Render,
        decoding: Decoding = Decoding(),
        batch_size: int = 8,
    ) -> None:
        self._open_host = open_host
        self._identity = identity
        self._render = render
        self._decoding = decoding
        self._batch_size = batch_size

    @classmethod
    def load(
        cls,
        name: str,
        *,
        device: str = "auto",
        dtype: str = "auto",
        decoding: Decoding = Decoding(),
        batch_size: int = 8,
        progress: Progress | None = None,
    ) -> LocalChat:
        """Load a host by any name that `load_host` takes; it must have a chat template."""
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
            decoding=decoding,
            batch_size=batch_size,
        )

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
