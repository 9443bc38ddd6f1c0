"""The lexicon: a fixed, public list of word forms with the vectors and frequencies that DEW needs of them.

Where words come from a lexicon, no encoder runs while a text is written or scored. Row i + 1 belongs to form
i. A word that is not listed borrows the row of a listed one, by its spelling (`dewmark.text.words`), so that
it can carry the mark in any language, though not its meaning. Row 0 stands for words without a row: those
with digits, and ASCII beginnings of listed words, which may yet become one while a text is written.

    q(w)              P M(w) in its r leading principal coordinates, 4 bits each (`build-lexicon`)
    ê_T(w)          = normalise(q(w) − centre of running words)
    context term(w) = α(w) (q(w) − centre of contexts),   α(w) = a / (a + p(w))

M(w) is an encoder's vector of the word, and p its frequency. The vectors stay packed and memory-mapped, and
only the rows asked for are unpacked: r / 2 bytes a word.

A lexicon is a bundle (`dewmark.storage`): `load_lexicon` verifies its checksums, and its ``identity`` is
their hash, which a mark and its detector must share, like a tokenizer.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F32, I8, I64
from dewmark.config import cache_dir
from dewmark.errors import ArtifactError, ConfigError
from dewmark.storage import Bundle, load_bundle
from dewmark.text.words import VERSION, borrowed_rows, spelling
from dewmark.workspace import Workspace

__all__ = ["ARRAYS", "FREQUENT", "LAYOUT", "MOST_TIMES", "SIF", "Lexicon", "lexicon_folder", "load_lexicon"]

SIF = 3e-4
"""a: words of this frequency have weight 1/2."""

FREQUENT = 1e-3
"""Words above this frequency are frequent: some 120 of a language."""

MOST_TIMES = 4
"""How often a frequent word carries the mark within one text; other words do once.

Unrelated texts share frequent words above all, and a mark that rewards a content word again and again makes a
text repeat itself.
"""

ARRAYS = (
    "forms",
    "centibels",
    "codes",
    "levels",
    "scales",
    "running_centre",
    "rare_centre",
    "context_centre",
    "mean",
    "basis",
)
"""The arrays of the bundle.

``forms`` are UTF-8, one per line. ``centibels`` (N,) int16 are 100 log10 p. ``codes`` (N, r / 2) uint8 hold
two coordinates each, the first in the low bits: coordinate j of a word is levels[code] * scales[j]. The
centres (r,) are in the same coordinates. ``mean`` (d,) and ``basis`` (r, d) give q = basis (P M − mean).
"""

_DEFAULT = "use-m3"
LAYOUT = 1


class Lexicon:
    """N word forms with vectors of dimension ``dim``; safe to share between threads."""

    def __init__(self, bundle: Bundle, identity: str) -> None:
        arrays = bundle.arrays
        self.identity = identity
        self.meta = bundle.meta
        self.forms: Sequence[str] = arrays["forms"].tobytes().decode().split("\n")
        self._codes: NDArray[np.uint8] = np.asarray(arrays["codes"])  # a plain view indexes faster
        self.dim = 2 * self._codes.shape[1]
        levels, codes = np.array(arrays["levels"], dtype=np.float32), np.arange(256)
        both = np.stack((levels[codes & 15], levels[codes >> 4]), axis=1)
        self._both = both.view(np.complex64).ravel()  # two coordinates a byte, looked up as one number
        self._scales = np.array(arrays["scales"], dtype=np.float32)
        self._running_centre, self._context_centre = (
            np.array(arrays[name], dtype=np.float32) for name in ("running_centre", "context_centre")
        )
        frequency = np.concatenate([[0.0], 10.0 ** (arrays["centibels"] / 100)])
        self.frequency: F32 = frequency.astype(np.float32)
        """p of every row (N + 1,), 0 for row 0."""
        self.weights: F32 = (SIF / (SIF + frequency)).astype(np.float32)
        """α of every row (N + 1,)."""
        self.limits: I8 = np.where(frequency > FREQUENT, MOST_TIMES, 1).astype(np.int8)
        """How often the word of each row carries the mark within one text (N + 1,); 0 for row 0."""
        self._borrowed = functools.lru_cache(maxsize=1 << 16)(self._borrow)
        self.limits[0] = 0
        self.weights[0] = 0.0

    def __len__(self) -> int:
        return len(self.forms)

    def __repr__(self) -> str:
        return f"Lexicon({self.identity!r}, {len(self)} forms, dim={self.dim})"

    @functools.cached_property
    def _row_of(self) -> dict[str, int]:
        return dict(zip(self.forms, range(1, len(self.forms) + 1), strict=True))

    def listed_rows(self, forms: Sequence[str]) -> I64:
        """The rows (N,) of forms, 0 for a form outside the lexicon."""
        found = map(self._row_of.get, forms, itertools.repeat(0))
        return np.fromiter(found, dtype=np.int64, count=len(forms))

    def rows(self, forms: Sequence[str]) -> I64:
        """The rows (N,) of forms, their own or borrowed ones; 0 for a form without a row."""
        found = self.listed_rows(forms)
        for i in np.flatnonzero(found == 0).tolist():
            found[i] = self._borrowed(forms[i])
        return found

    def _borrow(self, form: str) -> int:
        spelled, _ = spelling(form)
        if spelled < 0:
            return 0
        place = bisect.bisect_left(self._ordered, form) if form.isascii() else len(self.forms)
        begins = place < len(self.forms) and self._ordered[place].startswith(form)
        return 0 if begins else int(borrowed_rows(np.array(spelled), len(self.forms)))

    @functools.cached_property
    def _ordered(self) -> list[str]:
        return sorted(self.forms)

    def tokens(self, rows: I64) -> F32:
        """ê_T of rows, (N, dim): unit rows, zero for row 0."""
        vectors = _unit_rows(self.coordinates(rows) - self._running_centre)
        vectors[rows == 0] = 0.0
        return vectors

    def contexts(self, rows: I64) -> F32:
        """The weighted terms (N, dim) of a context's sum, zero for row 0."""
        return (self.coordinates(rows) - self._context_centre) * self.weights[rows, None]

    def contexts_of(self, windows: I64) -> F32:
        """ê_C (W, dim) of windows (W, k) of rows, 0 where there is no word; empty windows give zero rows."""
        rows, index = np.unique(windows, return_inverse=True)
        empty = int(len(rows) > 0 and rows[0] == 0)
        return sums_of(self.contexts(rows[empty:]), index.reshape(windows.shape) - empty)

    def coordinates(self, rows: I64) -> F32:
        """q of rows (N, dim); arbitrary for row 0."""
        packed = self._codes[np.maximum(rows, 1) - 1]
        values: F32 = self._both.take(packed).view(np.float32)
        values *= self._scales
        return values


