"""The figures of an experiment show the measured numbers."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from tests.evaluation.synthetic import scored

from dewmark_lab.evaluation.protocol import evaluate
from dewmark_lab.evaluation.results import CLEAN, MARKED, UNMARKED, ScoreRow
from dewmark_lab.metrics import Spread, threshold_at
from dewmark_lab.reports.plots import at_a_glance, by_length, families, robustness_by_perplexity, roc_curves
from dewmark_lab.reports.run_results import QualityFigures

ATTACKS = {CLEAN: (1.0, 0.0), "delete-0.3": (0.6, 0.0), "translate": (0.4, 1.0)}
CUT = {"truncate-50": (0.5, 0.0), "truncate-100": (0.7, 0.0)}
ROWS = scored(
    {"dew-2.0": 3.0, "dew-2.5": 4.0, "kgw": 3.5},
    {**ATTACKS, **CUT},
    texts=120,
    seeds=2,
    tokens={"truncate-50": 50, "truncate-100": 100},
)
FOUND = evaluate(ROWS)


def of(scheme: str, attack: str, kind: str, seed: int) -> list[float]:
    def same(row: ScoreRow) -> bool:
        return (row.scheme, row.attack, row.kind, row.seed) == (scheme, attack, kind, seed)

    return [row.score for row in ROWS if same(row)]


def lines(figure: Figure, panel: int, style: str) -> list:
    return [line for line in figure.axes[panel].lines if line.get_linestyle() == style]


def test_roc_curves_are_tpr_at_fpr_against_both_nulls() -> None:
    figure = roc_curves(ROWS, FOUND)
    assert [axes.get_title(loc="left") for axes in figure.axes[:3]] == FOUND.schemes
    solid, (*dashed, diagonal) = lines(figure, 0, "-")[:3], lines(figure, 0, "--")
    assert (len(solid), len(dashed)) == (3, 2)  # unattacked texts have only one null
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata())
    fpr = solid[2].get_xdata()
    assert fpr[0] == pytest.approx(1 / 120)
    for drawn, null in ((solid[2], "translate"), (dashed[1], CLEAN)):
        for index in (0, 30, 60):
            expected = np.mean(
                [
                    np.asarray(of("dew-2.0", "translate", MARKED, seed))
                    > threshold_at(of("dew-2.0", null, UNMARKED, seed), fpr=fpr[index])
                    for seed in (0, 1)
                ]
            )
            assert drawn.get_ydata()[index] == pytest.approx(expected)
        assert drawn.get_ydata()[-1] == 1.0


def test_at_a_glance_shows_both_thresholds() -> None:
    figure = at_a_glance(FOUND)
    panel = figure.axes[2]
    assert panel.get_title(loc="left") == "translate"
    drawn = {
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]))
        for line in panel.lines
        if line.get_marker() == "o"
    }
    for y, scheme in enumerate(FOUND.schemes[::-1]):
        cell = FOUND.cell(scheme, "translate")
        assert cell is not None
        for null in ("clean", "matched"):
            at = cell.at(null, 0.01)
            assert at is not None
            assert (at.tpr.mean, float(y)) in drawn


def test_every_attack_is_drawn_or_counted() -> None:
    """Every attack has a panel; ROC curves run out of colours, and the legend says how many are missing."""
    attacks = {CLEAN: (1.0, 0.0), **{f"delete-{r}": (1.0 - r / 10, 0.0) for r in range(1, 8)}}
    rows = scored({"dew": 3.0}, attacks, texts=40, seeds=2)
    found = evaluate(rows)
    names = ["unattacked", *(f"delete-{r}" for r in range(1, 8))]
    drawn = [axes for axes in at_a_glance(found).axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in drawn] == names
    curves = roc_curves(rows, found)
    assert "1 more, not drawn" in [text.get_text() for text in curves.legends[0].get_texts()]
    solid = lines(curves, 0, "-")
    colours = [line.get_color() for line in solid if len(line.get_xdata()) > 2]
    assert len(colours) == len(set(colours)) == 7


def test_truncated_texts_are_drawn_by_length() -> None:
    figure = by_length(FOUND)
    assert figure is not None
    first = figure.axes[0].lines[0]
    assert list(first.get_xdata()) == [50.0, 100.0, 200.0]
    assert list(first.get_ydata()) == sorted(first.get_ydata())
    assert by_length(evaluate([row for row in ROWS if row.attack in ATTACKS])) is None


def judged(kind: str, perplexity: float) -> QualityFigures:
    return QualityFigures(kind, Spread(perplexity, 0.0, (perplexity,)), None, {}, {})


def test_a_line_joins_the_strengths_of_one_scheme() -> None:
    perplexities = {"dew-2.0": 50.0, "dew-2.5": 45.0, "kgw": 40.0}
    quality = {CLEAN: judged(UNMARKED, 60.0)} | {n: judged(MARKED, p) for n, p in perplexities.items()}
    figure = robustness_by_perplexity(FOUND, quality)
    assert figure is not None
    panel = figure.axes[1]
    assert panel.get_title(loc="left") == "translate"
    joined = next(line for line in panel.lines if len(line.get_xdata()) == 2 and line.get_marker() == "o")
    assert list(joined.get_xdata()) == [50.0, 45.0]
    cells = [FOUND.cell(scheme, "translate") for scheme in ("dew-2.0", "dew-2.5")]
    expected = [at.tpr.mean for cell in cells if cell and (at := cell.at("matched", 0.01))]
    assert list(joined.get_ydata()) == pytest.approx(expected)
    assert [text.get_text() for text in panel.texts] == ["2.0", "2.5"]
    assert robustness_by_perplexity(FOUND, {}) is None


def test_families_by_label() -> None:
    labels = ["dew-paper-2.5", "dew-paper-2.0", "dew-paper-2.0-key", "use-m3-10", "use-m3-9", "kgw-self"]
    assert families(labels) == {
        "dew-paper": [("dew-paper-2.0", "2.0"), ("dew-paper-2.5", "2.5")],
        "dew-paper-key": [("dew-paper-2.0-key", "2.0")],
        "use-m3": [("use-m3-9", "9"), ("use-m3-10", "10")],
        "kgw-self": [("kgw-self", "")],
    }
