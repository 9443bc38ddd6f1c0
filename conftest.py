"""Fixtures for the tests of all five distributions."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import hypothesis
import pytest
from tests.fakes import BagEncoder, replace_encoders

from dewmark.registry import ENCODERS, HOSTS, SCHEMES

hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine is no fault
hypothesis.settings.load_profile("untimed")
LAB = importlib.util.find_spec("dewmark_lab") is not None
REGISTRIES = [ENCODERS, HOSTS, SCHEMES]
if LAB:
    from dewmark_lab.attacks import ATTACKS

    REGISTRIES.append(ATTACKS)


@pytest.fixture(autouse=True)
def private_cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes to the user's cache, but for those that need the real models kept there."""
    if "models" not in request.keywords:
        monkeypatch.setenv("DEWMARK_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a test registers end with it."""
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "registered", dict(registry.registered))


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


if importlib.util.find_spec("torch") is None or not LAB:
    _NEEDS_TORCH = re.compile(
        r"^(?:import|from) (?:torch|transformers|dewmark\.hosts\.transformers|dewmark\.sampling"
        r"|dewmark\.surface|dewmark\.cuda|dewmark_lab|tests\.hosts|tests\.surface)\b"
        r"|^ +from dewmark_lab\b",
        re.MULTILINE,
    )

    def pytest_ignore_collect(collection_path: Path) -> bool | None:
        """Leave out what needs models or the lab, where one is not installed: the rest must pass."""
        if collection_path.is_dir():
            return True if collection_path.name in ("cuda", "hosts", "surface") else None
        if collection_path.suffix == ".py" and _NEEDS_TORCH.search(collection_path.read_text("utf-8")):
            return True
        return None
