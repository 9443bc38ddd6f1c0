from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dewmark.models import packaged


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("DEWMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DEWMARK_WHEELS", str(folder))
    monkeypatch.setattr(packaged, "_verified", set())
    return folder


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("pip was called")

    monkeypatch.setattr(subprocess, "Popen", refuse)
