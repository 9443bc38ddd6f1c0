"""The contract of an attack, and the registry of attacks by name.

An attack maps each text and its seed to one rewritten text. It is a frozen dataclass whose fields are its
settings. Its output depends only on the text, the text's seed and `Attack.identity`, never on the other texts
of a batch. A field made with `run_option` says how to run (device, batch size, concurrency) and is not part
of the identity. The registry imports an attack's class on first use.
"""

from __future__ import annotations

import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dewmark import config
from dewmark.errors import InputError
from dewmark.registry import Registry, unknown_name
from dewmark.workspace import Progress, silent

__all__ = ["ATTACKS", "Attack", "attack_class", "load_attack", "run_option", "text_seed"]

_IDENTITY = "identity"


def run_option(default: Any) -> Any:  # noqa: ANN401 - a dataclass field of any type, as dataclasses.field
    """A field that changes how an attack runs, but not its output."""
    return dataclasses.field(default=default, metadata={_IDENTITY: False})


@dataclass(frozen=True)
class Attack(ABC):
    """An attack with its settings. Subclasses implement `rewrite`, and `validate` if values can be bad."""

    name: ClassVar[str]
    summary: ClassVar[str]
    at_once: ClassVar[int] = 32
    """Texts per call in a long run, which is the most work that an interrupted run loses."""
    can_fail: ClassVar[bool] = False
    """Whether a rewrite may fail: be refused, or be in another language."""

    def __post_init__(self) -> None:
        for name, value in config.coerced(self).items():
            object.__setattr__(self, name, value)  # 1 and 1.0 are one attack, with one identity
        self.validate()

    def validate(self) -> None:  # noqa: B027 - some attacks have nothing to check
        """Raise `ConfigError` if settings do not go together; ranges are noted as for `config.coerced`."""

    @property
    def language(self) -> str:
        """The language of the output."""
        return "en"

    @property
    def length(self) -> float:
        """The expected length of the output in relation to the text."""
        return 1.0

    @property
    def label(self) -> str:
        """The name in tables; different methods have different labels."""
        return self.name

    def identity(self) -> dict[str, object]:
        """Everything that determines the output besides text and seed: the name and the settings."""
        included = {f.name.rstrip("_") for f in dataclasses.fields(self) if f.metadata.get(_IDENTITY, True)}
        settings = {name: value for name, value in config.to_dict(self).items() if name in included}
        return {"name": self.name, **settings}

    def plan(self, texts: Sequence[str], *, seeds: Sequence[int]) -> object | None:
        """The cost of attacking these texts, to report before a long run; None if it is free."""
        return None

    def apply(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress = silent) -> list[str]:
        """Rewrite texts in order; blank texts are returned unchanged."""
        if isinstance(texts, str):  # which is also a sequence of strings
            raise InputError("texts must be a list, got a string: put it in a list")
        if len(texts) != len(seeds):
            raise InputError(f"{len(texts)} texts but {len(seeds)} seeds: give one seed per text")
        written = [index for index, text in enumerate(texts) if text.strip()]
        out = list(texts)
        if not written:
            return out
        made = self.rewrite([texts[i] for i in written], seeds=[seeds[i] for i in written], progress=progress)
        for index, text in zip(written, made, strict=True):
            out[index] = text
        return out

    @abstractmethod
    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        """Return one output per text. No text is blank; the attack forms its own batches."""


def text_seed(seed: int, name: str | int) -> int:
    """The seed of one text in a run, in [0, 2^63): it depends only on the run's seed and the text's id.

    So a text is attacked the same way wherever it stands in a file, and two texts are attacked differently.
    """
    digest = hashlib.sha256(f"dewmark attack\n{seed}\n{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


ATTACKS = Registry("attack", {}, group="dewmark.attacks", companion="dewmark-lab")

# Engines of an attack that have their own settings, and so their own class, such as ``translate/llm``.
_BY_ENGINE = Registry("engine", {}, group="dewmark.attack_engines")


def attack_class(name: str, *, engine: object = None) -> type[Attack]:
    """The class of an attack; an engine with its own settings has its own class."""
    special = f"{name}/{engine}"
    found: type[Attack] = _BY_ENGINE[special] if special in _BY_ENGINE else ATTACKS[name]
    return found


def load_attack(name: str, **settings: object) -> Attack:
    """Load an attack by name with some settings changed; values may be strings, as on a command line."""
    kind = attack_class(name, engine=settings.get("engine"))
    fields = {field.name.rstrip("_"): field.name for field in dataclasses.fields(kind)}
    chosen = {}
    for setting, value in settings.items():
        public = setting.rstrip("_")
        if public in fields:
            chosen[fields[public]] = value
        elif public != "engine" or kind is ATTACKS[name]:
            raise unknown_name(f"setting of {name}", setting, fields)
    return kind(**chosen)
