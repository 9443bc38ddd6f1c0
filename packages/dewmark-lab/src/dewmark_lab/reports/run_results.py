"""The files of a run, read and summarised over seeds: scores, quality, preference, run time, stealing.

A run may lack any of these files, but it must have some result. Reports also take from here how they name
attacks and which negatives they prefer.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dewmark import storage
from dewmark.errors import InputError
from dewmark_audit.intervals import Interval
from dewmark_lab.evaluation.protocol import RATES, evaluate
from dewmark_lab.evaluation.quality import MEASURES, prompt_interval
from dewmark_lab.evaluation.results import CLEAN, Evaluation, OperatingPoint, ResultCell, ScoreRow, scores_in
from dewmark_lab.metrics import Spread, spread

SHIFTED = 0.01
"""A false-positive rate above the nominal one is flagged if its p-value is below this."""

_PREFERRED = ("matched", "human-matched", "clean", "human")


@dataclass(frozen=True, slots=True)
class QualityFigures:
    """Quality of a scheme's texts over seeds: medians of perplexity, means of the other measures.

    ``over_unmarked`` is the log-perplexity minus that of the unmarked text with the same prompt and seed, in
    nats per token, averaged over prompts. ``means`` are by measure, and of ``tokens``; ``paired`` are the
    differences in wording from that text, by measure (`dewmark_lab.evaluation.quality`).
    """

    kind: str
    perplexity: Spread | None
    over_unmarked: Interval | None
    means: Mapping[str, Spread | None]
    paired: Mapping[str, Interval | None]


@dataclass(frozen=True, slots=True)
class RunTime:
    """Seconds per text and peak memory of a scheme; None for phases that were not timed."""

    generate: Spread | None
    detect: Spread | None
    peak_mib: float | None
    devices: tuple[str, ...]


@dataclass(frozen=True)
class RunResults:
    """All results of a run that a report can show."""

    evaluation: Evaluation | None
    scores: Sequence[ScoreRow]
    quality: Mapping[str, QualityFigures] = field(default_factory=dict)
    preference: Mapping[str, Spread] = field(default_factory=dict)
    runtime: Mapping[str, RunTime] = field(default_factory=dict)
    stealing: Mapping[str, Mapping[str, Spread]] = field(default_factory=dict)

    @property
    def schemes(self) -> list[str]:
        """The rows of tables: schemes, and ``none`` if unmarked texts were rated or timed."""
        evaluated = self.evaluation.schemes if self.evaluation else []
        return list(dict.fromkeys([*evaluated, *self.quality, *self.preference, *self.runtime]))


def read_run(folder: Path, *, rates: Sequence[float] = RATES) -> RunResults:
    """Read the results in a run's folder and evaluate its scores at nominal ``rates``."""
    scores = scores_in(path) if (path := folder / "scores.jsonl").is_file() else []
    run = RunResults(
        evaluation=evaluate(scores, rates=rates) if scores else None,
        scores=scores,
        quality=_quality(_rows(folder / "quality.jsonl")),
        preference=_preference(_rows(folder / "preference.jsonl")),
        runtime=_runtime(_rows(folder / "runtime.jsonl")),
        stealing=_stealing(_rows(folder / "stealing.jsonl")),
    )
    if not run.schemes:
        raise InputError(f"no results in {folder}: expected scores.jsonl, quality.jsonl or runtime.jsonl")
    return run


def attack_label(attack: str) -> str:
    """The heading of an attack."""
    return "unattacked" if attack == CLEAN else attack


def is_truncation(attack: str) -> bool:
    """Whether an attack only truncates texts; reports show those against length."""
    return attack.startswith("truncate")


def rewriting_attacks(evaluation: Evaluation) -> list[str]:
    """All attacks but truncations; unattacked texts come first."""
    found = [attack for attack in evaluation.attacks if not is_truncation(attack)]
    return sorted(found, key=lambda attack: attack != CLEAN)


def fewer_texts(evaluation: Evaluation) -> list[str]:
    """A sentence that names the rows with fewer marked texts than the others, or nothing."""
    rows: dict[int, list[str]] = {}
    for scheme in evaluation.schemes:
        if (cell := evaluation.cell(scheme, CLEAN)) is not None:
            rows.setdefault(cell.texts, []).append(scheme)
    most, *fewer = sorted(rows, reverse=True) or [0]
    named = [f"{number} for {', '.join(rows[number])}" for number in fewer]
    return [f"Marked texts per cell, all seeds: {'; '.join([str(most), *named])}."] if fewer else []


