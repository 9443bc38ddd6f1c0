"""Tuning: the strongest settings of a scheme whose texts still read like the host's unmarked ones.

`expand` turns a grid of values into configurations, `measure` writes and scores texts for each, and `choose`
picks.

A configuration is within the budget B if the ratio of median perplexities, marked to unmarked, lies in [1/B,
B] (a bias removes the tail and *lowers* perplexity, which is distortion too), its share of distinct content
words is at most 0.01 below that of the unmarked texts, and its share of unlisted words is not above theirs
beyond the interval (`dewmark_lab.evaluation.wording`). Of those, the one with the highest mean z after
deleting 30% of the words is chosen. Intervals are 95% percentile bootstraps over prompts, which resample a
prompt's unmarked and marked texts together, so that the prompt's effect on a measure cancels. The *front* are
the configurations that no other beats in strength and variety at once, whatever the budget.

All configurations complete the same prompts with the same seeds. Texts and measures of a configuration under
one key are one JSON file, named by a hash of everything that determines them, so a stopped run resumes at the
configuration it had reached. The keys are for measuring only: they are the same in every run and not secret.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dewmark import config, storage
from dewmark.arrays import F64, I64
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.detector import detect_texts
from dewmark.errors import ConfigError
from dewmark.hosts.base import Host
from dewmark.registry import SCHEMES
from dewmark.stats.metrics import Interval
from dewmark.version import __version__
from dewmark.watermark import load_scheme
from dewmark.workspace import Progress, silent
from dewmark_lab.evaluation.wording import listed_words, wording

Settings = Mapping[str, object]
Grid = Mapping[str, Sequence[object]]
Row = dict[str, Any]  # one text and its measures

DELETED = 0.3  # share of words that the deletion attack removes
VARIETY = 0.01  # how far the share of distinct content words may fall below that of the unmarked texts
FOUND_AT = 1e-4  # a text counts as found below this p-value
DECODING = Decoding(max_new_tokens=120, min_new_tokens=120, no_repeat_ngram=4)

# Takes a few minutes on two cores.
DEFAULT_GRIDS: Mapping[str, tuple[Grid, ...]] = {
    "dew": ({"alpha": (0.5, 0.95), "lambda": (0.0, 2.0)},),
    "dew-open": ({"alpha": (0.5, 0.8)},),
    "dew-paper": (
        {"sampler": ("bias",), "lambda": (2.0,)},
        {"sampler": ("gumbel",), "alpha": (0.25, 0.5)},
    ),
}

_STRENGTHS = {"bias": "lambda", "gumbel": "alpha"}  # what the points of a sampler's curve differ in
_UNUSED = {"bias": {"alpha"}}  # settings without effect; the Gumbel sampler can add a bias, too
_QUALITY, _STRENGTH = ("perplexity", "distinct_content", "unlisted"), ("z", "p_value", "z_deleted")
_FORMAT = 3
_CONFIDENCE = 0.95
_RESAMPLES = 2000


def parse_grid(options: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Parse options such as ``["k=3,5", "alpha=0.5"]``; values stay strings."""
    values = {}
    for name, text in config.parse_settings(options).items():
        found = tuple(part.strip() for part in text.split(",") if part.strip())
        if not found:
            raise ConfigError(f"--grid {name} needs at least one value, as in {name}=1,2: got {text!r}")
        values[name] = found
    return values


def expand(given: Grid, *, scheme: str = "dew") -> list[dict[str, object]]:
    """The distinct configurations of the scheme's default grids, with the given values replacing theirs.

    A configuration keeps only the settings that its sampler uses. All are validated here, before any text is
    written.
    """
    known = SCHEMES[scheme]()
    grids = [_with_given(default, given) for default in DEFAULT_GRIDS.get(scheme, ({},))]
    grids = [grid for grid in grids if grid.get("sampler", (None,))] or [dict(given)]
    if not grids[0]:
        raise ConfigError(f"{scheme} has no default grid: give one with --grid NAME=VALUE,VALUE")
    found: dict[str, dict[str, object]] = {}
    for grid in grids:
        for combination in itertools.product(*grid.values()):
            settings = _without_unused(dict(zip(grid, combination, strict=True)))
            # strings become the field's type, so that 2 and 2.0 are the same configuration
            whole = known.with_settings(settings).to_dict()
            found.setdefault(config.config_hash(whole), {name: whole[name.rstrip("_")] for name in settings})
    if not found:
        raise ConfigError("the grid is empty: give every parameter at least one value")
    unused = [name for name in given if not any(name in settings for settings in found.values())]
    if unused:
        raise ConfigError(f"no sampler of the grid uses {unused[0]}: remove it, or add its sampler")
    return list(found.values())


