"""Which configurations are tried: every combination of the values given for each parameter.

The strength of one sampler means nothing to another (λ belongs to the bias, α to Gumbel sampling), so a
combination keeps only its own sampler's.

What one configuration does: continuations of the same prompts with the same seeds, and their measures.

A configuration's texts and numbers under one key are one JSON file, named by a hash of all that decides them,
so a run that was stopped goes on with the configuration it was at. The keys are made for measuring only: they
are the same in every run, so that runs agree, and therefore no secret; no text of yours is marked with them.

From measures to a choice: the strongest configuration whose texts read like unmarked ones, and the noise.

A configuration is within the budget B if the ratio of median perplexities, marked to unmarked, lies in
[1/B, B] (a bias drains the tail and *lowers* perplexity: that is distortion too) and distinct-3 is at most
0.02 from the unmarked texts'. Of these the one with the highest mean z after 30% of the words were deleted is
chosen. Intervals are 95% percentile bootstraps over prompts; a prompt's texts, unmarked and marked, are drawn
together, so that what the prompt does to perplexity cancels.
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
from numpy.typing import NDArray

from dewmark import config, storage
from dewmark.arrays import F64
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.hosts.base import Host
from dewmark.lab.evaluation.quality import distinct
from dewmark.registry import SCHEMES
from dewmark.scheme import BoundScheme
from dewmark.stats.metrics import Interval
from dewmark.types import Generation
from dewmark.version import __version__
from dewmark.watermark import load_scheme
from dewmark.workspace import Progress, silent

__all__ = [
    "DEFAULT_GRIDS",
    "DELETED",
    "DIVERSITY",
    "FOUND_AT",
    "Grid",
    "Measured",
    "Result",
    "Sample",
    "Settings",
    "Tuning",
    "check_budget",
    "choose",
    "curve_of",
    "delete_words",
    "describe",
    "expand",
    "flags",
    "measure",
    "parse_grid",
    "varying",
]

Settings = Mapping[str, object]

Grid = Mapping[str, Sequence[object]]

# Small enough for a few minutes on two cores; wider grids are one option away.
DEFAULT_GRIDS: Mapping[str, tuple[Grid, ...]] = {
    "dew": (
        {"units": ("token",), "sampler": ("bias", "gumbel"), "lambda": (2.0,), "alpha": (0.25, 0.5)},
        {"units": ("word",), "sampler": ("gumbel",), "lambda": (2.0,), "alpha": (0.25, 0.5, 0.75)},
    )
}

_STRENGTHS = {"bias": "lambda", "gumbel": "alpha"}


def parse_grid(options: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """``["k=3,5", "units=word"]`` to the values of each parameter; they stay text."""
    values = {}
    for name, text in config.parse_settings(options).items():
        found = tuple(part.strip() for part in text.split(",") if part.strip())
        if not found:
            raise ConfigError(f"--grid {name} needs at least one value, as in {name}=1,2: got {text!r}")
        values[name] = found
    return values


def expand(given: Grid, *, scheme: str = "dew") -> list[dict[str, object]]:
    """Every configuration of the default grids, each once, with the given values in the place of theirs.

    All are checked against the scheme here, before anything is written.
    """
    known = SCHEMES[scheme]()
    grids = [{**default, **given} for default in DEFAULT_GRIDS.get(scheme, ({},))]
    if not grids[0]:
        raise ConfigError(f"{scheme} has no default grid: say what to try, as in --grid NAME=VALUE,VALUE")
    found: dict[str, dict[str, object]] = {}
    for grid in grids:
        for combination in itertools.product(*grid.values()):
            settings = _own(dict(zip(grid, combination, strict=True)))
            # text becomes the field's type, so that 2 and 2.0 are one configuration
            whole = known.with_settings(settings).to_dict()
            found.setdefault(config.config_hash(whole), {name: whole[name.rstrip("_")] for name in settings})
    if not found:
        raise ConfigError("the grid is empty: give every parameter at least one value")
    unused = [name for name in given if not any(name in settings for settings in found.values())]
    if unused:
        raise ConfigError(
            f"{unused[0]} has no meaning for any sampler of the grid: leave it out, or add its sampler"
        )
    return list(found.values())


def _own(settings: dict[str, object]) -> dict[str, object]:
    """Without the strengths of the samplers that this one is not."""
    own = _STRENGTHS.get(str(settings.get("sampler")))
    others = set() if own is None else set(_STRENGTHS.values()) - {own}
    return {name: value for name, value in settings.items() if name.rstrip("_") not in others}


def varying(configurations: Sequence[Settings]) -> list[dict[str, object]]:
    """Each configuration without what all have in common; the sampler always stays."""
    first = dict(configurations[0].items())
    common = {
        name
        for name, value in first.items()
        if name != "sampler" and all(name in one and one[name] == value for one in configurations)
    }
    return [{name: v for name, v in one.items() if name not in common} for one in configurations]


def describe(settings: Settings) -> str:
    """One line for a table: ``gumbel alpha=0.25 units=word``."""
    named = [_assignment(name, value) for name, value in settings.items() if name != "sampler"]
    return " ".join([str(settings["sampler"]), *named] if "sampler" in settings else named)


def curve_of(settings: Settings) -> tuple[str, str]:
    """The curve a configuration belongs to, and its label there: configurations that differ in strength."""
    strength = _STRENGTHS.get(str(settings.get("sampler")), "")
    if strength not in settings:
        return "", describe(settings)
    others = {name: value for name, value in settings.items() if name != strength}
    return describe(others), _assignment(strength, settings[strength])


def flags(settings: Settings) -> str:
    """The settings as options of any command."""
    return " ".join(f"--set {_assignment(name, value)}" for name, value in settings.items())


def _assignment(name: str, value: object) -> str:
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"


Row = dict[str, Any]  # one text and its measures

DELETED = 0.3  # the share of words that the attack takes out

_FORMAT = 1

_QUALITY, _STRENGTH = ("perplexity", "distinct_3"), ("z", "p_value", "z_deleted")


@dataclass(frozen=True)
class Sample:
    """What is written: every prompt once unmarked and once per key, text i always with seed ``seed + i``."""

    prompts: Sequence[str]
    tokens: int = 120
    keys: int = 1
    seed: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    no_repeat_ngram: int = 4

    def __post_init__(self) -> None:
        if len(self.prompts) < 2:
            raise ConfigError(f"measuring needs at least 2 prompts, got {len(self.prompts)}")
        if self.keys < 1:
            raise ConfigError(f"keys must be at least 1, got {self.keys}")


@dataclass(frozen=True)
class Measured:
    """The measures of each text: all arrays (keys, prompts), the last three without rows if unmarked."""

    settings: Settings
    perplexity: F64
    distinct_3: F64
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
    """The unmarked texts' measures, and those of each configuration; ``out`` keeps them for the next run."""
    if not configurations:
        raise ConfigError("there is no configuration to measure: the grid is empty")
    host.check_prompts(sample.prompts, sample.tokens)
    work = _Work(host, sample, scheme, batch_size, out, progress)
    work.total = len(sample.prompts) * (1 + sample.keys * len(configurations))
    work.tell(0)
    unmarked = work.measured(None)
    return unmarked, [work.measured(settings) for settings in configurations]


