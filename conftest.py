"""Fixtures for the tests of all three distributions."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.fakes import BagEncoder, replace_encoders

LAB = importlib.util.find_spec("dewmark_lab") is not None


@pytest.fixture(autouse=True)
def private_cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes to the user's cache, but for those that need the real models kept there."""
    if "models" not in request.keywords:
        monkeypatch.setenv("DEWMARK_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def tiny_artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny artifact for every scheme that needs one."""
    folder = tmp_path_factory.mktemp("artifacts")
    if LAB:
        from tests.tiny_artifacts import make_all

        make_all(folder)
    return folder


@pytest.fixture
def bag_encoder(monkeypatch: pytest.MonkeyPatch, tiny_artifacts: Path) -> BagEncoder:
    """Schemes with a small encoder that needs no model, and with artifacts that are made for it."""
    encoder = BagEncoder()
    replace_encoders(monkeypatch, encoder)
    if LAB:
        monkeypatch.setattr("dewmark_lab.artifacts.shipped", lambda: tiny_artifacts)
    return encoder
