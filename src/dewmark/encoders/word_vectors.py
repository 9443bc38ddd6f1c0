"""Vectors of words: each word is encoded once ever, and remembered in memory and on disk.

On disk it is one SQLite file per encoder, shared by all processes; a kill loses at most the last words. Rows
are rounded to float16 before anything is derived from them, so that whoever marks and whoever detects start
from the same numbers. The file holds words of the texts that were scored, alone and unordered, and is
readable by its owner only. Where the disk does not serve (full, read-only, damaged), memory does.

Boundary: M(word) and nothing else; what words mean as tokens and contexts is in `word_space`.

Words as the two sides of DEW: unit rows ê_T of words, and ê_C of the words before them.

Word vectors share components that have nothing to do with what a text says: its language, its kind (a shop's
page, a novel, a forum) and how frequent a word is. Under one key such a component is a standing preference
that correlates unrelated texts, and it hides that "Brücke" means "bridge". So, fitted once per encoder on
texts in many languages and of many kinds, each with its mean context vector μ_g:

    P        removes the `REMOVED` directions in which the μ_g differ most
    ê_T(w) = normalise(P (M(w) − centre of running words, or of rare ones))
    ê_C    = normalise(Σ_j α(w_j) P (M(w_j) − centre of the μ_g)),   over the last k words w_j
    α(w)   = a / (a + p(w)),   p(w) the frequency of w: "the", "und" and "の" say little

With the centre of running words ("the" counts as often as it occurs) the words that compete for a place have
little in common, which makes the mark stronger. With the centre of rare words a rewrite keeps a larger share
of a weaker mark. (docs/results/beyond.md has both.)

p(w) comes from a short list of frequent words per language, ordered by frequency, by Zipf's law; a word that
is in no list has weight 1. (The log of experiments says why nothing is whitened here.)

For detection: `segmentation.words` cuts a text, `windows_before` gives each word's context, `WordTokens` and
`WordContexts` give the rows. For marking: `streams.TokenStream` says per candidate which word it makes
and which words stand before it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sqlite3
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
from dewmark.storage import load_bundle, save_bundle
from dewmark.text.words import VERSION, words
from dewmark.workspace import Progress, Workspace, silent

__all__ = [
    "REMOVED",
    "STATISTICS",
    "Centre",
    "RowMemo",
    "WordContexts",
    "WordStatistics",
    "WordTokens",
    "WordVectors",
    "fit_word_statistics",
    "load_word_statistics",
    "register_texts",
    "save_word_statistics",
    "windows_before",
    "word_weight",
]


_MEMORY_LIMIT = 300_000  # words: 300 MB at 512 dimensions

_DISK_LIMIT = 1 << 30  # bytes

_CHUNK = 2048

_BUSY_SECONDS = 10.0

_PARAMETERS = 500  # every SQLite takes at least 999 in one query


class RowMemo:
    """Rows by word, each computed once; kept as float16, forgotten all together when they are too many.

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
        """The rows of words (N, dim); all that are new are computed in one call."""
        with self._lock:
            self.add(words)
            picked = np.fromiter((self._index[word] for word in words), dtype=np.int64, count=len(words))
            return self._rows[picked].astype(np.float32)

    def add(self, words: Collection[str]) -> None:
        """Compute and remember those of the words that are new."""
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
    """M(word), unit rows: encoded, or as they were encoded before. ``folder`` None keeps nothing on disk."""

    def __init__(self, encoder: Encoder, folder: Path | None) -> None:
        self.encoder = encoder
        self.dim = encoder.dim
        name = hashlib.sha256(f"{VERSION}|{encoder.identity}".encode()).hexdigest()[:20]
        self._disk = None if folder is None else _Disk(folder / f"{name}.sqlite", encoder.dim)
        self._memo = RowMemo(self._find, encoder.dim)

    def vectors(self, words: Sequence[str]) -> F32:
        """Words, in the form that `segmentation` gives them, to unit rows (N, dim)."""
        return self._memo.rows(words)

    def load(self) -> None:
        """Load the encoder now, for who cannot wait for it at the first new word."""
        self.encoder.encode([""])

    def prepare(self, words: Collection[str], *, progress: Progress = silent) -> None:
        """Encode a whole vocabulary ahead of its use; what is known already costs a look-up."""
        distinct = list(dict.fromkeys(words))
        for i in range(0, len(distinct), _CHUNK):
            progress("encoding words", i, len(distinct))
            self._memo.add(distinct[i : i + _CHUNK])
        progress("encoding words", len(distinct), len(distinct))

    def _find(self, words: list[str]) -> F16:
        known = self._disk.read(words) if self._disk else {}
        new = [word for word in words if word not in known]
        if new:
            rows = [self.encoder.encode(new[i : i + _CHUNK]) for i in range(0, len(new), _CHUNK)]
            fresh = normalize_rows(np.concatenate(rows)).astype(np.float16)
            known.update(zip(new, fresh, strict=True))
            if self._disk:
                self._disk.write(new, fresh)
        return np.stack([known[word] for word in words])


