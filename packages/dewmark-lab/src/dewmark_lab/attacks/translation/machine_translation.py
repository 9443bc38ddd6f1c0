"""The attacks ``translate`` and ``round-trip`` by machine translation.

The translators are packaged models, downloaded on first use: Bergamot's small one (English↔Portuguese,
`bergamot`) and OPUS-MT (English↔French, `opus`). For translation by a chat model see
`dewmark_lab.attacks.rewriting.chat_model`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from dewmark.errors import ConfigError, ModelError
from dewmark.models.packaged import PACKAGED, fetch
from dewmark.workspace import Progress, silent
from dewmark_lab.attacks.base import Attack, run_option
from dewmark_lab.attacks.translation.split_text import SentenceTranslator

_NEURAL_VERSION = 1  # increase it when a change to a neural translator changes translations

NEURAL = {
    ("en", "pt"): ("bergamot-pt", "enpt-*"),
    ("pt", "en"): ("bergamot-pt", "pten-*"),
    ("en", "fr"): ("opus-mt-fr", "helsinki_en_fr"),
    ("fr", "en"): ("opus-mt-fr", "helsinki_fr_en"),
}
"""The packaged model of each direction, and its folder there."""


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
        """Translate all texts in one call, which batches their sentences; blank texts stay blank."""
        self.fetch(progress=progress)
        translator = _translator(self.source, self.target, self.device)
        written = [i for i, text in enumerate(texts) if text.strip()]
        made = translator.translate(
            [texts[i] for i in written],
            on_progress=lambda done, total: progress(f"{task}, sentences", done, total),
        )
        found = dict(zip(written, made, strict=True))
        return [found.get(i, text) for i, text in enumerate(texts)]


@functools.cache
def _translator(source: str, target: str, device: str) -> SentenceTranslator:
    """The translator of one direction, shared by all attacks in the process."""
    from dewmark.models.devices import torch_device
    from dewmark_lab.attacks.translation.bergamot import BergamotTranslator
    from dewmark_lab.attacks.translation.opus import OpusTranslator

    package, pattern = NEURAL[source, target]
    models = fetch(package) / PACKAGED[package].entry
    found = sorted(models.glob(pattern))
    if len(found) != 1:
        raise ModelError(f"{models} has no single {pattern}: delete it to download it again")
    kind = BergamotTranslator if package == "bergamot-pt" else OpusTranslator
    return kind(found[0], device=torch_device(device))


@dataclass(frozen=True)
class Translate(Attack):
    """Translates English text into ``target``; seeds have no effect."""

    name: ClassVar[str] = "translate"
    summary: ClassVar[str] = "translates into another language"
    at_once: ClassVar[int] = 320

    engine: Literal["neural"] = "neural"
    target: str = "pt"
    device: str = run_option("auto")

    def validate(self) -> None:
        if ("en", self.target) not in NEURAL:
            known = ", ".join(target for source, target in NEURAL if source == "en")
            raise ConfigError(f"target must be one of {known}, got {self.target!r}; or set engine=llm")

    @property
    def label(self) -> str:
        """Name, kind of translator and language: a chat model's translation is another attack."""
        return f"{self.name}-neural-{self.target}"

    @property
    def language(self) -> str:
        return self.target

    @property
    def directions(self) -> tuple[NeuralEngine, ...]:
        """The translators that a text goes through."""
        return (NeuralEngine("en", self.target, self.device),)

    def identity(self) -> dict[str, object]:
        engines = [direction.identity for direction in self.directions]
        return {"name": self.name, "engine": self.engine, "target": self.target, "translators": engines}

    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        made = list(texts)
        for direction in self.directions:
            task = f"translating into {direction.target}" if direction.source == "en" else "translating back"
            made = direction.translate(made, task=task, progress=progress)
        return made


@dataclass(frozen=True)
class RoundTrip(Translate):
    """Translates English text into ``target`` and back into English; seeds have no effect."""

    name: ClassVar[str] = "round-trip"
    summary: ClassVar[str] = "translates into another language and back"

    @property
    def language(self) -> str:
        return "en"

    @property
    def directions(self) -> tuple[NeuralEngine, ...]:
        return (*super().directions, NeuralEngine(self.target, "en", self.device))
