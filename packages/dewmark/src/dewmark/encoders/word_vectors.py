"""Word vectors: M(word), and the two sides of DEW for words, ê_T of a word and ê_C of the words before it.

**The vectors.** Each word is encoded once ever and cached in memory and on disk, in one SQLite file per
encoder that all processes share; a kill loses at most the last words. Rows are rounded to float16 before
anything is derived from them, so that marking and detection start from the same numbers. The file contains
words of the scored texts, singly and unordered, and is readable only by its owner. If the disk cannot be used
(full, read-only, damaged), memory is.

**The space.** Word vectors share components that are unrelated to meaning: the language of the text, its kind
(a shop page, a novel, a forum) and the word's frequency. Under a fixed key such a component is a standing
preference that correlates unrelated texts, and it hides that "Brücke" means "bridge". So statistics are
fitted once per encoder on texts in many languages and of many kinds, each with its mean context vector μ_g:

    P        removes the `REMOVED` directions in which the μ_g differ most
    ê_T(w) = normalise(P (M(w) − centre of running words, or of rare ones))
    ê_C    = normalise(Σ_j α(w_j) P (M(w_j) − centre of the μ_g)),   over the last k words w_j
    α(w)   = a / (a + p(w)),   p(w) the frequency of w: "the", "und" and "の" say little

With the centre of running words ("the" counts as often as it occurs) the words that compete for a position
have little in common, which makes the mark stronger. With the centre of rare words the mark is weaker, but a
rewrite keeps a larger share of it.

p(w) follows Zipf's law from a short list of frequent words per language, ordered by frequency; a word in no
list has weight 1. (The log of experiments explains why nothing is whitened here.)

Detection: `dewmark.text.words.words` segments a text, `windows_before` gives each word's context,
`WordTokens` and `WordContexts` give the rows. Marking: `dewmark.text.growing_text.TokenStream` gives each
candidate's word and context.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F16, F32, F64
from dewmark.core.whitening import normalize_rows
from dewmark.encoders.base import Encoder
from dewmark.encoders.contexts import SummedContexts, ordinary_texts
from dewmark.errors import ArtifactError, ConfigError, InputError
from dewmark.storage import BlobCache, load_bundle, save_bundle
from dewmark.text.words import VERSION, words
from dewmark.workspace import Progress, Workspace, silent

__all__ = [
    "FREQUENT",
    "FREQUENT_TIMES",
    "SIF",
    "WordVectors",
    "load_word_statistics",
    "register_texts",
    "word_weight",
]

Window = tuple[str, ...]
Centre = Literal["running", "rare"]

STATISTICS = ("running_centre", "rare_centre", "context_centre", "removed")

REMOVED = 14
"""The number of directions removed from all word vectors."""

SIF = 3e-4
"""a: words of this frequency have weight 1/2."""

FREQUENT_TIMES = 4
"""How often a frequent word carries the mark within one text."""

FREQUENT = 1e-3
"""Words of a lexicon above this frequency are frequent: some 120 of a language."""

_MEMORY_LIMIT = 300_000  # words: 300 MB at 512 dimensions
_DISK_LIMIT = 1 << 30  # bytes
_CHUNK = 2048
_ZIPF = 0.1  # the word of rank r has frequency 0.1 / (r + 1)


class RowMemo:
    """A cache of rows by word, kept as float16 and cleared when it exceeds ``limit`` words.

    ``compute`` maps N new words to rows (N, dim). Safe to share between threads.
    """

    def __init__(
        self, compute: Callable[[list[str]], NDArray[np.floating]], dim: int, *, limit: int = _MEMORY_LIMIT
    ) -> None:
        self._compute = compute
        self._limit = limit
        self._index: dict[str, int] = {}
        self._rows: F16 = np.empty((1024, dim), dtype=np.float16)
        self._lock = threading.RLock()

    def rows(self, words: Sequence[str]) -> F32:
        """The rows of words (N, dim); all new ones are computed in one call."""
        with self._lock:
            self.add(words)
            picked = np.fromiter((self._index[word] for word in words), dtype=np.int64, count=len(words))
            return self._rows[picked].astype(np.float32)

    def add(self, words: Collection[str]) -> None:
        """Compute and cache the new ones among the words."""
        with self._lock:
            new = [word for word in dict.fromkeys(words) if word not in self._index]
            if new and len(self._index) + len(new) > self._limit:
                self._index = {}
                new = list(dict.fromkeys(words))
            if not new:
                return
            fresh = self._compute(new)
            start, end = len(self._index), len(self._index) + len(new)
            if end > len(self._rows):
                grown = np.empty((max(end, 2 * len(self._rows)), self._rows.shape[1]), dtype=np.float16)
                grown[:start] = self._rows[:start]
                self._rows = grown
            self._rows[start:end] = fresh
            self._index.update(zip(new, range(start, end), strict=True))


class WordVectors:
    """M(word), unit rows, cached in memory and in ``folder`` (None: in memory only)."""

    def __init__(self, encoder: Encoder, folder: Path | None) -> None:
        self.encoder = encoder
        self.dim = encoder.dim
        name = hashlib.sha256(f"{VERSION}|{encoder.identity}".encode()).hexdigest()[:20]
        self._disk = None if folder is None else BlobCache(folder / f"{name}.sqlite", limit=_DISK_LIMIT)
        self._memo = RowMemo(self._find, encoder.dim)

    def vectors(self, words: Sequence[str]) -> F32:
        """The forms of words (`dewmark.text.words`) to unit rows (N, dim)."""
        return self._memo.rows(words)

    def load(self) -> None:
        """Load the encoder now rather than at the first new word."""
        self.encoder.encode([""])

    def prepare(self, words: Collection[str], *, progress: Progress = silent) -> None:
        """Encode a whole vocabulary in advance; known words cost a lookup."""
        distinct = list(dict.fromkeys(words))
        for i in range(0, len(distinct), _CHUNK):
            progress("encoding words", i, len(distinct))
            self._memo.add(distinct[i : i + _CHUNK])
        progress("encoding words", len(distinct), len(distinct))

    def _find(self, words: list[str]) -> F16:
        stored = self._disk.read(words) if self._disk else {}
        known = {
            word: np.frombuffer(row, dtype="<f2").astype(np.float16)
            for word, row in stored.items()
            if len(row) == 2 * self.dim
        }
        new = [word for word in words if word not in known]
        if new:
            rows = [self.encoder.encode(new[i : i + _CHUNK]) for i in range(0, len(new), _CHUNK)]
            fresh = normalize_rows(np.concatenate(rows)).astype(np.float16)
            known.update(zip(new, fresh, strict=True))
            if self._disk:
                self._disk.write(dict(zip(new, (row.astype("<f2").tobytes() for row in fresh), strict=True)))
        return np.stack([known[word] for word in words])


@dataclass(frozen=True)
class WordStatistics:
    """Centres (d,) of running words, rare words and contexts, and ``removed`` (r, d), orthonormal rows."""

    running_centre: F32
    rare_centre: F32
    context_centre: F32
    removed: F32

    def tokens(self, vectors: F32, *, centre: Centre = "running") -> F32:
        """M(w), rows (N, d), to ê_T, unit rows (N, d)."""
        chosen = self.running_centre if centre == "running" else self.rare_centre
        return normalize_rows(self._project(vectors - chosen))

    def contexts(self, vectors: F32) -> F32:
        """M(w), rows (N, d), to the terms (N, d) of a context's sum, before weighting."""
        return self._project(vectors - self.context_centre)

    def _project(self, x: F32) -> F32:
        # in float64: the last bit of a float32 product depends on the number of rows, so after rounding to
        # float16 a word's row would depend on the words processed with it
        removed = self.removed.astype(np.float64)
        return np.asarray(x - (x @ removed.T) @ removed, dtype=np.float32)