def _with_given(default: Grid, given: Grid) -> dict[str, Sequence[object]]:
    """A default grid with the given values, for those of the given samplers that it is meant for."""
    grid = {**default, **given}
    if "sampler" in default and "sampler" in given:
        grid["sampler"] = [name for name in given["sampler"] if name in default["sampler"]]
    return grid


def _without_unused(settings: dict[str, object]) -> dict[str, object]:
    """Remove what the sampler makes no use of."""
    unused = _UNUSED.get(str(settings.get("sampler")), set())
    return {name: value for name, value in settings.items() if name not in unused}


def varying(configurations: Sequence[Settings]) -> list[dict[str, object]]:
    """Each configuration without the settings that all share; the sampler always stays."""
    first = dict(configurations[0].items())
    common = {
        name
        for name, value in first.items()
        if name != "sampler" and all(name in one and one[name] == value for one in configurations)
    }
    return [{name: v for name, v in one.items() if name not in common} for one in configurations]


def describe(settings: Settings) -> str:
    """One line for tables: ``gumbel alpha=0.25 k=3``."""
    named = [_assignment(name, value) for name, value in settings.items() if name != "sampler"]
    return " ".join([str(settings["sampler"]), *named] if "sampler" in settings else named)


def curve_of(settings: Settings) -> tuple[str, str]:
    """A configuration's curve in the figure and its label; points of a curve differ in strength only."""
    strength = _STRENGTHS.get(str(settings.get("sampler")), "alpha")
    if strength not in settings:
        return "", describe(settings)
    others = {name: value for name, value in settings.items() if name != strength}
    return describe(others), _assignment(strength, settings[strength])


def flags(settings: Settings) -> str:
    """The settings as command-line options."""
    return " ".join(f"--set {_assignment(name, value)}" for name, value in settings.items())


def _assignment(name: str, value: object) -> str:
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"


@dataclass(frozen=True)
class Sample:
    """The texts to write: each prompt once unmarked and once per key; text i has seed ``seed + i``."""

    prompts: Sequence[str]
    decoding: Decoding = DECODING
    keys: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.prompts) < 2:
            raise ConfigError(f"measuring needs at least 2 prompts, got {len(self.prompts)}")
        if self.keys < 1:
            raise ConfigError(f"keys must be at least 1, got {self.keys}")


@dataclass(frozen=True)
class Measured:
    """The measures of each text as arrays (keys, prompts); the last three have no rows for unmarked texts."""

    settings: Settings
    perplexity: F64
    distinct_content: F64
    unlisted: F64
    z: F64
    p_value: F64
    z_deleted: F64


def measure(
    host: Host,
    configurations: Sequence[Settings],
    sample: Sample,
    *,
    scheme: str = "dew",
    batch_size: int = 8,
    out: Path | None = None,
    progress: Progress = silent,
) -> tuple[Measured, list[Measured]]:
    """The measures of the unmarked texts and of each configuration; with ``out`` a stopped run can resume."""
    if not configurations:
        raise ConfigError("the grid is empty: give at least one configuration")
    host.check_prompts(sample.prompts, sample.decoding.max_new_tokens)
    total = len(sample.prompts) * (1 + sample.keys * len(configurations))
    measuring = _Measuring(host, sample, scheme, batch_size, out, progress, total)
    measuring.advance(0)
    unmarked = measuring.measures(None)
    return unmarked, [measuring.measures(settings) for settings in configurations]


