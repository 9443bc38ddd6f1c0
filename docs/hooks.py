"""MkDocs hook: writes the command-line reference from the typer application."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:  # noqa: ANN401 - MkDocs' page
    """Replace the placeholder of reference/cli.md by the text of every command's ``--help``."""
    if page.file.src_uri != "reference/cli.md":
        return markdown
    written = subprocess.run(
        [sys.executable, "-m", "typer", "dewmark.cli.app", "utils", "docs", "--name", "dewmark"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        check=True,
        text=True,
    )
    _, _, commands = written.stdout.partition("## `dewmark ")
    return markdown.replace("COMMANDS", f"## `dewmark {commands}")
