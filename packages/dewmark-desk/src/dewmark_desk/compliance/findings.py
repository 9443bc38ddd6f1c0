"""From rows to the figures of a dossier: shares with exact intervals, by what a reader asks for.

A text counts as found at a level if its verdict there is "marked": p below the level, and the text long
enough for a verdict. Boundary: rows in, plain JSON values out; `dossier_pages` shows them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from dewmark.errors import InputError
from dewmark_audit.audit import LEVELS, VERDICT_LEVEL, Audit, audit
from dewmark_audit.rates import rate
from dewmark_desk.compliance.measuring import DossierPlan, Measured, Row

_KINDS = {"openings": "continued openings", "chat": "answers to chat requests"}
_TERCILES = ("low", "middle", "high")


def findings(measured: Measured, plan: DossierPlan) -> dict[str, Any]:
    """The measured part of a dossier."""
    return {
        "power_by_length": _by_length(measured, plan),
        "power_by_language": _by_language(measured, plan),
        "power_by_entropy": _by_entropy(measured, plan),
        "false_positives": _false_positives(measured, plan),
        "robustness": _robustness(measured, plan),
        "not_measured": dict(measured.unavailable),
        "quality": _quality(measured),
        "formats": _formats(measured, plan),
    }


def _share(rows: Iterable[Row], level: float, score: Callable[[Row], Row | None]) -> dict[str, Any] | None:
    """The share of texts found at a level, among those that have the score; None if none has it."""
    found = [each for each in map(score, rows) if each is not None]
    if not found:
        return None
    hits = sum(_found(each, level) for each in found)
    share = rate(hits, len(found))
    return {"level": level, "found": hits, "texts": len(found), "low": share.low, "high": share.high}


def _found(score: Row, level: float) -> bool:
    return bool(score["conclusive"]) and score["p_value"] is not None and score["p_value"] < level


def _whole(row: Row) -> Row:
    score: Row = row["scores"][-1]
    return score


def _at(length: int) -> Callable[[Row], Row | None]:
    return lambda row: next((score for score in row["scores"] if score["length"] == length), None)


def _levels(rows: Sequence[Row], plan: DossierPlan, score: Callable[[Row], Row | None]) -> list[Row]:
    shares = (_share(rows, level, score) for level in plan.levels)
    return [share for share in shares if share is not None]


def _by_length(measured: Measured, plan: DossierPlan) -> list[dict[str, Any]]:
    found = []
    for stage, kind in _KINDS.items():
        rows = measured.texts.get(stage, ())
        found += [
            {"texts": kind, "tokens": length, "at": at}
            for length in sorted(plan.lengths)
            if (at := _levels(rows, plan, _at(length)))
        ]
        if rows:
            tokens = sorted(row["tokens"] for row in rows)
            found.append(
                {
                    "texts": kind,
                    "tokens": None,
                    "median_tokens": tokens[len(tokens) // 2],
                    "at": _levels(rows, plan, _whole),
                }
            )
    return found


def _by_language(measured: Measured, plan: DossierPlan) -> list[dict[str, Any]]:
    rows = measured.texts.get("languages", ())
    names = dict.fromkeys(row["group"] for row in rows)
    english = measured.texts["openings"]
    found = [{"language": "en", "at": _levels(english, plan, _whole)}]
    for name in names:
        mine = [row for row in rows if row["group"] == name]
        found.append({"language": name, "at": _levels(mine, plan, _whole)})
    return found


def _by_entropy(measured: Measured, plan: DossierPlan) -> list[dict[str, Any]]:
    """Marked openings in three equal groups by the host's mean entropy along the text."""
    texts = measured.texts["openings"]
    entropy = {(row["id"], row["text_hash"]): row["entropy"] for row in measured.quality}
    places = [(entropy.get((row["id"], row["config_hash"])), row) for row in texts]
    known = [(value, row) for value, row in places if value is not None]
    known.sort(key=lambda pair: pair[0])
    found = []
    for name, part in zip(_TERCILES, np.array_split(np.arange(len(known)), 3), strict=True):
        if len(part):
            some = [known[i] for i in part]
            found.append(
                {
                    "entropy": name,
                    "from_bits": round(some[0][0], 2),
                    "to_bits": round(some[-1][0], 2),
                    "at": _levels([row for _, row in some], plan, _whole),
                }
            )
    return found


