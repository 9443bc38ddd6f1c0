"""The ranges that parameters note on their types: every scheme and every attack keeps to them."""

from __future__ import annotations

import typing

import pytest

from dewmark.errors import ConfigError
from dewmark.registry import SCHEMES
from dewmark_lab.attacks.base import ATTACKS
from dewmark_lab.attacks.stealing.steal import StealSettings
from dewmark_lab.chat.settings import ChatSettings

KINDS = [*SCHEMES.values(), *ATTACKS.values(), ChatSettings, StealSettings]


def outside(allowed: str) -> list[float]:
    """The numbers next to a range, as it is noted, that are not in it."""
    if allowed == "positive":
        return [0, -1]
    if allowed.startswith("at least "):
        return [int(allowed.removeprefix("at least ")) - 1]
    low, high = (float(end) for end in allowed.removeprefix("in ")[1:-1].split(", "))
    return [low if "(" in allowed else low - 1, high if ")" in allowed else high + 1]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_value_next_to_its_range_is_rejected_by_name(kind):
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        for allowed in getattr(hint, "__metadata__", ()):
            for value in outside(allowed):
                said = f"^{name.rstrip('_')} must (be|lie) .*, got "
                with pytest.raises(ConfigError, match=said):
                    kind(**{name: value})


def test_ranges_are_noted_in_every_form():
    noted = {
        allowed.split()[0]
        for kind in KINDS
        for hint in typing.get_type_hints(kind, include_extras=True).values()
        for allowed in getattr(hint, "__metadata__", ())
    }
    assert noted == {"positive", "at", "in"}
