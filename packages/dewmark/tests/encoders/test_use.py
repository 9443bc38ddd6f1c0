"""The encoder use-m3: the code of the package that carries it, run as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dewmark.encoders
from dewmark.encoders import load_encoder, use
from dewmark.errors import ModelError
from dewmark.models.packaged import PACKAGED

PACKAGE = (
    "class USE:\n    def __init__(self, threads): pass\n"
    "    def encode(self, texts): return [[1.0] * 512 for _ in texts]\n"
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / PACKAGED["use-m3"].entry
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE)
    monkeypatch.setattr(use, "fetch", lambda name, *, progress: tmp_path)
    monkeypatch.setattr(dewmark.encoders, "loaded", {})
    return folder


def test_the_package_is_run_and_loaded_once(package: Path) -> None:
    encoder = load_encoder("use-m3", device="cpu")
    np.testing.assert_array_equal(encoder.encode(["a", "b"]), np.ones((2, 512)))
    assert encoder.dim == 512
    assert load_encoder("use-m3", device="cpu") is encoder


def test_a_broken_package_is_a_model_error(package: Path) -> None:
    (package / "__init__.py").write_text("class USE:\n    def __init__(self, threads): raise KeyError(1)\n")
    with pytest.raises(ModelError, match="cannot load use-m3 .*delete .* and run again"):
        load_encoder("use-m3", device="cpu").encode(["a"])
