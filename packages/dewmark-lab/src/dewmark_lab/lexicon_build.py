"""Write a lexicon: forms with their frequencies, and their vectors reduced and quantised.

**The vectors.** M(word) is an encoder's unit vector of a word, rounded to float16 and kept on disk, so that
an interrupted run resumes.

**The space.** Word vectors share components that are unrelated to meaning: the language of the text, its kind
(a shop page, a novel, a forum) and the word's frequency. Under a fixed key such a component is a standing
preference that correlates unrelated texts, and it hides that "Brücke" means "bridge". So statistics are
fitted once per encoder on texts in many languages and of many kinds, each with its mean context vector μ_g:

    P        removes the `REMOVED` directions in which the μ_g differ most
    ê_T(w) = normalise(P (M(w) − centre of running words))
    ê_C    = normalise(Σ_j α(w_j) P (M(w_j) − centre of the μ_g)),   over the last k words w_j

With the centre of running words ("the" counts as often as it occurs) the words that compete for a position
have little in common. (The log of experiments explains why nothing is whitened here.)

**The file.** P M(w) is written in the basis of its principal directions, fitted with equal weight per
language and per form of a language, and only the leading coordinates are kept, each as one of 16 levels times
the coordinate's spread. The levels are those that lose least (Lloyd's algorithm over all coordinates).
`extend_lexicon` appends forms to a lexicon in the coordinates that it has, so its rows stay as they are. The
vectors may come from another encoder, through the linear map that fits listed words best.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F16, F32, F64
from dewmark.core.whitening import normalize_rows
from dewmark.encoders.base import Encoder
from dewmark.encoders.contexts import ordinary_texts, register_texts
from dewmark.encoders.lexicon import ARRAYS, LAYOUT, Lexicon
from dewmark.errors import InputError
from dewmark.storage import load_bundle, save_bundle
from dewmark.text.words import VERSION, words
from dewmark.workspace import Progress, silent
from dewmark_lab.word_lists import FormList, word_weight

__all__ = ["WordVectors", "build_lexicon", "extend_lexicon", "load_word_statistics", "reduce_vectors"]

DIM = 128
"""Coordinates per word: with twice as many, translations of a word are no nearer to it."""

REMOVED = 14
"""The number of directions removed from all word vectors."""

_CHUNK = 2048
_DISK_LIMIT = 1 << 30  # bytes
_BUSY_SECONDS = 10.0
_PARAMETERS = 500  # per query; every SQLite allows at least 999
_LEVELS = 16
_SAMPLE = 1_000_000
_ROUNDS = 100
_SKIPPED, _FITTED = 500, 6000  # words of a lexicon, most frequent first, on which a map to it is fitted
_RIDGE = 30.0


# Vectors of words


class BlobCache:
    """Bytes by name in a SQLite file of mode 0600, for what can be computed again.

    Nothing is written beyond ``limit`` bytes. The file is ignored while it is busy, read-only or full, and
    deleted if it is damaged. Processes may share it.
    """

    def __init__(self, path: Path, *, limit: int) -> None:
        self._path = path
        self._limit = limit

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """The entries that exist, by name."""
        found: dict[str, bytes] = {}

        def select(database: sqlite3.Connection) -> None:
            for i in range(0, len(names), _PARAMETERS):
                part = names[i : i + _PARAMETERS]
                marks = ",".join("?" * len(part))
                found.update(database.execute(f"SELECT name, data FROM blobs WHERE name IN ({marks})", part))

        if self._path.exists():
            self._run(select)
        return found

    def write(self, entries: Mapping[str, bytes]) -> None:
        """Add entries; those that exist stay as they are."""

        def insert(database: sqlite3.Connection) -> None:
            database.execute("CREATE TABLE IF NOT EXISTS blobs (name TEXT PRIMARY KEY, data BLOB)")
            database.executemany("INSERT OR IGNORE INTO blobs VALUES (?, ?)", entries.items())

        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
            if self._path.stat().st_size > self._limit:
                return
        except OSError:
            return
        self._run(insert)

    def _run(self, action: Callable[[sqlite3.Connection], None]) -> None:
        try:
            with contextlib.closing(sqlite3.connect(self._path, timeout=_BUSY_SECONDS)) as database, database:
                database.execute("PRAGMA journal_mode=WAL")  # readers do not wait for a writer
                database.execute("PRAGMA synchronous=NORMAL")  # a commit does not wait for the disk
                action(database)
        except sqlite3.OperationalError:
            pass  # busy, read-only, full, or no table yet: compute it again
        except sqlite3.DatabaseError:
            for suffix in ("", "-wal", "-shm"):
                with contextlib.suppress(OSError):
                    self._path.with_name(self._path.name + suffix).unlink()


class WordVectors:
    """M(word), unit rows, cached in ``folder`` (None: nowhere)."""

    def __init__(self, encoder: Encoder, folder: Path | None) -> None:
        self.encoder = encoder
        self.dim = encoder.dim
        name = hashlib.sha256(f"{VERSION}|{encoder.identity}".encode()).hexdigest()[:20]
        self._disk = None if folder is None else BlobCache(folder / f"{name}.sqlite", limit=_DISK_LIMIT)

    def vectors(self, forms: Sequence[str], *, progress: Progress = silent) -> F16:
        """Forms of words to unit rows (N, dim); new ones are encoded."""
        rows = np.empty((len(forms), self.dim), dtype=np.float16)
        for part in _parts(len(forms), _CHUNK):
            progress("encoding words", part.start, len(forms))
            rows[part] = self._find(forms[part])
        progress("encoding words", len(forms), len(forms))
        return rows

    def _find(self, forms: Sequence[str]) -> F16:
        distinct = list(dict.fromkeys(forms))
        stored = self._disk.read(distinct) if self._disk else {}
        known = {
            form: np.frombuffer(row, dtype="<f2").astype(np.float16)
            for form, row in stored.items()
            if len(row) == 2 * self.dim
        }
        new = [form for form in distinct if form not in known]
        if new:
            fresh = normalize_rows(self.encoder.encode(new)).astype(np.float16)
            known.update(zip(new, fresh, strict=True))
            if self._disk:
                self._disk.write(dict(zip(new, (row.astype("<f2").tobytes() for row in fresh), strict=True)))
        return np.stack([known[form] for form in forms])


@dataclass(frozen=True)
class WordStatistics:
    """Centres (d,) of running words, rare words and contexts, and ``removed`` (r, d), orthonormal rows."""

    running_centre: F32
    rare_centre: F32
    context_centre: F32
    removed: F32

    def project(self, x: F16 | F32) -> F64:
        """P x of rows (N, d)."""
        wide, removed = x.astype(np.float64), self.removed.astype(np.float64)
        return wide - (wide @ removed.T) @ removed


def load_word_statistics(vectors: WordVectors, *, progress: Progress = silent) -> WordStatistics:
    """The statistics of an encoder: shipped for the default one, else fitted on the package's texts."""
    name = f"{vectors.encoder.name}-word"
    shipped = Path(str(resources.files("dewmark_lab") / "data" / "whitening" / name))
    if not (shipped / "bundle.json").exists():
        return fit_word_statistics(
            vectors, languages=ordinary_texts(), registers=register_texts(), progress=progress
        )
    arrays = load_bundle(shipped).arrays
    names = ("running_centre", "rare_centre", "context_centre", "removed")
    return WordStatistics(*(np.array(arrays[name], dtype=np.float32) for name in names))


