"""Translating texts back into English before detection, by the neural translators that packages carry.

A mark that was written in English is weaker in a translation; bringing the text back restores part of it.
Boundary: texts in, English out; whoever tests both attempts counts both.
"""

from __future__ import annotations

from collections.abc import Sequence

from dewmark.attacks.translation.machine_translation import NEURAL, NeuralEngine
from dewmark.models.packaged import fetch
from dewmark.text.languages import guess_language
from dewmark.workspace import Progress, silent

__all__ = ["ENGLISH", "back_languages", "fetch_translators", "translate_back"]

ENGLISH = "en"


def back_languages() -> dict[str, str]:
    """The languages that can be translated back, with the identity of each translator."""
    sources = sorted(source for source, target in NEURAL if target == ENGLISH)
    return {source: NeuralEngine(source, ENGLISH).identity for source in sources}


def fetch_translators(*, progress: Progress = silent) -> None:
    """Fetch the models of all languages that can be translated back, unless they are here already."""
    for (_, target), (package, _) in NEURAL.items():
        if target == ENGLISH:
            fetch(package, progress=progress)


def translate_back(
    texts: Sequence[str], *, device: str = "auto", progress: Progress = silent
) -> list[str | None]:
    """Each text in English; None if it is English already, or in a language without a translator.

    The language is guessed from the text, so whether a text is translated never depends on a key.
    """
    known = back_languages()
    guessed = [guess_language(text) for text in texts]
    found: list[str | None] = [None] * len(texts)
    for language in known:
        rows = [i for i, own in enumerate(guessed) if own == language]
        if rows:
            engine = NeuralEngine(language, ENGLISH, device)
            made = engine.translate(
                [texts[i] for i in rows], task=f"translating back from {language}", progress=progress
            )
            for i, text in zip(rows, made, strict=True):
                found[i] = text
    return found