def preferred_operating_point(cell: ResultCell, rate: float) -> OperatingPoint | None:
    """The operating point by the matched negatives if there are any, else by the unattacked ones."""
    found = (cell.at(negatives, rate) for negatives in _PREFERRED)
    return next((each for each in found if each is not None), None)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in storage.read_jsonl(path)] if path.is_file() else []


def _by(rows: Sequence[dict[str, Any]], name: str) -> dict[Any, list[dict[str, Any]]]:
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[name], []).append(row)
    return groups


def _over_seeds(
    rows: Sequence[dict[str, Any]], name: str, average: Callable[[list[float]], float]
) -> Spread | None:
    """The spread over seeds of a field's mean or median; missing values are skipped."""
    values = {
        seed: [float(row[name]) for row in mine if row.get(name) is not None]
        for seed, mine in _by(rows, "seed").items()
    }
    averages = [average(each) for _, each in sorted(values.items()) if each]
    return spread(averages) if averages else None


def _quality(rows: Sequence[dict[str, Any]]) -> dict[str, QualityFigures]:
    plain = {(row["seed"], row["id"]): row.get("perplexity") for row in rows if row["kind"] != "marked"}
    return {
        scheme: QualityFigures(
            kind=mine[0]["kind"],
            perplexity=_over_seeds(mine, "perplexity", statistics.median),
            over_unmarked=_over_unmarked(mine, plain) if mine[0]["kind"] == "marked" else None,
            means={name: _over_seeds(mine, name, statistics.fmean) for name in (*MEASURES, "tokens")},
            paired={
                name: prompt_interval([(row["id"], row["paired"][name]) for row in mine if "paired" in row])
                for name in MEASURES
            },
        )
        for scheme, mine in _by(rows, "scheme").items()
    }


def _over_unmarked(
    rows: Sequence[dict[str, Any]], plain: Mapping[tuple[Any, Any], float | None]
) -> Interval | None:
    """The mean difference with its interval over prompts; a prompt's texts under several seeds count once."""
    differences: list[tuple[str, float | None]] = []
    for row in rows:
        mine, other = row.get("perplexity"), plain.get((row["seed"], row["id"]))
        if mine is not None and other is not None:
            differences.append((row["id"], math.log(mine / other)))
    return prompt_interval(differences)


def _preference(rows: Sequence[dict[str, Any]]) -> dict[str, Spread]:
    """Each scheme's net preference score, (wins − losses) / pairs, over seeds."""
    of_scheme = _by(rows, "scheme").items()
    scores = {scheme: _over_seeds(mine, "outcome", statistics.fmean) for scheme, mine in of_scheme}
    return {scheme: score for scheme, score in scores.items() if score is not None}


def _stealing(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Spread]]:
    """Every number of each victim and attack over seeds, keyed by "victim attack"."""
    named = [{**row, "name": f"{row['scheme']} {row['attack']}"} for row in rows]
    found: dict[str, dict[str, Spread]] = {}
    for name, mine in _by(named, "name").items():
        numbers = [key for key, value in mine[0].items() if isinstance(value, int | float)]
        over = {key: _over_seeds(mine, key, statistics.fmean) for key in numbers}
        found[name] = {key: value for key, value in over.items() if value is not None}
    return found


def _runtime(rows: Sequence[dict[str, Any]]) -> dict[str, RunTime]:
    found = {}
    for scheme, mine in _by(rows, "scheme").items():
        phases = _by(mine, "phase")
        seconds = {
            phase: spread([float(row["seconds_per_text"]) for row in each]) for phase, each in phases.items()
        }
        peaks = [float(row["peak_mib"]) for row in mine if row.get("peak_mib") is not None]
        found[scheme] = RunTime(
            generate=seconds.get("generate"),
            detect=seconds.get("detect"),
            peak_mib=max(peaks) if peaks else None,
            devices=tuple(sorted({str(row["device"]) for row in mine if row.get("device")})),
        )
    return found