def fit_word_statistics(
    vectors: WordVectors, *, languages: Sequence[str], registers: Sequence[str], progress: Progress = silent
) -> WordStatistics:
    """Fit on texts in many languages and on texts of many kinds in one language; one text per group.

    No key and no mark is involved. Words that occur once in all registers represent rare words.
    """
    groups = [[word.form for word in words(text)] for text in (*languages, *registers)]
    running = [form for group in groups[len(languages) :] for form in group]
    rare = [form for form, count in Counter(running).items() if count == 1]
    if len(groups) <= REMOVED or not rare or not all(groups):
        raise InputError(f"it takes more than {REMOVED} texts with words, got {sum(map(bool, groups))}")
    forms = sorted({form for group in groups for form in group})
    rows = dict(zip(forms, vectors.vectors(forms, progress=progress).astype(np.float32), strict=True))

    def mean(group: Sequence[str]) -> F64:
        return np.average([rows[form] for form in group], axis=0, weights=[*map(word_weight, group)])

    means = np.array([mean(group) for group in groups])
    centre = means[len(languages) :].mean(axis=0)
    removed = np.linalg.svd(means - centre, full_matrices=False)[2][:REMOVED]
    return WordStatistics(
        running_centre=np.mean([rows[form] for form in running], axis=0),
        rare_centre=np.mean([rows[form] for form in rare], axis=0),
        context_centre=centre.astype(np.float32),
        removed=removed.astype(np.float32),
    )