class _Disk:
    """Rows by word in a SQLite file, done without if it is busy or not writable, and deleted if broken."""

    def __init__(self, path: Path, dim: int) -> None:
        self._path = path
        self._bytes = 2 * dim

    def read(self, words: Sequence[str]) -> dict[str, F16]:
        found: dict[str, F16] = {}

        def select(database: sqlite3.Connection) -> None:
            for i in range(0, len(words), _PARAMETERS):
                part = words[i : i + _PARAMETERS]
                marks = ",".join("?" * len(part))
                for word, row in database.execute(
                    f"SELECT word, row FROM words WHERE word IN ({marks})", part
                ):
                    if len(row) == self._bytes:
                        found[word] = np.frombuffer(row, dtype="<f2").astype(np.float16)

        if self._path.exists():
            self._run(select)
        return found

    def write(self, words: Sequence[str], rows: F16) -> None:
        blobs = [row.astype("<f2").tobytes() for row in rows]

        def insert(database: sqlite3.Connection) -> None:
            database.execute("CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, row BLOB)")
            database.executemany("INSERT OR IGNORE INTO words VALUES (?, ?)", zip(words, blobs, strict=True))

        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
            if self._path.stat().st_size > _DISK_LIMIT:
                return
        except OSError:
            return
        self._run(insert)

    def _run(self, action: Callable[[sqlite3.Connection], None]) -> None:
        try:
            with contextlib.closing(sqlite3.connect(self._path, timeout=_BUSY_SECONDS)) as database, database:
                database.execute("PRAGMA journal_mode=WAL")  # readers need not wait for a writer
                database.execute("PRAGMA synchronous=NORMAL")  # a commit does not wait for the disk
                action(database)
        except sqlite3.OperationalError:
            pass  # busy, read-only, full, or no table yet: the words are encoded again
        except sqlite3.DatabaseError:
            for suffix in ("", "-wal", "-shm"):
                with contextlib.suppress(OSError):
                    self._path.with_name(self._path.name + suffix).unlink()


Window = tuple[str, ...]

Centre = Literal["running", "rare"]

STATISTICS = ("running_centre", "rare_centre", "context_centre", "removed")

REMOVED = 14

"""How many directions are taken out of all word vectors."""

_SIF = 3e-4  # a: from this frequency on a word counts less than half

_ZIPF = 0.1  # the word of rank r has frequency 0.1 / (r + 1)


@dataclass(frozen=True)
class WordStatistics:
    """Centres (d,) of running words, rare words and contexts; ``removed`` (r, d), orthonormal rows."""

    running_centre: F32
    rare_centre: F32
    context_centre: F32
    removed: F32

    def tokens(self, vectors: F32, *, centre: Centre = "running") -> F32:
        """M(w), rows (N, d), to ê_T, unit rows (N, d)."""
        chosen = self.running_centre if centre == "running" else self.rare_centre
        return normalize_rows(self._project(vectors - chosen))

    def contexts(self, vectors: F32) -> F32:
        """M(w), rows (N, d), to what is summed up in a context (N, d)."""
        return self._project(vectors - self.context_centre)

    def _project(self, x: F32) -> F32:
        # in float64: the last bit of a product depends on how many rows it has, and rounding to float16 after
        # it would make a word's row depend on the words that turned up with it
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
        """Words to rows (N, dim) of unit length (to float16's rounding)."""
        return self._memo.rows(words)