def delete_words(text: str, share: float, *, seed: int) -> str:
    """Delete each word with probability ``share``; a text that would lose all its words stays as it is."""
    words = text.split(" ")
    kept = np.random.default_rng(seed).random(len(words)) >= share
    return " ".join(word for word, keep in zip(words, kept, strict=True) if keep) or text


@dataclass
class _Measuring:
    """Writes, scores and stores the texts of one call of `measure`."""

    host: Host
    sample: Sample
    scheme: str
    batch_size: int
    out: Path | None
    progress: Progress
    total: int
    done: int = 0

    def advance(self, texts: int) -> None:
        """Report progress."""
        self.done += texts
        self.progress("writing and scoring texts", self.done, self.total)

    def measures(self, settings: Settings | None) -> Measured:
        """One configuration's measures under each key, or those of the unmarked texts."""
        keys = [None] if settings is None else _keys(self.sample.keys)
        rows = [row for key in keys for row in self._rows(settings or {}, key)]

        def column(name: str) -> F64:
            values = [row[name] for row in rows if name in row]
            return np.array(values, dtype=np.float64).reshape(-1, len(self.sample.prompts))

        return Measured(settings or {}, **{name: column(name) for name in (*_QUALITY, *_STRENGTH)})

    def _rows(self, settings: Settings, key: Key | None) -> list[Row]:
        """Texts under a key with their measures, from a file or made now; unmarked texts have no key."""
        file = None if self.out is None else self.out / "configurations" / f"{self._name(settings, key)}.json"
        rows = None if file is None else _read(file, len(self.sample.prompts))
        if rows is not None:
            self.advance(len(rows))
            return rows
        rows = self._make_rows(settings, key)
        if file is not None:
            content = {"format": _FORMAT, "settings": None if key is None else settings, "rows": rows}
            with storage.atomic_write(file) as stream:
                stream.write((json.dumps(content, indent=1) + "\n").encode())
        return rows

    def _name(self, settings: Settings, key: Key | None) -> str:
        """A hash of everything that determines the texts and their measures."""
        sample = [list(self.sample.prompts), self.sample.decoding.to_dict(), self.sample.seed]
        parts: list[object] = [_FORMAT, __version__, self.host.info.identity, DELETED, sample]
        if key is not None:
            whole = SCHEMES[self.scheme]().with_settings(dict(settings)).to_dict()
            parts += [self.scheme, whole, key.fingerprint]
        return config.config_hash(*parts)

    def _make_rows(self, settings: Settings, key: Key | None) -> list[Row]:
        sample, bound = self.sample, None
        if key is not None:
            bound = load_scheme(
                self.scheme,
                key=key,
                settings=dict(settings),
                host=self.host.info,
                progress=self.progress,
            )
        generations = self.host.generate(
            sample.prompts,
            scheme=bound,
            seeds=range(sample.seed, sample.seed + len(sample.prompts)),
            decoding=sample.decoding,
            batch_size=self.batch_size,
            on_batch=lambda batch: self.advance(len(batch)),
        )
        texts = [each.text for each in generations]
        rows: list[Row] = []
        likelihoods = self.host.log_likelihood(sample.prompts, texts)
        for text, (total, count) in zip(texts, likelihoods, strict=True):
            worded = wording(text, listed=listed_words())
            rows.append(
                {
                    "text": text,
                    "perplexity": math.exp(-total / max(count, 1)),
                    # a text without such words repeats none, and all of its words are listed
                    "distinct_content": 1.0 if worded.distinct_content is None else worded.distinct_content,
                    "unlisted": worded.unlisted or 0.0,
                }
            )
        if bound is not None:
            deleted = [delete_words(text, DELETED, seed=sample.seed + i) for i, text in enumerate(texts)]
            found, found_deleted = detect_texts(bound, texts), detect_texts(bound, deleted)
            for row, one, other in zip(rows, found, found_deleted, strict=True):
                row |= {"z": one.z, "p_value": one.p_value, "z_deleted": other.z}
        return rows


def _keys(number: int) -> list[Key]:
    return [Key(hashlib.sha256(f"dewmark tune, key {i}".encode()).digest()) for i in range(number)]


