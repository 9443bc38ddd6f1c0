"""From a conversation to a prompt: the model's own chat template, or a plain transcript where it has none."""

from __future__ import annotations

import logging

from dewmark.errors import DewmarkError
from dewmark.hosts.chat import Conversation, Render, chat_template

__all__ = ["Render", "chat_renderer", "transcript"]

_log = logging.getLogger("dewmark.serve")

_SPEAKERS = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}


def chat_renderer(name: str) -> Render:
    """How a host by name wants conversations to be written."""
    try:
        return chat_template(name) or transcript
    except DewmarkError as error:
        _log.warning("no chat template was found", exc_info=error)
        return transcript


def transcript(messages: Conversation) -> str:
    """A conversation as a base model may have seen one."""
    lines = [f"{_SPEAKERS[message['role']]}: {message['content'].strip()}" for message in messages]
    return "\n\n".join([*lines, "Assistant:"])
