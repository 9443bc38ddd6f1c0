"""Write the list by which Chinese, Japanese and Thai are cut into words, `data/units.txt` of dewmark.

    python benchmarks/list_units.py tnc_freq.txt --out units.txt

The first two lines are traditional characters and their simplified forms; then come the units of each
language. Chinese and Japanese words and the table of characters are those of wordfreq (with jieba),
Thai words those of the file, which PyThaiNLP has in its folder ``corpus``: a word, a tab and its frequency.
"""

from __future__ import annotations

import argparse
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import regex
import wordfreq
from wordfreq.chinese import SIMPLIFIED_MAP

SIZES = {"zh": (12_000, 4), "ja": (6_000, 4), "th": (10_000, 12)}  # words, and characters of one at most
SCRIPTS = {
    "zh": r"\p{Han}+",
    "ja": r"[\p{Han}\p{Hiragana}\p{Katakana}ー]+",
    "th": r"[\p{Thai}&&[\p{L}\p{M}]]+",
}


def simplified() -> dict[int, str]:
    """Characters to simplified ones, none of which is simplified further."""
    found = {
        code: simple
        for code, simple in SIMPLIFIED_MAP.items()
        if len(simple) == 1 and chr(code) == unicodedata.normalize("NFKC", chr(code))
    }
    for _ in range(3):
        found = {code: found.get(ord(simple), simple) for code, simple in found.items()}
    return {code: simple for code, simple in sorted(found.items()) if chr(code) != simple}


def units(spelled: Iterable[str], language: str, table: dict[int, str]) -> list[str]:
    """The first words of several characters among these, the most frequent first."""
    size, longest = SIZES[language]
    script = regex.compile(SCRIPTS[language], regex.V1)
    folded = (
        unicodedata.normalize("NFKC", word).translate(table) for word in spelled if script.fullmatch(word)
    )
    return list(dict.fromkeys(word for word in folded if 1 < len(word) <= longest))[:size]


def ordered(frequencies: dict[str, float]) -> list[str]:
    """Words, the most frequent first."""
    return sorted(frequencies, key=lambda word: (-frequencies[word], word))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("thai", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    lines = (line.split("\t") for line in options.thai.read_text(encoding="utf-8").splitlines())
    lists = {language: wordfreq.get_frequency_dict(language, "best") for language in ("zh", "ja")}
    lists["th"] = {word: float(count) for word, count in lines}
    table, seen = simplified(), set[str]()
    made = ["".join(map(chr, table)), "".join(table.values())]
    for language, listed in lists.items():
        new = [unit for unit in units(ordered(listed), language, table) if unit not in seen]
        seen.update(new)
        made.append(" ".join(new))
    options.out.write_text("\n".join(made) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
