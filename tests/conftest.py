from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes import BagEncoder


@pytest.fixture(autouse=True)
def private_cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes to the user's cache, but for those that need the real models kept there."""
    if "models" not in request.keywords:
        monkeypatch.setenv("DEWMARK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def bag_encoder(monkeypatch: pytest.MonkeyPatch) -> BagEncoder:
    """DEW with a small encoder that needs no model."""
    encoder = BagEncoder()
    monkeypatch.setattr("dewmark.dew.public.load_encoder", lambda name, **_: encoder)
    return encoder