def delete_words(text: str, share: float, *, seed: int) -> str:
    """The text without a random share of its words, each taken out by itself; one always stays."""
    words = text.split(" ")
    stays = np.random.default_rng(seed).random(len(words)) >= share
    return " ".join(word for word, kept in zip(words, stays, strict=True) if kept) or text


@dataclass
class _Work:
    host: Host
    sample: Sample
    scheme: str
    batch_size: int
    out: Path | None
    progress: Progress
    done: int = 0
    total: int = 0

    def tell(self, texts: int) -> None:
        """Some more texts are there."""
        self.done += texts
        self.progress("writing and scoring texts", self.done, self.total)

    def measured(self, settings: Settings | None) -> Measured:
        """One configuration's measures, under each key."""
        keys = [None] if settings is None else _keys(self.sample.keys)
        rows = [row for key in keys for row in self._rows(settings or {}, key)]

        def column(name: str) -> F64:
            values = [row[name] for row in rows if name in row]
            return np.array(values, dtype=np.float64).reshape(-1, len(self.sample.prompts))

        measures = {name: column(name) for name in (*_QUALITY, *_STRENGTH)}
        return Measured(settings or {}, **measures)

    def _rows(self, settings: Settings, key: Key | None) -> list[Row]:
        """Texts under one key with their measures, from their file or made now; unmarked without a key."""
        file = None if self.out is None else self.out / "configurations" / f"{self._name(settings, key)}.json"
        rows = None if file is None else _read(file, len(self.sample.prompts))
        if rows is not None:
            self.tell(len(rows))
            return rows
        rows = self._written(settings, key)
        if file is not None:
            content = {"format": _FORMAT, "settings": None if key is None else settings, "rows": rows}
            with storage.atomic_write(file) as stream:
                stream.write((json.dumps(content, indent=1) + "\n").encode())
        return rows

    def _name(self, settings: Settings, key: Key | None) -> str:
        """Hashes all that decides the texts and their numbers."""
        sample = {**dataclasses.asdict(self.sample), "prompts": list(self.sample.prompts), "keys": None}
        parts: list[object] = [_FORMAT, __version__, self.host.info.identity, DELETED, sample]
        if key is not None:
            whole = SCHEMES[self.scheme]().with_settings(dict(settings)).to_dict()
            parts += [self.scheme, whole, key.fingerprint]
        return config.config_hash(*parts)

    def _written(self, settings: Settings, key: Key | None) -> list[Row]:
        sample, bound = self.sample, None
        if key is not None:
            bound = load_scheme(
                self.scheme,
                key=key,
                settings=dict(settings),
                host=self.host.info,
                progress=self.progress,
            )

        def tell(batch: list[Generation]) -> None:
            self.tell(len(batch))

        made = self.host.generate(
            sample.prompts,
            scheme=bound,
            seeds=range(sample.seed, sample.seed + len(sample.prompts)),
            decoding=Decoding(
                max_new_tokens=sample.tokens,
                min_new_tokens=sample.tokens,
                temperature=sample.temperature,
                top_p=sample.top_p,
                no_repeat_ngram=sample.no_repeat_ngram,
            ),
            batch_size=self.batch_size,
            on_batch=tell,
        )
        texts = [each.text for each in made]
        rows: list[Row] = [
            {"text": text, "perplexity": math.exp(-total / max(count, 1)), "distinct_3": distinct(text, 3)}
            for text, (total, count) in zip(
                texts, self.host.log_likelihood(sample.prompts, texts), strict=True
            )
        ]
        if bound is not None:
            deleted = [delete_words(text, DELETED, seed=sample.seed + i) for i, text in enumerate(texts)]
            scores = zip(_scores(bound, texts), _scores(bound, deleted), strict=True)
            for row, ((z, p_value), (z_deleted, _)) in zip(rows, scores, strict=True):
                row |= {"z": z, "p_value": p_value, "z_deleted": z_deleted}
        return rows