# Reducing and writing them


@dataclass(frozen=True)
class Reduced:
    """P M(w) of N words in its leading principal coordinates.

    ``mean`` (d,), ``basis`` (r, d) with orthonormal rows, ``coordinates`` (N, r) float16, ``spread`` (d,) the
    variance along every principal direction.
    """

    mean: F32
    basis: F32
    coordinates: F16
    spread: F32


def reduce_vectors(vectors: F16, statistics: WordStatistics, *, languages: Sequence[str], r: int) -> Reduced:
    """M(w), unit rows (N, d), to their ``r`` leading coordinates; every language has the same weight."""
    _, group = np.unique(np.asarray(languages), return_inverse=True)
    weight = 1.0 / np.bincount(group)[group]
    weight /= weight.sum()
    dim = vectors.shape[1]
    mean, second = np.zeros(dim), np.zeros((dim, dim))
    for part in _parts(len(vectors)):
        x = statistics.project(vectors[part])
        mean += weight[part] @ x
        second += (x * weight[part, None]).T @ x
    spread, directions = np.linalg.eigh(second - np.outer(mean, mean))
    basis = directions[:, ::-1][:, :r].T
    # a direction has no sign of its own: make the largest entry positive
    largest = np.argmax(np.abs(basis), axis=1)
    basis = basis * np.sign(basis[np.arange(len(basis)), largest])[:, None]
    coordinates = np.empty((len(vectors), len(basis)), dtype=np.float16)
    for part in _parts(len(vectors)):
        coordinates[part] = (statistics.project(vectors[part]) - mean) @ basis.T
    return Reduced(
        mean=mean.astype(np.float32),
        basis=basis.astype(np.float32),
        coordinates=coordinates,
        spread=np.maximum(spread[::-1], 0.0).astype(np.float32),
    )


def _parts(n: int, size: int = 8192) -> Iterator[slice]:
    yield from (slice(i, i + size) for i in range(0, n, size))


def build_lexicon(
    listed: FormList,
    vectors: WordVectors,
    statistics: WordStatistics,
    *,
    out: Path,
    dim: int = DIM,
    note: str = "",
    progress: Progress = silent,
) -> None:
    """Encode the forms (cached word by word, so it resumes), reduce, quantise, and write the lexicon."""
    rows = vectors.vectors(listed.forms, progress=progress)
    reduced = reduce_vectors(rows, statistics, languages=listed.languages, r=min(dim, vectors.dim))
    r = reduced.coordinates.shape[1] // 2 * 2  # two coordinates a byte
    coordinates, basis = reduced.coordinates[:, :r].astype(np.float32), reduced.basis[:r]
    scales = coordinates.std(axis=0) + np.float32(1e-12)
    levels = best_levels(coordinates / scales, _LEVELS)
    arrays: dict[str, NDArray[np.generic]] = {
        "forms": np.frombuffer("\n".join(listed.forms).encode(), dtype=np.uint8),
        "centibels": _centibels(listed.frequency),
        "codes": _codes(coordinates / scales, levels),
        "levels": levels,
        "scales": scales,
        "mean": reduced.mean,
        "basis": basis.astype(np.float16),
    }
    for name in ("running_centre", "rare_centre", "context_centre"):
        centre = statistics.project(getattr(statistics, name)[None]) - reduced.mean
        arrays[name] = (centre @ basis.T.astype(np.float64))[0].astype(np.float32)
    kept = float(reduced.spread[:r].sum() / reduced.spread.sum())
    meta = {
        "encoder": vectors.encoder.name,
        "encoder_identity": vectors.encoder.identity,
        "energy_kept": round(kept, 4),
        "languages": {name: listed.languages.count(name) for name in sorted(set(listed.languages))},
        "layout": LAYOUT,
        "note": note,
        "words": VERSION,
    }
    save_bundle(out, meta=meta, arrays={name: arrays[name] for name in ARRAYS})


