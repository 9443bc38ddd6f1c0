"""From a conversation to a prompt: the model's own chat template, or a plain transcript where it has none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from dewmark.errors import DewmarkError, InputError

__all__ = ["Render", "chat_renderer", "transcript"]

_log = logging.getLogger("dewmark.serve")

Message = Mapping[str, str]
Render = Callable[[Sequence[Message]], str]

_SPEAKERS = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}


def chat_renderer(name: str) -> Render:
    """How a host by name wants conversations to be written."""
    from transformers import AutoTokenizer

    from dewmark.hosts.sources import resolve

    try:
        source = resolve(name, weights=False)
        tokenizer = AutoTokenizer.from_pretrained(source.location, **source.options)
    except (DewmarkError, OSError, ValueError) as error:
        _log.warning("no chat template was found", exc_info=error)
        return transcript
    if not tokenizer.chat_template:
        return transcript

    def render(messages: Sequence[Message]) -> str:
        try:
            return str(
                tokenizer.apply_chat_template(
                    [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
                )
            )
        except Exception as error:  # a template raises whatever its author chose
            raise InputError("the model's chat template refuses this conversation") from error

    return render


def transcript(messages: Sequence[Message]) -> str:
    """A conversation as a base model may have seen one."""
    lines = [f"{_SPEAKERS[message['role']]}: {message['content'].strip()}" for message in messages]
    return "\n\n".join([*lines, "Assistant:"])
