"""MkDocs hook: writes the command-line reference from the typer application."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_ALL_COMMANDS = """from dewmark.cli.app import COMMANDS, command_line

app = command_line(COMMANDS)
"""


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:  # noqa: ANN401 - MkDocs' page
    """Replace the placeholder of reference/cli.md by the text of every command's ``--help``."""
    if page.file.src_uri != "reference/cli.md":
        return markdown
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "commands.py")
        script.write_text(_ALL_COMMANDS, encoding="utf-8")
        written = subprocess.run(
            [sys.executable, "-m", "typer", str(script), "utils", "docs", "--name", "dewmark"],
            capture_output=True,
            check=True,
            text=True,
        )
    _, _, commands = written.stdout.partition("## `dewmark ")
    return markdown.replace("COMMANDS", f"## `dewmark {commands}")
