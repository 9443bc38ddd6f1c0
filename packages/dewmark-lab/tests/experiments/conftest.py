"""A tiny model in a folder, which real processes load like any host, and small runs of recipes on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NO_REPORT = ("--stages", "generate,attack,score,quality,evaluate")  # drawing figures takes most of a tiny run


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dewmark_lab.testing.fake_host import tiny_model

    folder = tmp_path_factory.mktemp("tiny") / "host"
    model, tokenizer = tiny_model()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a chat template."""
    from dewmark_lab.testing.fake_host import tiny_model

    folder = tmp_path_factory.mktemp("tiny-chat") / "host"
    model, tokenizer = tiny_model()
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}<assistant>"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def command(host: Path, out: Path, *more: str, recipe: Path | str = "main") -> list[str]:
    """A run that takes a second: one scheme, two seeds, one attack."""
    words = f"reproduce {recipe} --host {host} --judge {host} --texts 4 --seeds 2 --tokens 12 --batch-size 2"
    rest = f"--keys per-seed --schemes kgw --attacks delete-0.3 --out {out} -q"
    return [*words.split(), *rest.split(), *more]


def rows(file: Path) -> list[dict]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def tree(folder: Path, *, report: bool = True) -> dict[str, bytes]:
    """The bytes of every file except locks, and without the report's files if ``report`` is False."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != "lock")
    found = {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
    kept = ("scores.jsonl", "quality.jsonl", "evaluation.json")
    return {name: data for name, data in found.items() if report or name.endswith(kept) or _is_output(name)}


def _is_output(name: str) -> bool:
    return name.split("/")[0] in ("generate", "attack", "score", "quality", "human", "steal")
