"""The attacks ``translate`` and ``round-trip`` by machine translation.

The translators are `NEURAL`'s models, downloaded on first use like other packaged models: Bergamot's small
one (English↔Portuguese, `bergamot`), OPUS-MT (English↔French, `opus`) or, for translating back only, Argos
(Chinese→English, `argos`). For translation by a chat model see `dewmark_lab.attacks.rewriting.chat_model`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from dewmark.attack import Attack, run_option
from dewmark.errors import ConfigError, ModelError
from dewmark.models.packaged import PACKAGED, fetch
from dewmark.workspace import Progress, silent
from dewmark_lab.attacks.translation.split_text import OnProgress

_NEURAL_VERSION = 1  # increase it when a change to a neural translator changes translations


class NeuralTranslator(Protocol):
    """A neural translator of one direction in memory."""

    def translate(self, texts: Sequence[str], *, on_progress: OnProgress) -> list[str]:
        """Translate texts; ``on_progress`` gets the number of finished sentences and of all sentences."""


def _open_bergamot(models: Path, device: str, *, direction: str) -> NeuralTranslator:
    from dewmark.models.devices import torch_device
    from dewmark_lab.attacks.translation.bergamot import TextTranslator

    found = sorted(models.glob(f"{direction}-*"))
    if len(found) != 1:
        raise ModelError(f"{models} has no single {direction}: delete it to download it again")
    return TextTranslator(found[0], device=torch_device(device))


def _open_opus(models: Path, device: str, *, direction: str) -> NeuralTranslator:
    from dewmark.models.devices import torch_device
    from dewmark_lab.attacks.translation.opus import OpusTranslator

    return OpusTranslator(models / f"helsinki_{direction}", device=torch_device(device))


def _open_argos(models: Path, device: str) -> NeuralTranslator:
    from dewmark.models.devices import torch_device
    from dewmark_lab.attacks.translation.argos import ArgosTranslator

    return ArgosTranslator(models, device=torch_device(device).type)


NEURAL: dict[tuple[str, str], tuple[str, Callable[[Path, str], NeuralTranslator]]] = {
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
                "these, or engine=llm"
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
class _MachineTranslation(Attack):
    """Base of translation and round trip: a neural translator and a foreign language."""

    at_once: ClassVar[int] = 320

    engine: Literal["neural"] = "neural"
    target: str = "pt"
    device: str = run_option("auto")

    def validate(self) -> None:
        """Raise `ConfigError` if there is no translator into the language."""
        if ("en", self.target) not in NEURAL:
            known = ", ".join(target for source, target in NEURAL if source == "en")
            raise ConfigError(f"target must be one of {known}, got {self.target!r}; or set engine=llm")

    @property
    def label(self) -> str:
        """Name, kind of translator and language: a chat model's translation is another attack."""
        return f"{self.name}-neural-{self.target}"

    def _identity(self, *directions: NeuralEngine) -> dict[str, object]:
        engines = [direction.identity for direction in directions]
        return {"name": self.name, "engine": self.engine, "target": self.target, "translators": engines}

    def _open(self, source: str, target: str) -> NeuralEngine:
        return NeuralEngine(source, target, self.device)

    def _translate(
        self, texts: Sequence[str], direction: NeuralEngine, progress: Progress, task: str
    ) -> list[str]:
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
        return self.target

    def identity(self) -> dict[str, object]:
        """Engine, language and the translator's version."""
        return self._identity(self._there)

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        """Translate each text; seeds have no effect."""
        return self._translate(texts, self._there, progress, f"translating into {self.language}")

    @functools.cached_property
    def _there(self) -> NeuralEngine:
        return self._open("en", self.target)


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
        foreign = self._translate(texts, there, progress, f"translating into {self.target}")
        return self._translate(foreign, back, progress, "translating back")

    @functools.cached_property
    def _both(self) -> tuple[NeuralEngine, NeuralEngine]:
        return self._open("en", self.target), self._open(self.target, "en")


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


@functools.cache
def _translator(source: str, target: str, device: str) -> NeuralTranslator:
    """The translator of one direction, shared by all attacks in the process."""
    package, open_from = NEURAL[source, target]
    return open_from(fetch(package) / PACKAGED[package].entry, device)