def sums_of(rows: F32, index: I64) -> F32:
    """The sums of some rows (P, d) as unit rows (W, d); ``index`` (W, k) is padded with -1."""
    extended = np.concatenate((rows, np.zeros((1, rows.shape[1]), dtype=np.float32)))  # for index -1
    sums = np.zeros((len(index), rows.shape[1]), dtype=np.float32)
    for column in index.T:
        sums += extended[column]
    return _unit_rows(sums)


def _unit_rows(rows: F32) -> F32:
    """The same rows (N, d), scaled to unit length; those of (nearly) zero length become zero."""
    lengths = np.linalg.norm(rows, axis=1)
    lengths[lengths <= 1e-12] = np.inf
    rows /= lengths[:, None]
    return rows


def lexicon_folder(name: str, workspace: Workspace) -> Path:
    """Where the lexicon of this name lies, or is built: ``default``, an encoder's name, or a folder."""
    if name in ("default", _DEFAULT):
        return Path(str(resources.files("dewmark") / "data" / "lexicon" / _DEFAULT))
    folder = Path(name).expanduser()
    if folder.is_dir() or "/" in name:
        return folder
    return workspace.cache / "lexicons" / name


def lexicon_languages(name: str) -> frozenset[str] | None:
    """The languages of a lexicon's words, by ISO 639 code; None if it is not there or does not say."""
    try:
        index = (lexicon_folder(name, Workspace(cache=cache_dir())) / "bundle.json").read_text("utf-8")
        return frozenset(json.loads(index)["meta"]["languages"])
    except (OSError, ValueError, KeyError):
        return None


def load_lexicon(name: str = "default", *, workspace: Workspace) -> Lexicon:
    """Load a lexicon: ``default`` (it ships with the package), a folder, or the encoder it was built for."""
    folder = lexicon_folder(name, workspace)
    if not (folder / "bundle.json").exists():
        raise ConfigError(
            f"no lexicon {name!r}: give default, the folder of a lexicon, or build one with: "
            f"dewmark build-lexicon --encoder {name if '/' not in name else 'NAME'} --out FOLDER"
        )
    return _load(folder, (folder / "bundle.json").stat().st_mtime_ns)


@functools.lru_cache(maxsize=4)
def _load(folder: Path, written: int) -> Lexicon:
    bundle = load_bundle(folder)
    missing = [array for array in ARRAYS if array not in bundle.arrays]
    if missing:
        raise ArtifactError(f"{folder} is not a lexicon: it has no {missing[0]}")
    if bundle.meta["words"] != VERSION or bundle.meta["layout"] != LAYOUT:
        raise ArtifactError(
            f"the lexicon in {folder} was made by another version of dewmark: build it again with: "
            "dewmark build-lexicon"
        )
    index: dict[str, Any] = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
    sums = json.dumps([index["sha256"][name] for name in ARRAYS])
    digest = hashlib.sha256(sums.encode()).hexdigest()[:16]
    return Lexicon(bundle, f"{index['meta']['encoder']}-{digest}")
