"""A chat model as a translator, for languages that no packaged translator knows.

It translates whole texts, long ones in parts, and takes the likeliest token each time, so that a translation
is a function of the text alone. Nothing is kept on disk.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from dewmark.hosts import host_info
from dewmark.text.languages import language_name
from dewmark.workspace import Progress, silent
from dewmark_lab.attacks.rewriting.chat_model import TRANSLATE_PROMPT
from dewmark_lab.attacks.translation.split_text import OnProgress, SentenceTranslator
from dewmark_lab.chat.settings import ChatModel, ChatSettings

_VERSION = 1  # increase it when a change here changes translations
_LONGEST, _MOST = 400, 800  # tokens of what is translated at once, about, and of its translation
_BATCH = 16


@dataclass(frozen=True)
class ChatTranslator:
    """Translates a pair of languages such as ``de-en`` by a host with a chat template."""

    pair: str
    host: str
    device: str = "auto"

    @property
    def identity(self) -> str:
        """The host, and the version of the code."""
        return f"{host_info(self.host).identity} chat-{_VERSION}"

    def fetch(self, *, progress: Progress = silent) -> None:
        """Fetch the host's files, unless they are here already."""
        host_info(self.host, progress=progress)

    def translate(self, texts: Sequence[str], *, task: str, progress: Progress = silent) -> list[str]:
        """One translation per text."""
        source, _, target = self.pair.partition("-")
        prompt = TRANSLATE_PROMPT.format(source=language_name(source), target=language_name(target))
        parts = _ChatTexts(_open_chat(self.host, self.device), prompt)
        return parts.translate(texts, on_progress=lambda done, total: progress(task, done, total))


class _ChatTexts(SentenceTranslator):
    """Sends texts to a chat model, which reads one sentence better after another."""

    longest = _LONGEST
    whole_texts = True

    def __init__(self, chat: ChatModel, prompt: str) -> None:
        self._chat = chat
        self._system = {"role": "system", "content": prompt}

    def pieces(self, sentence: str) -> list[int]:
        """One id for every four bytes."""
        return list(sentence.encode()[::4])

    def translate_sentences(self, sentences: Sequence[str], on_progress: OnProgress) -> list[str]:
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))  # the longest last
        answers = self._chat.complete(
            [[self._system, {"role": "user", "content": sentences[i]}] for i in order],
            seeds=[0] * len(order),
            max_new_tokens=_MOST,
            on_answer=lambda i, _: on_progress(i + 1, len(order)),
        )
        found = dict(zip(order, answers, strict=True))
        return [found[i] for i in range(len(sentences))]


@functools.cache
def _open_chat(host: str, device: str) -> ChatModel:
    """The host as a chat model, shared by all pairs of the process."""
    return ChatSettings(host=host, temperature=0.0, device=device, batch_size=_BATCH).open().model
