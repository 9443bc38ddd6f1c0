"""The table of attacks: a name maps to a class, imported when it is first asked for."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from dewmark.registry import Registry, unknown_name

if TYPE_CHECKING:
    from dewmark.attacks.base import Attack

__all__ = ["ATTACKS", "attack_class", "load_attack"]

ATTACKS = Registry(
    "attack",
    {
        "copy-paste": "dewmark.attacks.mixing:CopyPaste",
        "delete": "dewmark.attacks.lexical:Delete",
        "dipper": "dewmark.attacks.dipper:Dipper",
        "none": "dewmark.attacks.lexical:Identity",
        "paraphrase": "dewmark.attacks.llm_rewrite:Paraphrase",
        "round-trip": "dewmark.attacks.machine_translation:RoundTrip",
        "synonym": "dewmark.attacks.synonym:Synonym",
        "translate": "dewmark.attacks.machine_translation:Translate",
        "truncate": "dewmark.attacks.lexical:Truncate",
    },
    group="dewmark.attacks",
)

# Attacks of one name whose engines have settings of their own: (name, engine) to the engine's class.
_BY_ENGINE = Registry("engine", {"translate/llm": "dewmark.attacks.llm_rewrite:LlmTranslate"})


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
