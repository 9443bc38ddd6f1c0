"""Keyed sketches: how alike two texts are, for someone who holds neither.

A text's *shingles* are its runs of three words. Every shingle is hashed under a secret key, and for each of
60 ways to order the hashes the smallest one is kept (MinHash). Two texts agree in a place with probability J,
the Jaccard similarity of their sets of shingles, so the share of equal places estimates J with a standard
error of at most 0.065. Places are joined to 20 *bands* of three, and texts that share a band are candidates:
93% of the pairs with J = 0.5, and 0.25% of those with J = 0.05.

Without the key a sketch reveals nothing, not even to someone who guesses the text. Boundary: text in, hashes
out; `query_log` stores them.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import regex
from numpy.typing import NDArray

BANDS, _ROWS = 20, 3
PLACES = BANDS * _ROWS
_SHINGLE = 3  # words
_LONGEST = 65_536  # characters that are read
# Scripts without spaces between words: each of their characters counts as a word.
_WORD = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_\u3040-\u9fff]+")

_INVISIBLE = regex.compile(r"[\p{Cf}\p{Mn}]+")


@dataclass(frozen=True, slots=True)
class Sketch:
    """The smallest hashes of a text (`PLACES` of 32 bits), and its bands."""

    places: tuple[int, ...]
    bands: tuple[str, ...]

    def to_hex(self) -> str:
        """The places in 8 hexadecimal digits each."""
        return "".join(f"{place:08x}" for place in self.places)

    def similarity(self, stored: str) -> float:
        """The estimated similarity to the text of a `to_hex` string."""
        same = sum(place == int(stored[8 * i : 8 * i + 8], 16) for i, place in enumerate(self.places))
        return same / len(self.places)


class Sketcher:
    """Makes sketches under a 32-byte key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        seed = int.from_bytes(hashlib.blake2b(b"orders", key=key, digest_size=16).digest(), "big")
        rng = np.random.default_rng(seed)
        # multiply-add on 64 bits, of which the upper 32 are used, orders hashes at random
        self._factors = rng.integers(0, 1 << 63, size=PLACES, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        self._terms = rng.integers(0, 1 << 63, size=PLACES, dtype=np.uint64)

    def __call__(self, text: str) -> Sketch:
        """The sketch of a text."""
        hashes = self._hashes(shingles(text))
        places = (self._factors[:, None] * hashes[None, :] + self._terms[:, None]) >> np.uint64(32)
        smallest = tuple(int(place) for place in places.min(axis=1))
        bands = tuple(
            self._band(number, smallest[number * _ROWS : (number + 1) * _ROWS]) for number in range(BANDS)
        )
        return Sketch(smallest, bands)

    def _hashes(self, found: Sequence[str]) -> NDArray[np.uint64]:
        digests = b"".join(
            hashlib.blake2b(each.encode("utf-8", "surrogatepass"), key=self._key, digest_size=8).digest()
            for each in found
        )
        return np.frombuffer(digests, dtype="<u8").astype(np.uint64)

    def _band(self, number: int, places: Sequence[int]) -> str:
        value = f"{number}:{','.join(map(str, places))}".encode()
        return hashlib.blake2b(value, key=self._key, digest_size=8).hexdigest()


def shingles(text: str, size: int = _SHINGLE) -> list[str]:
    """The distinct runs of ``size`` words, in any order; a shorter text is one run.

    Accents and invisible characters are left out: they would hide that a text is the same.
    """
    bare = _INVISIBLE.sub("", unicodedata.normalize("NFKD", text[:_LONGEST]))
    words = _WORD.findall(unicodedata.normalize("NFKC", bare).casefold())
    runs = {" ".join(words[i : i + size]) for i in range(len(words) - size + 1)}
    return sorted(runs) or [" ".join(words)]
