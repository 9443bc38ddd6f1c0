"""How much a text repeats itself, in words."""

from __future__ import annotations

__all__ = ["distinct", "repetition"]

_REPEATED = 4  # words of a repeated phrase


def distinct(text: str, n: int) -> float:
    """The share of distinct n-grams of words; 1 if the text has none."""
    tokens = text.split()
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def repetition(text: str) -> float:
    """The share of 4-grams of words that repeat an earlier one."""
    return 1.0 - distinct(text, _REPEATED)