def _false_positives(measured: Measured, plan: DossierPlan) -> dict[str, Any]:
    """Alarms by domain, what the audit predicts of this key and of others, and its verdict over all domains.

    Texts too short for a verdict are left out.
    """
    domains: dict[str, list[Row]] = {}
    for row in measured.negatives:
        domains.setdefault(_domain(row), []).append(row)
    table = []
    for domain, rows in domains.items():
        judged = [row for row in rows if _whole(row)["conclusive"]]
        table.append(
            {
                "domain": domain,
                "texts": len(judged),
                "without_verdict": len(rows) - len(judged),
                "at": _levels(judged, plan, _whole),
            }
        )
    known = np.array([_whole(row)["conclusive"] for row in measured.negatives], dtype=bool)
    judged = [row for row in measured.negatives if _whole(row)["conclusive"]]
    try:
        found = audit(
            [_whole(row)["p_value"] for row in judged],
            languages=[row["language"] for row in judged],
            lengths=[row["tokens"] for row in judged],
            kinds=[_domain(row) for row in judged],
            directions=None if measured.directions is None else measured.directions[known],
            p_of_whole=[_whole(row)["p_of_whole"] for row in judged],
        )
        said = {"outcome": found.outcome.value, "sentence": found.sentence, "one_key": _one_key(found)}
    except InputError as error:
        said = {"outcome": "cannot tell", "sentence": str(error), "one_key": []}
    return {"domains": table, **said}


def _one_key(found: Audit) -> list[dict[str, Any]]:
    """By domain: how far its texts go together, this key's rate, and the rates of 98% of keys."""
    rows = []
    for group in found.groups:
        cell = group.cells[LEVELS.index(VERDICT_LEVEL)]
        if group.kind in ("all", "kind") and group.together is not None and cell.prediction is not None:
            known = cell.prediction
            rows.append(
                {
                    "domain": group.group,
                    "texts": cell.texts,
                    "level": cell.level,
                    "r": group.together.r,
                    "r_matched": group.together.matched,
                    "this_key": {"rate": known.rate, "high": known.high},
                    "of_98_percent_of_keys": {"low": known.floor, "high": known.ceiling},
                    "verdict": group.verdict,
                }
            )
    return rows


def _domain(row: Row) -> str:
    """The kind of a text; prose is told apart by language."""
    kind = row["kind"] or "your texts"
    return f"prose, {row['language']}" if kind == "prose" else str(kind)


def _robustness(measured: Measured, plan: DossierPlan) -> list[dict[str, Any]]:
    clean = [{"attack": "none", "at": _levels(measured.texts["openings"], plan, _whole)}]
    attacked = measured.attacked.items()
    return clean + [{"attack": name, "at": _levels(rows, plan, _whole)} for name, rows in attacked]


def _quality(measured: Measured) -> list[dict[str, Any]]:
    """Marked against unmarked continuations of the same openings: means, and the mean paired difference."""
    half = len(measured.texts["openings"])
    pairs = list(zip(measured.quality[:half], measured.quality[half:], strict=True))
    measures: dict[str, Callable[[Row], float | None]] = {
        "log perplexity, nats per token": lambda row: (
            -row["log_likelihood"] / row["judged"] if row["judged"] else None
        ),
        "distinct word pairs": lambda row: row["distinct_2"],
        "distinct word triples": lambda row: row["distinct_3"],
        "repeated runs of four words": lambda row: row["repetition"],
        "entropy, bits per token": lambda row: row["entropy"],
    }
    found = []
    for name, value in measures.items():
        both = [(value(a), value(b)) for a, b in pairs]
        known = np.array([(a, b) for a, b in both if a is not None and b is not None])
        if len(known) < 2:
            continue
        gaps = known[:, 0] - known[:, 1]
        error = float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
        found.append(
            {
                "measure": name,
                "marked": float(known[:, 0].mean()),
                "unmarked": float(known[:, 1].mean()),
                "difference": float(gaps.mean()),
                "standard_error": error,
                "pairs": len(gaps),
            }
        )
    return found


def _formats(measured: Measured, plan: DossierPlan) -> list[dict[str, Any]]:
    rows = measured.texts.get("formats", ())
    found = []
    for name in dict.fromkeys(row["group"] for row in rows):
        mine = [row for row in rows if row["group"] == name]
        found.append(
            {
                "format": name,
                "median_tokens": sorted(row["tokens"] for row in mine)[len(mine) // 2],
                "without_verdict": sum(not _whole(row)["conclusive"] for row in mine),
                "at": _levels(mine, plan, _whole),
            }
        )
    return found
