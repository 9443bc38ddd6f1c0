"""A reader of WordNet's database files: which words have entries, and their synonyms.

It reads WordNet 3.x as Debian's ``wordnet-base`` installs it under /usr/share/wordnet: ``index.POS`` maps a
lemma to the offsets of its synsets in ``data.POS``, and ``POS.exc`` lists irregular forms. Boundary: lemmas
and synsets only, no relations between synsets.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dewmark.errors import ModelError

_FOLDER = "/usr/share/wordnet"
_VARIABLE = "WNSEARCHDIR"  # as in WordNet's own programs

_PARTS = ("noun", "verb", "adj", "adv")

# By part of speech: an inflected form's ending and its replacement in the lemma (WordNet's morphology).
_ENDINGS = {
    "noun": (("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"),
             ("men", "man"), ("ies", "y")),
    "verb": (("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"),
             ("ing", "")),
    "adj": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "adv": (),
}  # fmt: skip

# The regular ending behind each spelling of it.
_PLAIN = {"ses": "s", "xes": "s", "zes": "s", "ches": "s", "shes": "s", "ies": "s", "es": "s", "men": "s"}


@dataclass(frozen=True)
class WordNet:
    """The database in a folder; each file is read on first use."""

    folder: Path

    @classmethod
    def open(cls, folder: str | None = None) -> WordNet:
        """The database in a folder (default: ``$WNSEARCHDIR``, else Debian's), checked to be complete."""
        path = Path(folder or os.environ.get(_VARIABLE) or _FOLDER).expanduser()
        for part in _PARTS:
            for file in (f"index.{part}", f"data.{part}"):
                if not (path / file).is_file():
                    raise ModelError(
                        f"no WordNet at {path} ({file} is missing): install it with "
                        "'apt-get install wordnet-base', or set wordnet=FOLDER"
                    )
        return cls(path)

    @functools.cached_property
    def identity(self) -> str:
        """A hash of the database."""
        sums = hashlib.sha256()
        for part in _PARTS:
            sums.update((self.folder / f"index.{part}").read_bytes())
        return sums.hexdigest()[:16]

    def has_entry(self, word: str) -> bool:
        """Whether a word or its lemma has an entry."""
        return next(self._lemmas(word), None) is not None

    def synonyms(self, word: str) -> list[str]:
        """Synonyms of a word, most frequent senses first, inflected like the word.

        Names and multi-word lemmas are left out. If the word is a regular form of its lemma (``houses``), its
        synonyms get the same ending (``homes``); irregular forms (``ran``) have no synonyms.
        """
        word = word.lower()
        found: dict[str, None] = {}  # an ordered set
        for part, lemma, ending in self._lemmas(word):
            if ending is None:
                continue
            for synset in self._synsets(part, lemma):
                for other in synset:
                    if other.isalpha() and other.islower() and other != lemma:
                        found[_inflected(other, ending)] = None
        found.pop(word, None)
        return list(found)

    def _lemmas(self, word: str) -> Iterator[tuple[str, str, str | None]]:
        """(part of speech, lemma, ending) of each reading: "" for the lemma itself, None if irregular."""
        word = word.lower()
        for part in _PARTS:
            index = self._index[part]
            if word in index:
                yield part, word, ""
            irregular = self._exceptions[part].get(word)
            if irregular in index:
                yield part, irregular, None
            if irregular is not None:
                continue
            for ending, replacement in _ENDINGS[part]:
                lemma = word.removesuffix(ending) + replacement
                if word.endswith(ending) and lemma in index:
                    yield part, lemma, _PLAIN.get(ending, ending)

    def _synsets(self, part: str, lemma: str) -> Iterator[list[str]]:
        """The words of each synset of a lemma; only names are capitalized."""
        # lemma pos synset_cnt p_cnt [ptr_symbol …] sense_cnt tagsense_cnt offset …
        fields = self._index[part][lemma].split()
        data = self._data[part]
        for offset in map(int, fields[len(fields) - int(fields[1]) :]):
            line = data[offset : data.index(b"\n", offset)].decode("utf-8")
            # offset file pos w_cnt(hex) word lex_id [word lex_id …] p_cnt …; an adjective may read "lone(a)"
            entry = line.split(" ", 4)
            pairs = entry[4].split(" ")
            yield [pairs[2 * i].partition("(")[0] for i in range(int(entry[3], 16))]

    @functools.cached_property
    def _index(self) -> dict[str, dict[str, str]]:
        """By part of speech: lemma to the rest of its index line."""
        tables = {}
        for part in _PARTS:
            with (self.folder / f"index.{part}").open(encoding="utf-8") as stream:
                # skip the licence at the top, which is indented
                lines = (line.split(" ", 1) for line in stream if not line.startswith(" "))
                tables[part] = {line[0]: line[1] for line in lines if len(line) == 2}
        return tables

    @functools.cached_property
    def _data(self) -> dict[str, bytes]:
        """By part of speech: the bytes of the synset file (22 MB in all); index offsets count bytes."""
        return {part: (self.folder / f"data.{part}").read_bytes() for part in _PARTS}

    @functools.cached_property
    def _exceptions(self) -> dict[str, dict[str, str]]:
        """By part of speech: irregular form to its first lemma."""
        tables: dict[str, dict[str, str]] = {}
        for part in _PARTS:
            file = self.folder / f"{part}.exc"
            lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
            tables[part] = {form: lemma for form, lemma, *_ in map(str.split, filter(str.strip, lines))}
        return tables


def _inflected(lemma: str, ending: str) -> str:
    """A lemma with one of the regular endings s, ed, ing, er and est."""
    if not ending:
        return lemma
    if ending == "s":
        if lemma.endswith(("s", "x", "z", "ch", "sh")):
            return lemma + "es"
        return lemma[:-1] + "ies" if lemma.endswith("y") and lemma[-2:-1] not in "aeiou" else lemma + "s"
    if ending == "ing":
        return (
            lemma[:-1] + ending
            if lemma.endswith("e") and not lemma.endswith(("ee", "ye"))
            else lemma + ending
        )
    if lemma.endswith("y") and lemma[-2:-1] not in "aeiou":
        return lemma[:-1] + "i" + ending
    return lemma + ending.removeprefix("e") if lemma.endswith("e") else lemma + ending