class WordTokens:
    """ê_T of words."""

    def __init__(
        self, vectors: WordVectors, statistics: WordStatistics, *, centre: Centre = "running"
    ) -> None:
        self.dim = vectors.dim
        self._memo = RowMemo(lambda new: statistics.tokens(vectors.vectors(new), centre=centre), vectors.dim)

    def vectors(self, words: Sequence[str]) -> F32:
        """Words to unit rows (N, dim), up to rounding to float16."""
        return self._memo.rows(words)


class WordContexts:
    """ê_C of windows: the words before a word, weighted down by frequency."""

    def __init__(self, vectors: WordVectors, statistics: WordStatistics) -> None:
        self.dim = vectors.dim
        self._memo = RowMemo(lambda new: statistics.contexts(vectors.vectors(new)), vectors.dim)

    def vectors(self, windows: Sequence[Window]) -> F32:
        """Windows of any length to unit rows (N, dim); an empty window gives a zero row."""
        return self.summed(windows).vectors

    def summed(self, windows: Sequence[Window]) -> SummedContexts:
        """The same contexts as sums of weighted vectors, one per distinct word."""
        found: dict[str, int] = {}
        lengths = np.fromiter(map(len, windows), dtype=np.int64, count=len(windows))
        index = np.full((len(windows), int(lengths.max(initial=0))), -1, dtype=np.int64)
        index[np.arange(index.shape[1]) < lengths[:, None]] = [
            found.setdefault(word, len(found)) for window in windows for word in window
        ]
        weights = np.array([word_weight(word) for word in found], dtype=np.float32)
        return SummedContexts(self._memo.rows(list(found)) * weights[:, None], index)


def windows_before(forms: Sequence[str], *, k: int, before: Sequence[str] = ()) -> list[Window]:
    """The k words before each word of a text, fewer at the start; ``before`` are the prompt's words."""
    known = (*before, *forms)
    return [known[max(i - k, 0) : i] for i in range(len(before), len(known))]


def times_counted(form: str) -> int:
    """How often a word carries the mark within one text: once, or four times if it is frequent.

    Unrelated texts share frequent words above all, and a mark that rewards a content word again and again
    makes a text repeat itself.
    """
    return 1 if word_weight(form) >= 0.5 else FREQUENT_TIMES


