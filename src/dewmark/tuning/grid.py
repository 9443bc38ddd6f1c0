"""Which configurations are tried: every combination of the values given for each parameter.

The strength of one sampler means nothing to another (λ belongs to the bias, α to Gumbel sampling), so a
combination keeps only its own sampler's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from dewmark import config
from dewmark.errors import ConfigError
from dewmark.registry import SCHEMES

__all__ = [
    "DEFAULT_GRIDS",
    "Grid",
    "Settings",
    "curve_of",
    "describe",
    "expand",
    "flags",
    "parse_grid",
    "varying",
]

Settings = Mapping[str, object]
Grid = Mapping[str, Sequence[object]]

# Small enough for a few minutes on two cores; wider grids are one option away.
DEFAULT_GRIDS: Mapping[str, tuple[Grid, ...]] = {
    "dew": (
        {"units": ("token",), "sampler": ("bias", "gumbel"), "lambda": (2.0,), "alpha": (0.25, 0.5)},
        {"units": ("word",), "sampler": ("gumbel",), "lambda": (2.0,), "alpha": (0.25, 0.5, 0.75)},
    )
}
_STRENGTHS = {"bias": "lambda", "gumbel": "alpha"}


def parse_grid(options: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """``["k=3,5", "units=word"]`` to the values of each parameter; they stay text."""
    values = {}
    for name, text in config.parse_settings(options).items():
        found = tuple(part.strip() for part in text.split(",") if part.strip())
        if not found:
            raise ConfigError(f"--grid {name} needs at least one value, as in {name}=1,2: got {text!r}")
        values[name] = found
    return values


def expand(given: Grid, *, scheme: str = "dew") -> list[dict[str, object]]:
    """Every configuration of the default grids, each once, with the given values in the place of theirs.

    All are checked against the scheme here, before anything is written.
    """
    known = SCHEMES[scheme]()
    grids = [{**default, **given} for default in DEFAULT_GRIDS.get(scheme, ({},))]
    if not grids[0]:
        raise ConfigError(f"{scheme} has no default grid: say what to try, as in --grid NAME=VALUE,VALUE")
    found: dict[str, dict[str, object]] = {}
    for grid in grids:
        for combination in itertools.product(*grid.values()):
            settings = _own(dict(zip(grid, combination, strict=True)))
            # text becomes the field's type, so that 2 and 2.0 are one configuration
            whole = known.with_settings(settings).to_dict()
            found.setdefault(config.config_hash(whole), {name: whole[name.rstrip("_")] for name in settings})
    if not found:
        raise ConfigError("the grid is empty: give every parameter at least one value")
    unused = [name for name in given if not any(name in settings for settings in found.values())]
    if unused:
        raise ConfigError(
            f"{unused[0]} has no meaning for any sampler of the grid: leave it out, or add its sampler"
        )
    return list(found.values())


def _own(settings: dict[str, object]) -> dict[str, object]:
    """Without the strengths of the samplers that this one is not."""
    own = _STRENGTHS.get(str(settings.get("sampler")))
    others = set() if own is None else set(_STRENGTHS.values()) - {own}
    return {name: value for name, value in settings.items() if name.rstrip("_") not in others}


def varying(configurations: Sequence[Settings]) -> list[dict[str, object]]:
    """Each configuration without what all have in common; the sampler always stays."""
    first = dict(configurations[0].items())
    common = {
        name
        for name, value in first.items()
        if name != "sampler" and all(name in one and one[name] == value for one in configurations)
    }
    return [{name: v for name, v in one.items() if name not in common} for one in configurations]


def describe(settings: Settings) -> str:
    """One line for a table: ``gumbel alpha=0.25 units=word``."""
    named = [_assignment(name, value) for name, value in settings.items() if name != "sampler"]
    return " ".join([str(settings["sampler"]), *named] if "sampler" in settings else named)


def curve_of(settings: Settings) -> tuple[str, str]:
    """The curve a configuration belongs to, and its label there: configurations that differ in strength."""
    strength = _STRENGTHS.get(str(settings.get("sampler")), "")
    if strength not in settings:
        return "", describe(settings)
    others = {name: value for name, value in settings.items() if name != strength}
    return describe(others), _assignment(strength, settings[strength])


def flags(settings: Settings) -> str:
    """The settings as options of any command."""
    return " ".join(f"--set {_assignment(name, value)}" for name, value in settings.items())


def _assignment(name: str, value: object) -> str:
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
