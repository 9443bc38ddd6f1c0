"""The protocol: rows of scores, thresholds from other seeds, negatives after the same attack."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from scipy import stats
from tests.evaluation.synthetic import UNCHANGED, scored

from dewmark.errors import ConfigError, InputError
from dewmark_lab.evaluation.protocol import evaluate
from dewmark_lab.evaluation.results import CLEAN, HUMAN, MARKED, UNMARKED, ScoreRow, scores_in, write_scores

ATTACKS = {CLEAN: (1.0, 0.0), "delete": (0.6, 0.0), "translate": (0.0, 1.3)}


def row(kind: str, seed: int, score: float, name: str, attack: str = CLEAN) -> ScoreRow:
    return ScoreRow("s", attack, seed, kind, name, score, None, 100)


def hand_made() -> list[ScoreRow]:
    """Two seeds with four negatives each: at 25% one of the other seed's four exceeds the threshold."""
    negatives = {0: [1, 2, 3, 4], 1: [5, 6, 7, 8]}
    positives = {0: [6.5, 7.5, 9.0, 0.0], 1: [3.5, 2.5, 9.0, 9.5]}
    return [
        row(kind, seed, score, str(i))
        for kind, scores in ((UNMARKED, negatives), (MARKED, positives))
        for seed, values in scores.items()
        for i, score in enumerate(values)
    ]


def test_thresholds_come_from_the_other_seeds() -> None:
    (cell,) = evaluate(hand_made(), rates=(0.25,)).cells
    at = cell.at("clean", 0.25)
    assert at is not None
    assert at.thresholds == (7.0, 3.0)  # seed 0 uses seed 1's negatives and vice versa
    assert at.tpr.values == (0.5, 0.75)
    assert (at.tpr.mean, at.tpr.half_range) == (0.625, 0.125)
    assert at.fpr.values == (0.0, 1.0)
    assert (at.found.hits, at.found.trials, at.passed.hits, at.passed.trials) == (5, 8, 4, 8)
    assert not at.few


def test_auroc_compares_texts_of_the_same_seed() -> None:
    (cell,) = evaluate(hand_made(), rates=(0.25,)).cells
    clean = cell.comparison("clean")
    assert clean is not None
    assert clean.auroc.values == (12 / 16, 8 / 16)  # pairs of the same seed only
    assert clean.interval.low < clean.auroc.mean < clean.interval.high


def test_a_shift_of_all_scores_is_not_robustness() -> None:
    """The mark is gone, but the attack moves all scores by s = 1.3: P(N(s, 1) > 2.326) = 0.152."""
    cell = evaluate(scored({"s": 4.0}, ATTACKS, texts=500)).cell("s", "translate")
    assert cell is not None
    clean, matched = cell.at("clean", 0.01), cell.at("matched", 0.01)
    assert clean is not None
    assert matched is not None
    expected = stats.norm.sf(stats.norm.ppf(0.99) - 1.3)
    # the threshold is an order statistic of 1000: its density is φ(2.326), so its SD is √(.01·.99/1000)/φ
    slope = stats.norm.pdf(stats.norm.ppf(0.99) - 1.3)
    threshold = math.sqrt(0.01 * 0.99 / 1000) / stats.norm.pdf(stats.norm.ppf(0.99))
    margin = 4 * math.hypot(math.sqrt(expected * (1 - expected) / 1500), slope * threshold)
    assert clean.tpr.mean == pytest.approx(expected, abs=margin)  # 15 times the nominal rate
    assert clean.attacked is not None
    assert clean.attacked.rate == pytest.approx(expected, abs=margin)  # and so it is for unmarked texts
    assert clean.shift_p is not None
    assert clean.shift_p < 1e-6
    # the same threshold from attacked texts: its rate is 1%, up to binomial noise and the threshold's own
    noise = 4 * math.hypot(math.sqrt(0.01 * 0.99 / 1500), math.sqrt(0.01 * 0.99 / 1000))
    assert matched.tpr.mean == pytest.approx(0.01, abs=noise)
    comparison = cell.comparison("matched")
    assert comparison is not None
    assert comparison.interval.low < 0.5 < comparison.interval.high
    assert cell.shift == pytest.approx(1.3, abs=4 * math.sqrt(2 / 1500 + 1.3**2 / 2 / 1500))


def test_an_unshifted_null_is_flagged_no_more_often_than_the_level() -> None:
    """100 schemes whose attack does nothing to unmarked texts: P(Binomial(100, 0.01) > 5) < 0.001."""
    schemes = {f"s{i}": 1.0 for i in range(100)}
    found = evaluate(scored(schemes, {CLEAN: (1.0, 0.0), "a": (0.5, 0.0)}, texts=60, seeds=2), rates=(0.05,))
    cells = [found.cell(scheme, "a") for scheme in schemes]
    p = [at.shift_p for cell in cells if cell and (at := cell.at("clean", 0.05))]
    assert len(p) == 100
    assert sum(each < 0.01 for each in p if each is not None) <= 5


def test_p_values_of_marked_and_unmarked_texts_are_counted() -> None:
    rows = scored({"s": 3.0}, ATTACKS, texts=400, human=True)
    share = next(cell for cell in evaluate(rows).cells if cell.attack == "translate").share(0.01)
    assert share is not None
    wrong = stats.norm.sf(stats.norm.ppf(0.99) - 1.3)
    for counted in (share.unmarked, share.human):
        assert counted is not None
        assert counted.trials == 1200
        assert counted.rate == pytest.approx(wrong, abs=4 * math.sqrt(wrong * (1 - wrong) / 1200))
    mine = [each.p_value < 0.01 for each in rows if (each.attack, each.kind) == ("translate", MARKED)]
    assert (share.found.hits, share.found.trials) == (sum(mine), 1200)