def _read(file: Path, number: int) -> list[Row] | None:
    """The rows of an earlier run, if the file is complete."""
    try:
        rows: list[Row] = json.loads(file.read_text(encoding="utf-8"))["rows"]
        complete = len(rows) == number and all(set(_QUALITY) <= row.keys() for row in rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return rows if complete else None


@dataclass(frozen=True)
class Result:
    """A configuration's figures; ``within`` says whether it is within the budget.

    ``ratio`` is its median perplexity divided by that of the unmarked texts; ``change`` and ``unlisted`` are
    the differences in the shares of distinct content words and of unlisted words. ``front`` says whether no
    other configuration beats it in strength and variety at once.
    """

    settings: Settings
    perplexity: float
    ratio: Interval
    distinct_content: float
    change: Interval
    unlisted: Interval
    z: float
    found: float
    z_deleted: float
    within: bool
    front: bool = False

    @property
    def name(self) -> str:
        """One line for tables."""
        return describe(self.settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "settings": dict(self.settings),
            "perplexity": self.perplexity,
            "ratio": self.ratio.to_dict(),
            "distinct_content": self.distinct_content,
            "change": self.change.to_dict(),
            "unlisted": self.unlisted.to_dict(),
            "z": self.z,
            "found": self.found,
            "z_deleted": self.z_deleted,
            "within": self.within,
            "front": self.front,
        }


@dataclass(frozen=True)
class Tuning:
    """All results in the grid's order, the chosen one (None if none is within the budget), and caveats."""

    budget: float
    texts: int
    perplexity: float
    distinct_content: float
    results: tuple[Result, ...]
    chosen: Result | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "budget": self.budget,
            "texts": self.texts,
            "unmarked": {"perplexity": self.perplexity, "distinct_content": self.distinct_content},
            "results": [result.to_dict() for result in self.results],
            "chosen": None if self.chosen is None else dict(self.chosen.settings),
            "flags": None if self.chosen is None else flags(self.chosen.settings),
            "notes": list(self.notes),
        }


def pareto_front(points: Sequence[Sequence[float]]) -> list[int]:
    """The points (larger is better in every coordinate) that no other point beats, by their index.

    A point beats another if it is nowhere worse and somewhere better.
    """
    values = np.asarray(points, dtype=np.float64).reshape(len(points), -1 if points else 0)
    beaten = [bool(((values >= mine).all(axis=1) & (values > mine).any(axis=1)).any()) for mine in values]
    return [i for i, lost in enumerate(beaten) if not lost]


def check_budget(budget: float) -> None:
    """Raise `ConfigError` unless the budget is a finite ratio above 1."""
    if not 1.0 < budget < math.inf:
        raise ConfigError(f"the budget must be a ratio of perplexities above 1, such as 1.05, got {budget:g}")


def choose(unmarked: Measured, measured: Sequence[Measured], *, budget: float) -> Tuning:
    """Compare configurations with the unmarked texts of the same prompts and seeds."""
    check_budget(budget)
    prompts = unmarked.perplexity.shape[1]
    draws = np.random.default_rng(0).integers(prompts, size=(_RESAMPLES, prompts))
    results = tuple(_result(one, unmarked, draws, budget) for one in measured)
    front = set(pareto_front([(result.z_deleted, result.change.value) for result in results]))
    results = tuple(dataclasses.replace(result, front=i in front) for i, result in enumerate(results))
    within = [i for i, result in enumerate(results) if result.within]
    best = max(within, key=lambda i: results[i].z_deleted, default=None)
    notes = _notes(results, measured, best, draws, budget)
    return Tuning(
        budget=budget,
        texts=prompts,
        perplexity=float(np.median(unmarked.perplexity)),
        distinct_content=float(unmarked.distinct_content.mean()),
        results=results,
        chosen=None if best is None else results[best],
        notes=tuple(notes),
    )