def extend_lexicon(
    source: Path,
    listed: FormList,
    vectors: WordVectors,
    statistics: WordStatistics,
    *,
    out: Path,
    progress: Progress = silent,
) -> None:
    """Write the lexicon in ``source`` with those of the forms that it does not list behind its own."""
    bundle = load_bundle(source)
    lexicon, arrays = Lexicon(bundle, ""), bundle.arrays
    fresh = np.flatnonzero(lexicon.listed_rows(listed.forms) == 0).tolist()
    forms, languages = [listed.forms[i] for i in fresh], [listed.languages[i] for i in fresh]
    rows = vectors.vectors(forms, progress=progress)
    if vectors.encoder.identity == bundle.meta["encoder_identity"]:
        basis = np.array(arrays["basis"], dtype=np.float64)
        reduced = (statistics.project(rows) - arrays["mean"]) @ basis.T
    else:
        reduced = _map_to(lexicon, vectors)(rows.astype(np.float64))
    levels, scales = np.array(arrays["levels"]), np.array(arrays["scales"])
    joined: dict[str, NDArray[np.generic]] = dict(arrays)
    joined["forms"] = np.frombuffer("\n".join([*lexicon.forms, *forms]).encode(), dtype=np.uint8)
    joined["centibels"] = np.concatenate([arrays["centibels"], _centibels(listed.frequency[fresh])])
    joined["codes"] = np.concatenate([arrays["codes"], _codes(reduced / scales, levels)])
    counts = Counter(bundle.meta["languages"]) + Counter(languages)
    meta = {**bundle.meta, "languages": dict(sorted(counts.items())), "words": VERSION}
    save_bundle(out, meta=meta, arrays={name: joined[name] for name in ARRAYS})


def _centibels(frequency: F64) -> NDArray[np.int16]:
    return np.round(100 * np.log10(frequency)).astype(np.int16)


def _codes(scaled: F32 | F64, levels: F32) -> NDArray[np.uint8]:
    """The nearest levels of scaled coordinates (N, r), two of them in each byte, (N, r / 2)."""
    codes = np.searchsorted((levels[1:] + levels[:-1]) / 2, scaled).astype(np.uint8)
    return np.asarray(codes[:, 0::2] | codes[:, 1::2] << 4, dtype=np.uint8)


def _map_to(lexicon: Lexicon, vectors: WordVectors) -> Callable[[F64], F64]:
    """From an encoder's vectors to a lexicon's coordinates, by ridge regression over listed words."""
    first = min(_SKIPPED, len(lexicon) // 10)
    some = np.arange(first, min(first + _FITTED, len(lexicon)))
    x = vectors.vectors([lexicon.forms[i] for i in some.tolist()]).astype(np.float64)
    y = lexicon.coordinates(some + 1).astype(np.float64)
    x_mean, y_mean = x.mean(axis=0), y.mean(axis=0)
    x = x - x_mean
    ridge = _RIDGE * np.mean(x**2) * np.eye(x.shape[1])
    A = np.linalg.solve(x.T @ x + ridge, x.T @ (y - y_mean))
    return lambda new: np.asarray((new - x_mean) @ A + y_mean)


def best_levels(values: F32, n: int) -> F32:
    """The n levels with the least mean squared error, by Lloyd's algorithm on a sample of the values."""
    flat = values.reshape(-1)
    sample = np.sort(flat[:: max(1, len(flat) // _SAMPLE)].astype(np.float64))
    sums = np.concatenate([[0.0], np.cumsum(sample)])
    levels: F64 = np.quantile(sample, (np.arange(n) + 0.5) / n)
    for _ in range(_ROUNDS):
        edges = np.searchsorted(sample, (levels[1:] + levels[:-1]) / 2)
        edges = np.concatenate([[0], edges, [len(sample)]])
        counts = np.diff(edges)
        levels = np.where(counts > 0, np.diff(sums[edges]) / np.maximum(counts, 1), levels)
    return levels.astype(np.float32)
