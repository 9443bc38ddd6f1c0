"""A tiny model saved to a folder: real processes load it as they would any host."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dewmark.hosts.fake import tiny_model

    folder = tmp_path_factory.mktemp("tiny") / "host"
    model, tokenizer = tiny_model()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def options(host: Path, out: Path, *more: str) -> list[str]:
    """A run that takes a second: one scheme, two seeds, one attack."""
    words = f"reproduce main --host {host} --judge {host} --texts 4 --seeds 2 --tokens 12 --batch-size 2"
    return [
        *words.split(),
        "--schemes",
        "kgw",
        "--attacks",
        "delete-0.3",
        "--out",
        str(out),
        "-q",
        *more,
    ]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file's bytes, but for locks."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != "lock")
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