def _result(one: Measured, unmarked: Measured, draws: I64, budget: float) -> Result:
    ratio = _interval(_median_ratio, one.perplexity, unmarked.perplexity, draws)
    change = _interval(_mean_difference, one.distinct_content, unmarked.distinct_content, draws)
    unlisted = _interval(_mean_difference, one.unlisted, unmarked.unlisted, draws)
    return Result(
        settings=one.settings,
        perplexity=float(np.median(one.perplexity)),
        ratio=ratio,
        distinct_content=float(one.distinct_content.mean()),
        change=change,
        unlisted=unlisted,
        z=float(one.z.mean()),
        found=float((one.p_value < FOUND_AT).mean()),
        z_deleted=float(one.z_deleted.mean()),
        within=1.0 / budget <= ratio.value <= budget and change.value >= -VARIETY and unlisted.low <= 0.0,
    )


def _median_ratio(left: F64, right: F64) -> F64:
    """(keys, N, prompts) to (N,)."""
    ratio: F64 = np.median(left, axis=(0, -1)) / np.median(right, axis=(0, -1))
    return ratio


def _mean_difference(left: F64, right: F64) -> F64:
    """(keys, N, prompts) to (N,)."""
    difference: F64 = left.mean(axis=(0, -1)) - right.mean(axis=(0, -1))
    return difference


def _interval(statistic: Callable[[F64, F64], F64], left: F64, right: F64, draws: I64) -> Interval:
    """A paired bootstrap over prompts, of two measures (keys, prompts).

    ``statistic`` takes N samples of both, (keys, N, prompts), and returns (N,).
    """
    whole = np.arange(left.shape[1])[None]
    value = float(statistic(left[:, whole], right[:, whole])[0])
    drawn = statistic(left[:, draws], right[:, draws])
    low, high = np.quantile(drawn, [(1.0 - _CONFIDENCE) / 2.0, (1.0 + _CONFIDENCE) / 2.0])
    return Interval(value, float(low), float(high), _CONFIDENCE)


def _notes(
    results: Sequence[Result],
    measured: Sequence[Measured],
    best: int | None,
    draws: I64,
    budget: float,
) -> list[str]:
    """Caveats: where there are too few texts for a clear answer."""
    if best is None:
        notes = ["no configuration is within the budget: try weaker ones (--grid) or a larger budget"]
        return notes + [_excluded(result) for result in results if _may_fit(result, budget)]
    chosen, notes = results[best], []
    ratio = chosen.ratio
    if ratio.low < 1.0 / budget or ratio.high > budget:
        half = math.log(ratio.high / ratio.low) / 2.0
        enough = math.ceil(draws.shape[1] * (half / math.log(budget)) ** 2)  # widths shrink as 1/√texts
        notes.append(
            f"the choice is within noise: the 95% interval of its perplexity ratio, {ratio.low:.3f} to "
            f"{ratio.high:.3f}, exceeds the budget; about {_round_up(enough)} texts would settle it"
        )
    for i, result in enumerate(results):
        if not result.within and _may_fit(result, budget) and result.z_deleted > chosen.z_deleted:
            notes.append(f"{_excluded(result)}, and it is stronger")
        elif result.within and i != best:
            lead = _interval(_mean_difference, measured[best].z_deleted, measured[i].z_deleted, draws)
            if lead.low <= 0.0:
                notes.append(
                    f"its lead over {result.name} is within noise ({lead.low:.2f} to {lead.high:.2f} z)"
                )
    return notes


def _excluded(result: Result) -> str:
    low, high = result.ratio.low, result.ratio.high
    return f"noise may have excluded {result.name}: its perplexity ratio lies in {low:.3f} to {high:.3f}"


def _may_fit(result: Result, budget: float) -> bool:
    """Whether a configuration may be within the budget, given its intervals."""
    ratio, change = result.ratio, result.change
    fits = ratio.low <= budget and ratio.high >= 1.0 / budget
    return fits and change.high >= -VARIETY and result.unlisted.low <= 0.0


def _round_up(number: int) -> int:
    """Round up to two digits, which is all that an estimate from a few texts supports."""
    unit = int(10 ** max(len(str(number)) - 2, 0))
    return math.ceil(number / unit) * unit
