"""Every scheme of the registry keeps the contract (`dewmark_lab.testing`), one test per check."""

from __future__ import annotations

import functools

import pytest

from dewmark.registry import SCHEMES
from dewmark_lab.testing import CHECKS, Check, Trial

FAST = ("dew", "kgw")  # the others run under the marker ``contract``
# few positions of the tiny host have the entropy that atw needs
SETTINGS = {"atw": "atw delta=0.7"}
VARIANTS = (
    "dew-paper context_encoding=composed whiten_contexts=true",
    "dipmark repeats=skip",
    "exp repeats=keep",
    "kgw hashing=self",
    "morphmark form=linear",
    "synthid leaves=3",
)
NAMES = [name if name in FAST else pytest.param(name, marks=pytest.mark.contract) for name in SCHEMES]


@functools.cache
def trial_of(configuration: str, keys: int) -> Trial:
    """One trial per configuration, shared by all its checks."""
    name, *settings = configuration.split()
    scheme = SCHEMES[name]().with_settings(dict(setting.split("=") for setting in settings))
    tokens = 100 if scheme.needs.drafts else 160
    return Trial(scheme, tokens=tokens, keys=keys)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_defaults(name: str, check: Check, bag_encoder: object) -> None:
    check(trial_of(SETTINGS.get(name, name), 120))


@pytest.mark.contract
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("configuration", VARIANTS)
def test_variants(configuration: str, check: Check, bag_encoder: object) -> None:
    check(trial_of(configuration, 40))
