"""Write a lexicon: forms with their frequencies, and their vectors reduced and quantised.

P M(w), see `dewmark.encoders.word_vectors`, is written in the basis of its principal
directions, fitted with equal weight per language and per form of a language, and only the leading
coordinates are kept, each as one of 16 levels times the coordinate's spread. The levels are those that lose
least (Lloyd's algorithm over all coordinates).

`extend_lexicon` appends forms to a lexicon in the coordinates that it has, so its rows stay as they are. The
vectors may come from another encoder, through the linear map that fits listed words best.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F16, F32, F64
from dewmark.encoders.base import Encoder
from dewmark.encoders.lexicon import ARRAYS, LAYOUT, Lexicon
from dewmark.encoders.word_vectors import WordStatistics, WordVectors
from dewmark.storage import load_bundle, save_bundle
from dewmark.text.words import VERSION
from dewmark.workspace import Progress, silent

__all__ = ["FormList", "build_lexicon", "extend_lexicon", "reduce_vectors"]

DIM = 128
"""Coordinates per word: with twice as many, translations of a word are no nearer to it."""

_LEVELS = 16
_SAMPLE = 1_000_000
_ROUNDS = 100
_SKIPPED, _FITTED = 500, 6000  # words of a lexicon, most frequent first, on which a map to it is fitted
_RIDGE = 30.0


@dataclass(frozen=True)
class FormList:
    """N forms with their frequency p (N,), most frequent first, and the language of each."""

    forms: tuple[str, ...]
    frequency: F64
    languages: tuple[str, ...]


@dataclass(frozen=True)
class Reduced:
    """P M(w) of N words in its leading principal coordinates.

    ``mean`` (d,), ``basis`` (r, d) with orthonormal rows, ``coordinates`` (N, r) float16, ``energy`` (N,) the
    squared length of each centred row before the reduction, ``spread`` (d,) the variance along every
    principal direction.
    """

    mean: F32
    basis: F32
    coordinates: F16
    energy: F32
    spread: F32


def reduce_vectors(vectors: F16, statistics: WordStatistics, *, languages: Sequence[str], r: int) -> Reduced:
    """M(w), unit rows (N, d), to their ``r`` leading coordinates; every language has the same weight."""
    _, group = np.unique(np.asarray(languages), return_inverse=True)
    weight = 1.0 / np.bincount(group)[group]
    weight /= weight.sum()
    project = functools.partial(_projected, statistics=statistics)
    dim = vectors.shape[1]
    mean, second = np.zeros(dim), np.zeros((dim, dim))
    for part in _parts(len(vectors)):
        x = project(vectors[part])
        mean += weight[part] @ x
        second += (x * weight[part, None]).T @ x
    spread, directions = np.linalg.eigh(second - np.outer(mean, mean))
    basis = directions[:, ::-1][:, :r].T
    # a direction has no sign of its own: make the largest entry positive
    largest = np.argmax(np.abs(basis), axis=1)
    basis = basis * np.sign(basis[np.arange(len(basis)), largest])[:, None]
    coordinates = np.empty((len(vectors), len(basis)), dtype=np.float16)
    energy = np.empty(len(vectors), dtype=np.float32)
    for part in _parts(len(vectors)):
        x = project(vectors[part]) - mean
        coordinates[part] = x @ basis.T
        energy[part] = (x * x).sum(axis=1)
    return Reduced(
        mean=mean.astype(np.float32),
        basis=basis.astype(np.float32),
        coordinates=coordinates,
        energy=energy,
        spread=np.maximum(spread[::-1], 0.0).astype(np.float32),
    )


def _projected(vectors: F16, statistics: WordStatistics) -> F64:
    x = vectors.astype(np.float64)
    removed = statistics.removed.astype(np.float64)
    return x - (x @ removed.T) @ removed


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
    rows = np.empty((len(listed.forms), vectors.dim), dtype=np.float16)
    for part in _parts(len(rows), 2048):
        progress("encoding words", part.start, len(rows))
        rows[part] = vectors.vectors(listed.forms[part])
    progress("encoding words", len(rows), len(rows))
    reduced = reduce_vectors(rows, statistics, languages=listed.languages, r=min(dim, vectors.dim))
    save_lexicon(out, listed, reduced, statistics, encoder=vectors.encoder, note=note)


def save_lexicon(
    out: Path,
    listed: FormList,
    reduced: Reduced,
    statistics: WordStatistics,
    *,
    encoder: Encoder,
    note: str = "",
) -> None:
    """Quantise reduced vectors and write the lexicon for `dewmark.encoders.lexicon.load_lexicon`."""
    r = reduced.coordinates.shape[1] // 2 * 2  # two coordinates a byte
    coordinates, basis = reduced.coordinates[:, :r].astype(np.float32), reduced.basis[:r]
    scales = coordinates.std(axis=0) + np.float32(1e-12)
    levels = best_levels(coordinates / scales, _LEVELS)
    codes = np.searchsorted((levels[1:] + levels[:-1]) / 2, coordinates / scales).astype(np.uint8)
    arrays: dict[str, NDArray[np.generic]] = {
        "forms": np.frombuffer("\n".join(listed.forms).encode(), dtype=np.uint8),
        "centibels": np.round(100 * np.log10(listed.frequency)).astype(np.int16),
        "codes": codes[:, 0::2] | codes[:, 1::2] << 4,
        "levels": levels,
        "scales": scales,
        "mean": reduced.mean,
        "basis": basis.astype(np.float16),
    }
    for name in ("running_centre", "rare_centre", "context_centre"):
        centre = _projected(getattr(statistics, name)[None], statistics) - reduced.mean
        arrays[name] = (centre @ basis.T.astype(np.float64))[0].astype(np.float32)
    kept = float(reduced.spread[:r].sum() / reduced.spread.sum())
    meta = {
        "encoder": encoder.name,
        "encoder_identity": encoder.identity,
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
    vectors.prepare(forms, progress=progress)
    rows = vectors.vectors(forms).astype(np.float16)
    if vectors.encoder.identity == bundle.meta["encoder_identity"]:
        basis = np.array(arrays["basis"], dtype=np.float64)
        reduced = (_projected(rows, statistics) - arrays["mean"]) @ basis.T
    else:
        reduced = _map_to(lexicon, vectors)(rows.astype(np.float64))
    levels, scales = np.array(arrays["levels"]), np.array(arrays["scales"])
    codes = np.searchsorted((levels[1:] + levels[:-1]) / 2, reduced / scales).astype(np.uint8)
    joined: dict[str, NDArray[np.generic]] = dict(arrays)
    joined["forms"] = np.frombuffer("\n".join([*lexicon.forms, *forms]).encode(), dtype=np.uint8)
    centibels = np.round(100 * np.log10(listed.frequency[fresh])).astype(np.int16)
    joined["centibels"] = np.concatenate([arrays["centibels"], centibels])
    joined["codes"] = np.concatenate([arrays["codes"], codes[:, 0::2] | codes[:, 1::2] << 4])
    counts = Counter(bundle.meta["languages"]) + Counter(languages)
    meta = {**bundle.meta, "languages": dict(sorted(counts.items())), "words": VERSION}
    save_bundle(out, meta=meta, arrays={name: joined[name] for name in ARRAYS})


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
