"""Where the command line writes: results to stdout, chatter to stderr, JSON one object a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["emit", "printable", "results", "say", "write"]

# C0 and C1 controls but tab and newline: a scored text must not move the reader's cursor or set its title.
_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)
}

# Line ends of Unicode that JSON leaves as they are: many readers would cut a line there.
_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}


def emit(row: Mapping[str, Any]) -> None:
    """Print one JSON object on one line of stdout."""
    write(json.dumps(row, ensure_ascii=False).translate(_LINE_ENDS) + "\n")


def write(text: str) -> None:
    """Write text to stdout as UTF-8, whatever the locale says, and flush it."""
    sys.stdout.flush()
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:
        sys.stdout.write(text)
    else:
        stream.write(text.encode("utf-8", "replace"))
    sys.stdout.flush()


def say(line: str, *, quiet: bool = False) -> None:
    """Print one line of chatter to stderr."""
    if not quiet:
        sys.stderr.write(line.translate(_CONTROLS) + "\n")
        sys.stderr.flush()


def results() -> Console:
    """A rich console on stdout that adds nothing of its own; NO_COLOR is honoured by rich."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


def printable(text: str) -> str:
    """The text with control characters replaced, safe to show in a terminal."""
    return text.replace("\r\n", "\n").translate(_CONTROLS)
