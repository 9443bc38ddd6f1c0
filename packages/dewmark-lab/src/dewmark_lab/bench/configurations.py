"""The schemes that benchmarks time, each as the paper's comparison configures it.

Unigram, EXP, SWEET, EWD, SimKey, WaterPool and PASA are not in the paper's table of configurations and keep
their defaults; so do TS and ATW, whose strengths are part of their artifacts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from dewmark.config import cache_dir, parse_settings
from dewmark.core.keys import Key
from dewmark.hosts import host_info
from dewmark.hosts.base import Host
from dewmark.registry import SCHEMES, unknown_name
from dewmark.scheme import BoundScheme
from dewmark.workspace import Workspace

_COMPOSED = {"context_encoding": "composed", "whiten_contexts": True}

CONFIGURATIONS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "dew": ("dew", {}),
    "dew-bias": ("dew-paper", _COMPOSED),
    "dew-gumbel": ("dew-paper", {"sampler": "gumbel", "alpha": 0.25, **_COMPOSED}),
    "dew-window": ("dew-paper", {"whiten_contexts": True}),
    "kgw": ("kgw", {"prefix": 3, "gamma": 0.5, "delta": 2.0, "hashing": "left"}),
    "kgw-self": ("kgw", {"prefix": 4, "gamma": 0.5, "delta": 2.0, "hashing": "self"}),
    "unigram": ("unigram", {}),
    "sweet": ("sweet", {}),
    "ewd": ("ewd", {}),
    "morphmark": ("morphmark", {"form": "exponential", "k": 1.3, "p0": 0.15, "gamma": 0.5, "prefix": 1}),
    "exp": ("exp", {}),
    "synthid": ("synthid", {"depth": 30, "leaves": 2, "prefix": 3, "history": 1024}),
    "unbiased": ("unbiased", {"reweight": "gamma", "grid": 10, "prefix": 3, "repeats": "skip"}),
    "dipmark": ("dipmark", {"alpha": 0.45, "gamma": 0.5, "prefix": 3, "repeats": "keep"}),
    "semstamp": ("semstamp", {"dimensions": 3, "gamma": 0.25, "margin": 0.01, "tries": 100}),
    "ksemstamp": ("ksemstamp", {"gamma": 0.25, "margin": 0.035, "tries": 100}),
    "ts": ("ts", {}),
    "atw": ("atw", {}),
    "simkey": ("simkey", {}),
    "waterpool": ("waterpool", {}),
    "pasa": ("pasa", {}),
    "sir": ("sir", {"delta": 1.0, "chunk": 10}),
    "xsir": ("xsir", {"delta": 1.0, "chunk": 10}),
    "dew-paper": ("dew-paper", {}),
}


def configuration(name: str) -> tuple[str, dict[str, object]]:
    """Scheme and settings of a configuration; ``NAME:field=value,field=value`` changes some of them."""
    known, _, changes = name.partition(":")
    if known not in CONFIGURATIONS:
        raise unknown_name("configuration", known, CONFIGURATIONS)
    scheme, settings = CONFIGURATIONS[known]
    return scheme, {**settings, **parse_settings([part for part in changes.split(",") if part])}


def bind(name: str, host: Host, *, number: int = 0, cache: Path | None = None) -> BoundScheme:
    """A configuration with the ``number``-th key of the benchmarks; detection uses the loaded host."""
    scheme, settings = configuration(name)
    key = Key(hashlib.sha256(f"benchmark-{number}".encode()).digest())
    workspace = Workspace(cache=cache or cache_dir(), find_host=host_info, open_host=lambda other: host)
    bound: BoundScheme = SCHEMES[scheme]().with_settings(settings).bind(key, host.info, workspace)
    return bound
