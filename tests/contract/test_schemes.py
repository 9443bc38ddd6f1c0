"""Every scheme of the registry keeps the contract (`dewmark.testing`), each check on its own."""

from __future__ import annotations

import functools

import pytest

from dewmark.registry import SCHEMES
from dewmark.testing import CHECKS, Check, Trial

VARIANTS = (
    "dew sampler=gumbel",
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
    return Trial(
        SCHEMES[name]().with_settings(dict(setting.split("=") for setting in settings)), tokens=160, keys=keys
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SCHEMES)
def test_defaults(name: str, check: Check, bag_encoder: object) -> None:
    check(trial_of(name, 120))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("configuration", VARIANTS)
def test_variants(configuration: str, check: Check, bag_encoder: object) -> None:
    check(trial_of(configuration, 40))
