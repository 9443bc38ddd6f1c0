"""How columns are headed and figures made of results, the same in every table."""

from __future__ import annotations

from dewmark.evaluation.scores import CLEAN
from dewmark.reports.tables import Column, Figure
from dewmark.stats.metrics import Interval, Rate, Spread

__all__ = ["SHIFTED", "attack_name", "is_cut", "measure_column", "of_interval", "of_rate", "of_spread"]

SHIFTED = 0.01  # a real false-positive rate above the nominal one is flagged below this p-value


def attack_name(attack: str) -> str:
    """How a heading calls an attack."""
    return "unattacked" if attack == CLEAN else attack


def is_cut(attack: str) -> bool:
    """Whether an attack only cuts texts short: those belong on an axis of lengths."""
    return attack.startswith("truncate")


def measure_column(measure: str, rate: float | None = None, *, group: str = "") -> Column:
    """The column of a measure, under the same heading in every table."""
    return {
        "tpr": Column(f"TPR@{100 * (rate or 0.0):g}%", group, shade=True),
        "auroc": Column("AUROC", group, shade=True),
        "perplexity": Column("PPL", group, decimals=2, better="lower"),
        "nps": Column("NPS", group, sign=True),
        "generate": Column("generation (s)", group, better="lower"),
        "detect": Column("detection (s)", group, decimals=4, better="lower"),
    }[measure]


def of_spread(spread: Spread | None, flag: str = "") -> Figure | None:
    """A figure over seeds."""
    if spread is None:
        return None
    return Figure(spread.mean, spread.half_range if len(spread.values) > 1 else None, flag=flag)


def of_rate(rate: Rate | None, flag: str = "") -> Figure | None:
    """A share with its exact interval."""
    return None if rate is None else Figure(rate.rate, low=rate.low, high=rate.high, flag=flag)


def of_interval(interval: Interval | None) -> Figure | None:
    """An estimate with its interval."""
    return None if interval is None else Figure(interval.value, low=interval.low, high=interval.high)
