"""Tiny wheels made on the fly, and a stand-in for pip."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


def write_wheel(path: Path, files: dict[str, bytes]) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fake_pip(monkeypatch: pytest.MonkeyPatch, script: str) -> list[list[str]]:
    """Run ``script`` (which sees the destination folder in ``dest``) where pip would run."""
    commands: list[list[str]] = []
    real = subprocess.Popen

    def popen(command: list[str], **kwargs: object) -> subprocess.Popen[bytes]:
        commands.append(command)
        dest = command[command.index("--dest") + 1]
        return real([sys.executable, "-c", f"dest = {dest!r}\n{script}"], **kwargs)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(subprocess, "Popen", popen)
    return commands


def unpacked(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
