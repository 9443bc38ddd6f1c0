"""Which rows of an experiment are one scheme at several strengths, so that a figure joins them by a line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["families"]

_STRENGTHS = ("lambda", "delta", "alpha")
_SYMBOLS = {"lambda": "λ", "delta": "δ", "alpha": "α"}
_NUMBER = re.compile(r"[-_ ]([0-9]+(?:\.[0-9]+)?)(?=$|[-_ ])")


def families(labels: Sequence[str], configuration: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Members by family: (label, strength), in rising strength.

    Rows of ``configuration["schemes"]`` (dicts with ``label`` and ``settings``) that differ in one strength
    are told by it; a label without such a row is cut at its number (``kgw-2.0`` is kgw at 2.0).
    """
    known = {row["label"]: row for row in configuration.get("schemes", ()) if isinstance(row, Mapping)}
    found: dict[str, list[tuple[float, str, str]]] = {}
    for label in labels:
        name, strength, said = _member(label, known.get(label))
        found.setdefault(name, []).append((strength, label, said))
    return {name: [(label, said) for _, label, said in sorted(members)] for name, members in found.items()}


def _member(label: str, row: Mapping[str, Any] | None) -> tuple[str, float, str]:
    """(family, strength as a number, strength as a label)."""
    number = _NUMBER.search(label)
    name = label if number is None else (label[: number.start()] + label[number.end() :]).strip("-_ ")
    settings = row.get("settings", {}) if row is not None else {}
    for setting in _STRENGTHS:
        value = settings.get(setting)
        if isinstance(value, int | float):
            return name, float(value), f"{_SYMBOLS[setting]}={value:g}"
    return name, float(number.group(1)) if number else 0.0, number.group(1) if number else ""
