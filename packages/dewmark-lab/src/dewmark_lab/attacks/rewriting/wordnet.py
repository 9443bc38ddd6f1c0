"""Which words have an entry in WordNet, themselves or by their lemma.

It reads the database of WordNet 3.x as Debian's ``wordnet-base`` installs it under /usr/share/wordnet:
``index.POS`` lists lemmas, and ``POS.exc`` irregular forms.
"""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from dewmark.errors import ModelError

_FOLDER = "/usr/share/wordnet"
_VARIABLE = "WNSEARCHDIR"  # as in WordNet's own programs

# By part of speech: an inflected form's ending and its replacement in the lemma (WordNet's morphology).
_ENDINGS = {
    "noun": (("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"),
             ("men", "man"), ("ies", "y")),
    "verb": (("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"),
             ("ing", "")),
    "adj": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "adv": (),
}  # fmt: skip


@dataclass(frozen=True)
class WordNet:
    """The database in a folder; its files are read on first use."""

    folder: Path

    @classmethod
    def open(cls, folder: str | None = None) -> WordNet:
        """The database in a folder (default: ``$WNSEARCHDIR``, else Debian's), checked to be complete."""
        path = Path(folder or os.environ.get(_VARIABLE) or _FOLDER).expanduser()
        for part in _ENDINGS:
            if not (path / f"index.{part}").is_file():
                raise ModelError(
                    f"no WordNet at {path} (index.{part} is missing): install it with "
                    "'apt-get install wordnet-base', or set wordnet=FOLDER"
                )
        return cls(path)

    @functools.cached_property
    def identity(self) -> str:
        """A hash of the database."""
        sums = hashlib.sha256()
        for part in _ENDINGS:
            sums.update((self.folder / f"index.{part}").read_bytes())
        return sums.hexdigest()[:16]

    def has_entry(self, word: str) -> bool:
        """Whether a word or its lemma has an entry."""
        word = word.lower()
        for part, (lemmas, irregular) in self._words.items():
            if word in lemmas or irregular.get(word) in lemmas:
                return True
            endings = () if word in irregular else _ENDINGS[part]
            if any(word.endswith(end) and word.removesuffix(end) + new in lemmas for end, new in endings):
                return True
        return False

    @functools.cached_property
    def _words(self) -> dict[str, tuple[frozenset[str], dict[str, str]]]:
        """By part of speech: the lemmas, and irregular form to its first lemma."""
        return {
            part: (
                # the licence at the top is indented
                frozenset(line.partition(" ")[0] for line in _lines(self.folder / f"index.{part}")),
                {line.split()[0]: line.split()[1] for line in _lines(self.folder / f"{part}.exc")},
            )
            for part in _ENDINGS
        }


def _lines(file: Path) -> list[str]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return [line for line in lines if line.strip() and not line.startswith(" ")]
