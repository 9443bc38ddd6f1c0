"""Every scheme of the registry keeps the contract (`dewmark.testing`), each check on its own."""

from __future__ import annotations

import functools

import pytest

from dewmark.registry import SCHEMES
from dewmark.testing import CHECKS, Check, Trial

STRONGER = {"atw": "atw delta=0.7"}  # few places of the tiny host have the entropy that its default wants
VARIANTS = (
    "dew sampler=bias",
    "dew units=token",
    "dew units=token sampler=bias",
    "dipmark repeats=skip",
    "exp repeats=keep",
    "kgw hashing=min",
    "kgw hashing=self",
    "morphmark form=linear",
    "synthid leaves=3",
    "unbiased reweight=delta",
)


@functools.cache
def trial_of(configuration: str, keys: int) -> Trial:
    """One trial per configuration for all its checks."""
    name, *settings = configuration.split()
    scheme = SCHEMES[name]().with_settings(dict(setting.split("=") for setting in settings))
    return Trial(scheme, tokens=100 if scheme.needs.drafts else 160, keys=keys)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SCHEMES)
def test_defaults(name: str, check: Check, bag_encoder: object) -> None:
    check(trial_of(STRONGER.get(name, name), 120))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("configuration", VARIANTS)
def test_variants(configuration: str, check: Check, bag_encoder: object) -> None:
    check(trial_of(configuration, 40))