def _scores(bound: BoundScheme, texts: Sequence[str]) -> list[tuple[float, float]]:
    """z and p of each text, found without its prompt; a blank text carries no evidence."""
    found = iter(bound.detect_batch([text for text in texts if text.strip()]))
    pairs = ((one.z, one.p_value) for one in found)
    return [next(pairs) if text.strip() else (0.0, 1.0) for text in texts]


def _keys(number: int) -> list[Key]:
    return [Key(hashlib.sha256(f"dewmark tune, key {i}".encode()).digest()) for i in range(number)]


def _read(file: Path, number: int) -> list[Row] | None:
    """The rows that an earlier run left, if they are all there."""
    try:
        rows: list[Row] = json.loads(file.read_text(encoding="utf-8"))["rows"]
        whole = len(rows) == number and all(set(_QUALITY) <= row.keys() for row in rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return rows if whole else None


FOUND_AT = 1e-4  # a text counts as found below this p-value

DIVERSITY = 0.02  # how far distinct-3 may be from the unmarked texts'

_CONFIDENCE = 0.95

_RESAMPLES = 2000


@dataclass(frozen=True)
class Result:
    """One configuration's figures; ``within`` says whether it keeps to the budget.

    ``ratio`` is its median perplexity over the unmarked texts', ``change`` its distinct-3 less theirs.
    """

    settings: Settings
    perplexity: float
    ratio: Interval
    distinct_3: float
    change: Interval
    z: float
    found: float
    z_deleted: float
    within: bool

    @property
    def name(self) -> str:
        """One line for a table."""
        return describe(self.settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "settings": dict(self.settings),
            "perplexity": self.perplexity,
            "ratio": self.ratio.to_dict(),
            "distinct_3": self.distinct_3,
            "change": self.change.to_dict(),
            "z": self.z,
            "found": self.found,
            "z_deleted": self.z_deleted,
            "within": self.within,
        }


@dataclass(frozen=True)
class Tuning:
    """All results in the grid's order, the chosen one (None if none keeps to the budget), and the caveats."""

    budget: float
    texts: int
    perplexity: float
    distinct_3: float
    results: tuple[Result, ...]
    chosen: Result | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "budget": self.budget,
            "texts": self.texts,
            "unmarked": {"perplexity": self.perplexity, "distinct_3": self.distinct_3},
            "results": [result.to_dict() for result in self.results],
            "chosen": None if self.chosen is None else dict(self.chosen.settings),
            "flags": None if self.chosen is None else flags(self.chosen.settings),
            "notes": list(self.notes),
        }


def check_budget(budget: float) -> None:
    """Refuse a budget that allows nothing or is none."""
    if not 1.0 < budget < math.inf:
        raise ConfigError(f"the budget is a ratio of perplexities above 1, such as 1.05, got {budget:g}")


