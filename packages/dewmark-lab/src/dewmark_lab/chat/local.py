"""A host with a chat template as a chat model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dewmark.decoding import CHAT_DECODING, Decoding, DecodingOptions
from dewmark.hosts import chat_format, host_info, load_host
from dewmark.hosts.base import Conversation
from dewmark_lab.chat import OnAnswer

if TYPE_CHECKING:
    from dewmark.hosts.base import Host
    from dewmark.types import Generation
    from dewmark.workspace import Progress


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
        temperature: float | None = None,
        top_p: float | None = None,
        batch_size: int = 8,
        progress: Progress | None = None,
    ) -> LocalChat:
        """Load a host by any name that `load_host` takes; it must have a chat template.

        Sampling options that are None are the host's own.
        """
        form = chat_format(name, progress=progress)
        stated: DecodingOptions = {}
        if temperature is not None:
            stated["temperature"] = temperature
        if top_p is not None:
            stated["top_p"] = top_p
        return cls(
            functools.partial(load_host, name, device=device, dtype=dtype, progress=progress),
            identity=host_info(name, progress=progress).identity,
            render=form.render,
            decoding=dataclasses.replace(form.decoding, **stated),
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
