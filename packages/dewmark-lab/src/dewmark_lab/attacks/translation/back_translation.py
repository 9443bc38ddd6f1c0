"""Texts translated back before detection, by the translators of this package and others.

A mark is weaker in a translation; translating the text back restores part of it.
Boundary: texts in, their versions out; whoever tests several versions counts them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dewmark.errors import ConfigError
from dewmark.registry import TRANSLATORS
from dewmark.text.languages import guess_language, recognised_languages
from dewmark.workspace import Progress, silent

__all__ = ["BackTranslation", "Translator"]

_CHAT = "chat"  # the translator of all pairs, by a host


class Translator(Protocol):
    """Translates one language into another."""

    identity: str

    def fetch(self, *, progress: Progress = silent) -> None:
        """Fetch its model, unless it is here already."""

    def translate(self, texts: Sequence[str], *, task: str, progress: Progress = silent) -> list[str]:
        """One translation per text; ``task`` names the work where progress is shown."""


def open_translator(name: str, *, device: str = "auto") -> Translator:
    """The translator of a pair of languages such as ``fr-en``; its model is loaded on first use."""
    opened: Translator = TRANSLATORS[name](name, device=device)
    return opened


@dataclass(frozen=True)
class BackTranslation:
    """Into which languages texts are translated, and by what.

    ``written_in`` are the languages in which a text may have been written. Every installed translator of a
    pair is asked, and every host of ``hosts``, which are chat models that translate any pair.
    """

    written_in: tuple[str, ...] = ("en",)
    hosts: tuple[str, ...] = ()
    device: str = "auto"

    def __post_init__(self) -> None:
        known = recognised_languages()
        for code in self.written_in:
            if code not in known:
                raise ConfigError(f"{code!r} is the code of no known language: use one like de, fr or zh")

    def identity(self) -> dict[str, str]:
        """The identity of every translator that may be asked, by pair or host."""
        pairs = [name for name in TRANSLATORS if name.partition("-")[2] in self.written_in]
        asked = {name: open_translator(name, device=self.device) for name in pairs}
        asked |= {host: self._chat("en", into, host) for host in self.hosts for into in self.written_in}
        return {name: each.identity for name, each in asked.items()} | {"into": ",".join(self.written_in)}

    def versions(self, texts: Sequence[str], *, progress: Progress = silent) -> list[list[str]]:
        """The translations of each text; none if its language is unknown or has no translator.

        The language is guessed from the text, so how many versions a text has never depends on a key.
        """
        guessed = [guess_language(text) for text in texts]
        found: list[list[str]] = [[] for _ in texts]
        for language in sorted(set(guessed) & set(recognised_languages())):
            rows = [i for i, own in enumerate(guessed) if own == language]
            task, into = (
                f"translating from {language}",
                [each for each in self.written_in if each != language],
            )
            pairs = [name for each in into if (name := f"{language}-{each}") in TRANSLATORS]
            chats = [self._chat(language, each, host) for each in into for host in self.hosts]
            for translator in (*(open_translator(name, device=self.device) for name in pairs), *chats):
                made = translator.translate([texts[i] for i in rows], task=task, progress=progress)
                for i, text in zip(rows, made, strict=True):
                    found[i].append(text)
        return found

    def _chat(self, language: str, into: str, host: str) -> Translator:
        opened: Translator = TRANSLATORS[_CHAT](f"{language}-{into}", host=host, device=self.device)
        return opened
