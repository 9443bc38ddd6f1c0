"""The contract of an attack: texts and seeds in, one rewritten text for each out.

An attack is a frozen dataclass: its fields are its settings. What it makes of a text is decided by the text,
the text's seed and `Attack.identity`, never by the other texts of a batch; a field made with `run_option`
says how the work is done (device, batch size, how many at once) and is left out of the identity.

The table of attacks: a name maps to a class, imported when it is first asked for.
"""

from __future__ import annotations

import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dewmark import config
from dewmark.errors import ConfigError, InputError
from dewmark.registry import Registry, unknown_name
from dewmark.workspace import Progress, silent

__all__ = [
    "ATTACKS",
    "Attack",
    "attack_class",
    "check_least",
    "check_share",
    "load_attack",
    "run_option",
    "text_seed",
]

_IDENTITY = "identity"


def run_option(default: Any) -> Any:  # noqa: ANN401 - a dataclass field of any type, as dataclasses.field
    """A field that changes how an attack runs and not what it makes of a text."""
    return dataclasses.field(default=default, metadata={_IDENTITY: False})


@dataclass(frozen=True)
class Attack(ABC):
    """An attack with its settings. Subclasses fill in `rewrite`, and `validate` where values can be bad."""

    name: ClassVar[str]
    summary: ClassVar[str]
    at_once: ClassVar[int] = 32
    """Texts that a long run gives it in one call: what a kill can cost."""

    def __post_init__(self) -> None:
        for name, value in config.coerced(self).items():
            object.__setattr__(self, name, value)  # 1 and 1.0 are one attack, with one identity
        self.validate()

    def validate(self) -> None:  # noqa: B027 - most attacks have settings to check, some have none
        """Raise `ConfigError` if a setting is out of range."""

    @property
    def language(self) -> str:
        """The language of what it writes."""
        return "en"

    @property
    def label(self) -> str:
        """What a table calls it: two methods that differ in kind have two labels."""
        return self.name

    def identity(self) -> dict[str, object]:
        """Everything that decides the output beside text and seed: the name, and settings by public name."""
        decisive = {f.name.rstrip("_") for f in dataclasses.fields(self) if f.metadata.get(_IDENTITY, True)}
        settings = {name: value for name, value in config.to_dict(self).items() if name in decisive}
        return {"name": self.name, **settings}

    def plan(self, texts: Sequence[str], *, seeds: Sequence[int]) -> object | None:
        """What attacking these texts will cost, to be told before a long run; None where it costs nothing."""
        return None

    def apply(
        self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress | None = None
    ) -> list[str]:
        """Rewrite texts, in their order; a blank text comes back as it is."""
        if isinstance(texts, str):  # a sequence of one-letter texts, to Python
            raise InputError("texts must be a list, got one text: put it in a list")
        if len(texts) != len(seeds):
            raise InputError(f"{len(texts)} texts but {len(seeds)} seeds: give one seed per text")
        written = [index for index, text in enumerate(texts) if text.strip()]
        out = list(texts)
        if not written:
            return out
        made = self.rewrite(
            [texts[i] for i in written], seeds=[seeds[i] for i in written], progress=progress or silent
        )
        for index, text in zip(written, made, strict=True):
            out[index] = text
        return out

    @abstractmethod
    def rewrite(self, texts: Sequence[str], *, seeds: Sequence[int], progress: Progress) -> list[str]:
        """One output for each text; no text is blank. Batches are made inside."""


def text_seed(seed: int, name: str | int) -> int:
    """The seed of one text of a run, 0 to 2^63 − 1: it depends on the run's seed and the text's id only.

    So a text is attacked alike wherever it stands in a file, and the same places of two texts are not.
    """
    digest = hashlib.sha256(f"dewmark attack\n{seed}\n{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def check_share(name: str, value: float) -> None:
    """Refuse what is no share between 0 and 1."""
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} must lie in [0, 1], got {value}")


def check_least(name: str, value: int, least: int) -> None:
    """Refuse a number that is too small."""
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")


ATTACKS = Registry(
    "attack",
    {
        "copy-paste": "dewmark.attacks.lexical:CopyPaste",
        "delete": "dewmark.attacks.lexical:Delete",
        "dipper": "dewmark.attacks.rewriting.dipper:Dipper",
        "none": "dewmark.attacks.lexical:Identity",
        "paraphrase": "dewmark.attacks.rewriting.chat_model:Paraphrase",
        "round-trip": "dewmark.attacks.translation.attack:RoundTrip",
        "synonym": "dewmark.attacks.rewriting.synonyms:Synonym",
        "translate": "dewmark.attacks.translation.attack:Translate",
        "truncate": "dewmark.attacks.lexical:Truncate",
    },
    group="dewmark.attacks",
)

# Attacks of one name whose engines have settings of their own: (name, engine) to the engine's class.
_BY_ENGINE = Registry("engine", {"translate/llm": "dewmark.attacks.rewriting.chat_model:LlmTranslate"})


def attack_class(name: str, *, engine: object = None) -> type[Attack]:
    """The class behind a name; an engine with settings of its own has its own class."""
    special = f"{name}/{engine}"
    found: type[Attack] = _BY_ENGINE[special] if special in _BY_ENGINE else ATTACKS[name]
    return found


def load_attack(name: str, **settings: object) -> Attack:
    """An attack by name with some settings changed; a value may be text, as on a command line."""
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
