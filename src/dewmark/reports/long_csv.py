"""Every number of an evaluation as CSV, a line per scheme, attack, kind of negatives and nominal rate."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from dewmark.evaluation.results import Cell, Evaluation
from dewmark.stats.metrics import Rate

__all__ = ["long_csv"]

_COLUMNS = (
    *("scheme", "attack", "judged_by", "rate", "texts", "found", "found_low", "found_high"),
    *("tpr", "tpr_half_range", "fpr", "fpr_low", "fpr_high", "shift_p"),
    *("auroc", "auroc_low", "auroc_high", "shift_sd", "words_kept", "tokens"),
)

Line = dict[str, object]


def long_csv(evaluation: Evaluation) -> str:
    """``judged_by`` is a kind of negatives, or ``p-value``; ``fpr`` is of negatives after the same attack."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for cell in evaluation.cells:
        for line in _lines(cell):
            plain = {name: f"{each:.6g}" if isinstance(each, float) else each for name, each in line.items()}
            writer.writerow({name: "" if each is None else each for name, each in plain.items()})
    return stream.getvalue()


def _lines(cell: Cell) -> Iterator[Line]:
    about: Line = {
        "scheme": cell.scheme,
        "attack": cell.attack,
        "texts": cell.texts,
        "shift_sd": cell.shift,
        "words_kept": cell.kept,
        "tokens": cell.tokens,
    }
    for against in cell.against:
        area: Line = {
            "judged_by": against.negatives,
            "auroc": against.auroc.mean,
            "auroc_low": against.interval.low,
            "auroc_high": against.interval.high,
        }
        for at in against.at:
            spread = {"tpr": at.tpr.mean, "tpr_half_range": at.tpr.half_range, "shift_p": at.shift_p}
            real = at.attacked or at.passed
            yield {
                **about,
                **area,
                "rate": at.rate,
                **spread,
                **_rate("found", at.found),
                **_rate("fpr", real),
            }
    for share in cell.shares:
        false = share.unmarked or share.human
        told = _rate("found", share.found) | ({} if false is None else _rate("fpr", false))
        yield {**about, "judged_by": "p-value", "rate": share.rate, **told}


def _rate(name: str, rate: Rate) -> Line:
    return {name: rate.rate, f"{name}_low": rate.low, f"{name}_high": rate.high}
