"""500 texts of the package's own data: fifteen languages, many kinds and lengths, plain and disguised."""

from __future__ import annotations

import html
import itertools
import json
from importlib import resources

import numpy as np

DISGUISES = (
    lambda text: text,
    lambda text: f"<p>{html.escape(text)}</p><style>p {{ a: b }}</style> &copy; &#8212;<br>".replace(
        "\n", "<br>"
    ),
    lambda text: "# Title\n\n" + text.replace(" the ", " **the** [a link](http://example.com/x?y=1) ", 3),
    lambda text: text.replace("e", "e\u200b", 40).replace("a", "a\u00ad", 20).replace("o", "o\ufe0f", 9),
    lambda text: text.replace("a", "\u0430", 12).replace("o", "\u03bf", 9),  # Cyrillic and Greek letters
    lambda text: text.replace("n", "\U0001d4c3", 15).replace("T", "\uff34", 5),
    lambda text: "\n".join(f"{i + 1}  {line}" for i, line in enumerate(_wrapped(text, 60))),
    lambda text: "\n".join(_wrapped(text.replace("ing ", "-\ning ", 9), 200)),
    lambda text: text.replace(" ", "_"),
    lambda text: text + "\ufeff" + "".join(chr(0xE0100 + i % 240) for i in range(400)),  # as C2PA writes
    str.upper,
    lambda text: (
        text.replace(". ", ". \U0001f468\u200d\U0001f4bb ", 5) + " caf\u00e9 don\u2019t 3.14 12th l'eau"
    ),
)


def golden_texts(count: int = 500) -> list[str]:
    """The same texts each time."""
    data = resources.files("dewmark") / "data"
    prose = [
        part
        for folder in ("ordinary", "registers")
        for file in sorted((data / folder).iterdir(), key=lambda each: each.name)
        for part in [file.read_text(encoding="utf-8")]
    ]
    kinds = [
        json.loads(line)["text"]
        for file in sorted((data / "negatives").iterdir(), key=lambda each: each.name)
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    rng = np.random.default_rng(49)
    disguises = itertools.cycle(DISGUISES)
    texts = []
    for i in range(count):
        if i % 5 == 4:
            text = kinds[int(rng.integers(len(kinds)))]
        else:
            whole = prose[int(rng.integers(len(prose)))]
            size = int(rng.choice([80, 400, 1200, 2500, 6000]))
            at = int(rng.integers(max(len(whole) - size, 1)))
            text = whole[at : at + size]
        texts.append(next(disguises)(text) if i % 3 == 0 else text)
    return [text for text in texts if text.strip()]


def _wrapped(text: str, width: int) -> list[str]:
    return [text[i : i + width] for i in range(0, len(text), width)]
