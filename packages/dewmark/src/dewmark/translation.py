"""Texts in other languages, brought into English before detection, by translators that other packages bring.

A mark that was written in English is weaker in a translation; translating the text back restores part of it.
Boundary: texts in, English out; whoever tests both attempts counts both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dewmark.errors import ConfigError
from dewmark.registry import TRANSLATORS
from dewmark.text.languages import guess_language
from dewmark.workspace import Progress, silent

__all__ = ["Translator", "back_languages", "can_translate_back", "translate_back"]

_INTO_ENGLISH = "-en"


class Translator(Protocol):
    """Translates one language into another."""

    identity: str

    def fetch(self, *, progress: Progress = silent) -> None:
        """Fetch its model, unless it is here already."""

    def translate(self, texts: Sequence[str], *, task: str, progress: Progress = silent) -> list[str]:
        """One translation per text; ``task`` names the work where progress is shown."""


def back_languages() -> dict[str, str]:
    """The languages that can be translated into English, with the identity of each translator."""
    return {name.removesuffix(_INTO_ENGLISH): open_translator(name).identity for name in _names()}


def can_translate_back(language: str | None) -> bool:
    """Whether an installed package translates this language, an ISO 639 code, into English."""
    return f"{language}{_INTO_ENGLISH}" in _names()


def open_translator(name: str, *, device: str = "auto") -> Translator:
    """The translator of a pair of languages such as ``fr-en``; its model is loaded on first use."""
    opened: Translator = TRANSLATORS[name](name, device=device)
    return opened


def check_translators() -> None:
    """Raise `ConfigError` if no installed package translates into English."""
    if not _names():
        raise ConfigError("no translator is installed: pip install dewmark-lab")


def translate_back(
    texts: Sequence[str], *, device: str = "auto", progress: Progress = silent
) -> list[str | None]:
    """Each text in English; None if it is English already, or in a language without a translator.

    The language is guessed from the text, so whether a text is translated never depends on a key.
    """
    check_translators()
    guessed = [guess_language(text) for text in texts]
    found: list[str | None] = [None] * len(texts)
    for name in _names():
        language = name.removesuffix(_INTO_ENGLISH)
        rows = [i for i, own in enumerate(guessed) if own == language]
        if rows:
            made = open_translator(name, device=device).translate(
                [texts[i] for i in rows], task=f"translating back from {language}", progress=progress
            )
            for i, text in zip(rows, made, strict=True):
                found[i] = text
    return found


def _names() -> list[str]:
    return [name for name in TRANSLATORS if name.endswith(_INTO_ENGLISH)]
