"""The outputs and pictures in the documentation, made from committed texts.

    python -m tests.docs.outputs            # write them again: pages and pictures (no model runs)
    python -m tests.docs.outputs texts      # write the texts again, with SmolLM2 (minutes)

A block ``console`` of a page holds commands after ``$`` and what they print. The commands run in a folder
with the keys and texts of `open_folder`. The keys are public, so their marks show nothing. `test_outputs.py`
compares.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from tests.docs import pictures

from dewmark.core.keys import Key

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TEXTS = DOCS / "examples" / "texts.jsonl"
PAGES = ("detection.md", "audit.md")
REQUESTS = {
    "chat": "Write a short story about a baker who opens a shop in a new town.",
    "mail": "Describe a garden in late summer, and the people who work in it.",
    "news": "Write a newspaper report about a lighthouse that opens its doors to visitors.",
}
SEEDS = {"chat": 4, "mail": 1, "news": 1}
WIDTH = 100


def key(name: str) -> Key:
    """A key of the documentation."""
    return Key(hashlib.sha256(name.encode() if name == "hostile-13" else f"docs {name}".encode()).digest())


def rows() -> dict[str, dict[str, Any]]:
    """The committed texts by their ids."""
    lines = TEXTS.read_text(encoding="utf-8").splitlines()
    return {row["id"]: row for row in map(json.loads, lines)}


def write_texts() -> None:
    """Let the default host answer the requests, each under its own key, and the first one unmarked too."""
    from dewmark.cli import demo
    from dewmark.cli.terminal import Progress

    made = []
    for name, request in REQUESTS.items():
        with Progress(quiet=True) as progress:
            cases, setting = demo.run(
                key(name), key("wrong"), request, SEEDS[name], host=None, progress=progress, quiet=True
            )
        for label, case in zip((name, "unmarked"), cases[: 2 if name == "chat" else 1], strict=False):
            made.append({"id": f"{label}-0", "prompt": request, "text": case.text, "nats": case.nats})
            made[-1]["setting"] = setting
    TEXTS.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made), encoding="utf-8")


def open_folder(folder: Path) -> None:
    """Put the keys and texts that the commands name into a folder."""
    (folder / "keys").mkdir()
    for name in REQUESTS:
        key(name).save(folder / "keys" / f"{name}.key")
    key("hostile-13").save(folder / "my.key")
    texts = [{"id": row["id"], "text": row["text"]} for row in rows().values()]
    (folder / "letter.txt").write_text(texts[0]["text"], encoding="utf-8")
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in texts)
    (folder / "mixed.jsonl").write_text(lines, encoding="utf-8")


def made_again(page: str, folder: Path) -> str:
    """A page whose ``console`` blocks hold what their commands print now."""

    def block(found: re.Match[str]) -> str:
        commands = re.findall(r"^\$ (.*)", found[1], re.MULTILINE)
        if any(not each.startswith("dewmark ") or "build-lexicon" in each for each in commands):
            return found[0]
        return "```console\n" + "\n".join(f"$ {each}\n{_printed(each, folder)}" for each in commands) + "```"

    return re.sub(r"```console\n(.*?)```", block, page, flags=re.DOTALL)


def _printed(command: str, folder: Path) -> str:
    """What a command prints on stdout, wrapped as by a terminal."""
    environment = {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "dewmark", *shlex.split(command)[1:]],
        cwd=folder, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = [
        part
        for line in ran.stdout.splitlines()
        for part in textwrap.wrap(
            line.rstrip(), WIDTH, subsequent_indent="  ", break_long_words=False, drop_whitespace=True
        )
        or [""]
    ]
    lines = [line if line.strip() else "" for line in lines]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write pages and pictures, or the texts."""
    if sys.argv[1:] == ["texts"]:
        write_texts()
        return
    with tempfile.TemporaryDirectory() as name:
        open_folder(Path(name))
        for page in PAGES:
            path = DOCS / page
            path.write_text(made_again(path.read_text(encoding="utf-8"), Path(name)), encoding="utf-8")
    for name, picture in pictures.all_pictures(rows(), key).items():
        (DOCS / "images" / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