def choose(unmarked: Measured, measured: Sequence[Measured], *, budget: float) -> Tuning:
    """Compare configurations with the unmarked texts of the same prompts and seeds."""
    check_budget(budget)
    prompts = unmarked.perplexity.shape[1]
    draws = np.random.default_rng(0).integers(prompts, size=(_RESAMPLES, prompts))
    results = tuple(_result(one, unmarked, draws, budget) for one in measured)
    admitted = [i for i, result in enumerate(results) if result.within]
    best = max(admitted, key=lambda i: results[i].z_deleted, default=None)
    notes = _notes(results, measured, best, draws, budget)
    return Tuning(
        budget=budget,
        texts=prompts,
        perplexity=float(np.median(unmarked.perplexity)),
        distinct_3=float(unmarked.distinct_3.mean()),
        results=results,
        chosen=None if best is None else results[best],
        notes=tuple(notes),
    )


def _result(one: Measured, unmarked: Measured, draws: NDArray[np.int64], budget: float) -> Result:
    ratio = _interval(_median_ratio, one.perplexity, unmarked.perplexity, draws)
    change = _interval(_mean_difference, one.distinct_3, unmarked.distinct_3, draws)
    return Result(
        settings=one.settings,
        perplexity=float(np.median(one.perplexity)),
        ratio=ratio,
        distinct_3=float(one.distinct_3.mean()),
        change=change,
        z=float(one.z.mean()),
        found=float((one.p_value < FOUND_AT).mean()),
        z_deleted=float(one.z_deleted.mean()),
        within=1.0 / budget <= ratio.value <= budget and abs(change.value) <= DIVERSITY,
    )


def _median_ratio(left: F64, right: F64) -> F64:
    """Of samples (keys, N, prompts): (N,)."""
    ratio: F64 = np.median(left, axis=(0, -1)) / np.median(right, axis=(0, -1))
    return ratio


def _mean_difference(left: F64, right: F64) -> F64:
    """Of samples (keys, N, prompts): (N,)."""
    difference: F64 = left.mean(axis=(0, -1)) - right.mean(axis=(0, -1))
    return difference


def _interval(
    statistic: Callable[[F64, F64], F64], left: F64, right: F64, draws: NDArray[np.int64]
) -> Interval:
    """A paired bootstrap over prompts of measures (keys, prompts).

    ``statistic`` turns N samples of either, (keys, N, prompts), into N numbers.
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
    draws: NDArray[np.int64],
    budget: float,
) -> list[str]:
    """What the texts are too few to tell."""
    if best is None:
        notes = ["no configuration keeps to the budget: try weaker ones (--grid), or a larger budget"]
        return notes + [_left_out(result) for result in results if _may_fit(result, budget)]
    chosen, notes = results[best], []
    ratio = chosen.ratio
    if ratio.low < 1.0 / budget or ratio.high > budget:
        half = math.log(ratio.high / ratio.low) / 2.0
        enough = math.ceil(draws.shape[1] * (half / math.log(budget)) ** 2)  # a width shrinks as 1/√texts
        notes.append(
            f"the choice is within noise: the 95% interval of its perplexity ratio, {ratio.low:.3f} to "
            f"{ratio.high:.3f}, reaches beyond the budget; about {_round_up(enough)} texts would settle it"
        )
    for i, result in enumerate(results):
        if not result.within and _may_fit(result, budget) and result.z_deleted > chosen.z_deleted:
            notes.append(f"{_left_out(result)}, and it is stronger")
        elif result.within and i != best:
            lead = _interval(_mean_difference, measured[best].z_deleted, measured[i].z_deleted, draws)
            if lead.low <= 0.0:
                notes.append(
                    f"its lead over {result.name} is within noise ({lead.low:.2f} to {lead.high:.2f} z)"
                )
    return notes


def _left_out(result: Result) -> str:
    low, high = result.ratio.low, result.ratio.high
    return f"noise may have left out {result.name}: its perplexity ratio lies in {low:.3f} to {high:.3f}"


def _may_fit(result: Result, budget: float) -> bool:
    """Whether the intervals allow that a configuration keeps to the budget."""
    ratio, change = result.ratio, result.change
    fits = ratio.low <= budget and ratio.high >= 1.0 / budget
    return fits and change.low <= DIVERSITY and change.high >= -DIVERSITY


def _round_up(number: int) -> int:
    """To two digits: an estimate from a few texts claims no more."""
    unit = int(10 ** max(len(str(number)) - 2, 0))
    return math.ceil(number / unit) * unit