def test_human_negatives_have_thresholds_of_their_own() -> None:
    rows = scored({"s": 3.0}, UNCHANGED, texts=100, human=True)
    moved = [dataclasses.replace(each, score=each.score + 1.0 * (each.kind == HUMAN)) for each in rows]
    (before,), (cell,) = evaluate(rows).cells, evaluate(moved).cells
    clean, human = cell.at("clean", 0.05), cell.at("human", 0.05)
    was_clean, was_human = before.at("clean", 0.05), before.at("human", 0.05)
    assert clean is not None
    assert human is not None
    assert was_clean is not None
    assert was_human is not None
    assert human.thresholds == pytest.approx([each + 1.0 for each in was_human.thresholds])
    assert clean.thresholds == was_clean.thresholds
    assert human.tpr.mean < clean.tpr.mean


def test_a_single_seed_sets_its_own_threshold_and_is_noted() -> None:
    found = evaluate(scored({"s": 3.0}, UNCHANGED, texts=200, seeds=1))
    (cell,) = found.cells
    clean, at = cell.comparison("clean"), cell.at("clean", 0.05)
    assert clean is not None
    assert at is not None
    assert not clean.held_out
    assert at.fpr.mean == 0.05
    assert at.tpr.half_range == 0.0
    assert any(note.startswith("one seed only: ") for note in found.notes)
    rows = (scored({name: 3.0}, UNCHANGED, texts=50, seeds=seeds) for name, seeds in (("s", 1), ("t", 3)))
    both = [row for some in rows for row in some]
    assert any(note.startswith("one seed only (s): ") for note in evaluate(both).notes)


def test_too_few_negatives_are_flagged() -> None:
    found = evaluate(scored({"s": 3.0}, UNCHANGED, texts=40, seeds=3))  # 80 to calibrate on: 1% needs 100
    (cell,) = found.cells
    one, five = cell.at("clean", 0.01), cell.at("clean", 0.05)
    assert one is not None
    assert five is not None
    assert (one.few, five.few) == (True, False)
    assert any("1% threshold needs 100 negatives" in note and "120 clean" in note for note in found.notes)
    (enough,) = evaluate(scored({"s": 3.0}, UNCHANGED, texts=50, seeds=3)).cells
    exact = enough.at("clean", 0.01)
    assert exact is not None
    assert not exact.few


def test_missing_attacked_negatives_are_noted() -> None:
    rows = [
        each for each in scored({"s": 3.0}, ATTACKS, texts=50) if each.kind == MARKED or each.attack == CLEAN
    ]
    found = evaluate(rows)
    cell = found.cell("s", "delete")
    assert cell is not None
    assert cell.comparison("matched") is None
    assert cell.shift is None
    at = cell.at("clean", 0.05)
    assert at is not None
    assert at.attacked is None
    assert any("delete, translate" in note for note in found.notes)


def test_a_seed_without_negatives_is_left_out() -> None:
    rows = [each for each in scored({"s": 3.0}, UNCHANGED, texts=30) if each.kind == MARKED or each.seed != 1]
    (cell,) = evaluate(rows).cells
    clean = cell.comparison("clean")
    assert clean is not None
    assert cell.seeds == (0, 1, 2)
    assert len(clean.auroc.values) == 2
    assert clean.texts == 60


def test_invalid_rows() -> None:
    with pytest.raises(InputError, match="no row is a marked text"):
        evaluate([row(UNMARKED, 0, 1.0, "a")])
    with pytest.raises(InputError, match="scored twice: s, none, 0, marked, a"):
        evaluate([row(MARKED, 0, 1.0, "a"), row(MARKED, 0, 2.0, "a")])
    with pytest.raises(ConfigError, match="rates must lie in"):
        evaluate(hand_made(), rates=(0.0,))


ROW = ScoreRow("dew", "none", 1, "marked", "opening-1", 4.25, 0.001, 200)


def test_rows_round_trip(tmp_path: Path) -> None:
    rows = [ROW, ScoreRow("dew", "none", 1, "human", "é\u2028", -0.5, None, 0)]
    write_scores(tmp_path / "scores.jsonl", rows)
    assert scores_in(tmp_path / "scores.jsonl") == rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "forged"}, "one of marked, unmarked, human, got 'forged'"),
        ({"score": float("nan")}, "the score of text opening-1 is NaN"),
        ({"score": None}, "wrong type"),
        ({"p_value": 1.5}, r"in \[0, 1\], got 1.5"),
        ({"seed": "first"}, "wrong type"),
    ],
)
def test_an_invalid_row_is_reported_with_its_line(tmp_path: Path, change: dict, message: str) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (ROW.to_dict(), {**ROW.to_dict(), **change})))
    with pytest.raises(InputError, match=f"scores.jsonl, line 2: .*{message}"):
        scores_in(path)


def test_a_missing_field_and_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs the field 'tokens'"):
        ScoreRow.from_dict({name: value for name, value in ROW.to_dict().items() if name != "tokens"})
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match="is empty"):
        scores_in(tmp_path / "empty.jsonl")