def word_weight(form: str) -> float:
    """α(w) = a / (a + p(w)), in (0, 1]."""
    return SIF / (SIF + _frequencies().get(form, 0.0))


@functools.cache
def _frequencies() -> dict[str, float]:
    found: dict[str, float] = {}
    file = resources.files("dewmark") / "data" / "frequent.txt"
    for line in file.read_text(encoding="utf-8").splitlines():
        _, listed = line.split(":", 1)
        for rank, form in enumerate(dict.fromkeys(word.form for word in words(listed)), start=1):
            found[form] = max(found.get(form, 0.0), _ZIPF / (rank + 1))
    return found


def fit_word_statistics(
    vectors: WordVectors, *, languages: Sequence[str], registers: Sequence[str], workspace: Workspace
) -> WordStatistics:
    """Fit on texts in many languages and on texts of many kinds in one language; one text per group.

    The defaults of ``languages`` and ``registers`` are `ordinary_texts` and `register_texts`. No key and no
    mark is involved. Words that occur once in all registers represent rare words.
    """
    groups = [[word.form for word in words(text)] for text in (*languages, *registers)]
    kinds = groups[len(languages) :]
    counts = Counter(form for group in kinds for form in group)
    rare = [form for form, count in counts.items() if count == 1]
    if len(groups) <= REMOVED or not rare or not all(groups):
        raise InputError(
            f"word statistics need more than {REMOVED} texts with words, got {sum(map(bool, groups))}"
        )
    vectors.prepare([form for group in groups for form in group], progress=workspace.progress)
    means = np.array([_mean(vectors, group) for group in groups])
    centre = means[len(languages) :].mean(axis=0)
    removed = np.linalg.svd(means - centre, full_matrices=False)[2][:REMOVED]
    return WordStatistics(
        running_centre=vectors.vectors([form for group in kinds for form in group]).mean(axis=0),
        rare_centre=vectors.vectors(rare).mean(axis=0),
        context_centre=centre.astype(np.float32),
        removed=removed.astype(np.float32),
    )


def _mean(vectors: WordVectors, forms: Sequence[str]) -> F64:
    weights = np.array([word_weight(form) for form in forms])
    mean: F64 = weights @ vectors.vectors(forms).astype(np.float64) / weights.sum()
    return mean


def register_texts() -> list[str]:
    """The package's own English texts, one per kind: registers of the web, and its openings by genre."""
    data = resources.files("dewmark") / "data"
    files = sorted((data / "registers").iterdir(), key=lambda file: file.name)
    texts = [file.read_text(encoding="utf-8") for file in files if file.name.endswith(".txt")]
    genres: dict[str, list[str]] = defaultdict(list)
    for line in (data / "openings.jsonl").read_text(encoding="utf-8").splitlines():
        opening = json.loads(line)
        genres[opening["genre"]].append(opening["prompt"])
    return texts + ["\n".join(genres[genre]) for genre in sorted(genres)]


def load_word_statistics(source: str, *, vectors: WordVectors, workspace: Workspace) -> WordStatistics:
    """Statistics from a folder, or the encoder's default.

    The default ships with the package for the default encoder; for any other encoder it is fitted once on the
    package's own texts, and cached.
    """
    encoder = vectors.encoder
    if source != "default":
        return _read(Path(source), vectors)
    shipped = Path(str(resources.files("dewmark") / "data" / "whitening" / f"{encoder.name}-word"))
    if (shipped / "bundle.json").exists():
        return _read(shipped, vectors)
    name = hashlib.sha256(f"{VERSION}|{encoder.identity}".encode()).hexdigest()[:20]
    path = workspace.cache / "whitening" / f"word-{name}"
    try:
        return _read(path, vectors)
    except ArtifactError:
        fitted = fit_word_statistics(
            vectors, languages=ordinary_texts(), registers=register_texts(), workspace=workspace
        )
        save_word_statistics(fitted, path, vectors=vectors)
        return fitted


def save_word_statistics(
    statistics: WordStatistics, path: Path, *, vectors: WordVectors, note: str = ""
) -> None:
    """Write fitted statistics for `load_word_statistics`."""
    save_bundle(
        path,
        meta={"encoder": vectors.encoder.name, "dim": vectors.dim, "words": VERSION, "note": note},
        arrays={name: getattr(statistics, name) for name in STATISTICS},
    )


def _read(path: Path, vectors: WordVectors) -> WordStatistics:
    bundle = load_bundle(path)
    try:
        found = WordStatistics(*(np.array(bundle.arrays[name], dtype=np.float32) for name in STATISTICS))
    except KeyError:
        raise ArtifactError(
            f"{path} contains no word statistics; write them with save_word_statistics"
        ) from None
    if found.removed.shape[1] != vectors.dim:
        raise ConfigError(
            f"the statistics in {path} are for {found.removed.shape[1]} dimensions, "
            f"{vectors.encoder.name} has {vectors.dim}"
        )
    return found