class WordContexts:
    """ê_C of windows: the words before a word, weighted by how much they say."""

    def __init__(self, vectors: WordVectors, statistics: WordStatistics) -> None:
        self.dim = vectors.dim
        self._memo = RowMemo(lambda new: statistics.contexts(vectors.vectors(new)), vectors.dim)

    def vectors(self, windows: Sequence[Window]) -> F32:
        """Windows of any length to unit rows (N, dim); an empty window gives a zero row."""
        return self.summed(windows).vectors

    def summed(self, windows: Sequence[Window]) -> SummedContexts:
        """The same contexts as sums of weighted vectors, one for each distinct word."""
        found: dict[str, int] = {}
        lengths = np.fromiter(map(len, windows), dtype=np.int64, count=len(windows))
        index = np.full((len(windows), int(lengths.max(initial=0))), -1, dtype=np.int64)
        index[np.arange(index.shape[1]) < lengths[:, None]] = [
            found.setdefault(word, len(found)) for window in windows for word in window
        ]
        weights = np.array([word_weight(word) for word in found], dtype=np.float32)
        return SummedContexts(self._memo.rows(list(found)) * weights[:, None], index)


def windows_before(forms: Sequence[str], *, k: int, before: Sequence[str] = ()) -> list[Window]:
    """For each word of a text the k words before it, fewer at the start; ``before``: the prompt's words."""
    known = (*before, *forms)
    return [known[max(i - k, 0) : i] for i in range(len(before), len(known))]


def word_weight(form: str) -> float:
    """α(w) = a / (a + p(w)), in (0, 1]."""
    return _SIF / (_SIF + _frequencies().get(form, 0.0))


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
    """Fit on texts in many languages and on texts of many kinds (in one language); one text per group.

    ``languages`` and ``registers`` are by default `contexts.ordinary_texts` and `register_texts`. No key and
    no mark is involved. Words that occur once in all registers stand for rare words.
    """
    groups = [[word.form for word in words(text)] for text in (*languages, *registers)]
    kinds = groups[len(languages) :]
    counts = Counter(form for group in kinds for form in group)
    rare = [form for form, count in counts.items() if count == 1]
    if len(groups) <= REMOVED or not rare or not all(groups):
        raise InputError(
            f"word statistics need more than {REMOVED} texts that hold words, got {sum(map(bool, groups))}"
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
    """The package's own English texts by kind: registers of the web, and its openings by genre."""
    data = resources.files("dewmark") / "data"
    files = sorted((data / "registers").iterdir(), key=lambda file: file.name)
    texts = [file.read_text(encoding="utf-8") for file in files if file.name.endswith(".txt")]
    genres: dict[str, list[str]] = defaultdict(list)
    for line in (data / "openings.jsonl").read_text(encoding="utf-8").splitlines():
        opening = json.loads(line)
        genres[opening["genre"]].append(opening["prompt"])
    return texts + ["\n".join(genres[genre]) for genre in sorted(genres)]


def load_word_statistics(source: str, *, vectors: WordVectors, workspace: Workspace) -> WordStatistics:
    """Statistics from a folder, or the default for the encoder.

    The default ships with the package for the default encoder. For any other it is fitted once on the
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
    """Write fitted statistics where `load_word_statistics` finds them."""
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
        raise ArtifactError(f"{path} holds no word statistics; fit them with: dewmark models fit") from None
    if found.removed.shape[1] != vectors.dim:
        raise ConfigError(
            f"the statistics in {path} are for {found.removed.shape[1]} dimensions, "
            f"{vectors.encoder.name} has {vectors.dim}"
        )
    return found
