"""Text from elsewhere as it may be shown: without what controls a terminal or the order of reading."""

from __future__ import annotations

__all__ = ["BIDIRECTIONAL", "one_line", "printable"]

BIDIRECTIONAL = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""The controls of Unicode that change in which order a text, and what stands beside it, are read."""

# C0 and C1 controls except tab and newline: a text must not move the cursor or set the window's title.
_CURSOR = (*range(9), *range(11, 32), *range(127, 160))
_SHOWN = {**dict.fromkeys(_CURSOR, "\N{REPLACEMENT CHARACTER}"), **dict.fromkeys(BIDIRECTIONAL, "")}


def printable(text: str) -> str:
    """The text without controls: it cannot move the cursor, nor change the order of what is read."""
    return text.replace("\r\n", "\n").translate(_SHOWN)


def one_line(name: object) -> str:
    """A name from somebody else's file as one printable line."""
    return " ".join(printable(str(name)).split())
