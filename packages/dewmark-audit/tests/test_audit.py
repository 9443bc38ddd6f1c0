"""An audit is itself a test: it must pass valid keys, catch biased ones, and know when it cannot tell."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dewmark.errors import InputError
from dewmark_audit import one_key
from dewmark_audit.audit import ALPHA, LEVELS, POWER, Audit, Outcome, Trust, audit, length_band, texts_needed


def labels(count: int, seed: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    return {
        "languages": rng.choice(["de", "en", "fr"], size=count).tolist(),
        "lengths": rng.choice([30, 80, 150, 250, 500], size=count),
    }


def uniform(count: int, seed: int = 0) -> Audit:
    return audit(np.random.default_rng(seed).uniform(size=count), **labels(count, seed))


def test_a_valid_key_rarely_fails() -> None:
    """Holm bounds the probability that any of the 27 cells fails by 5%, however the cells overlap."""
    failed = sum(uniform(500, seed).outcome is Outcome.FAILS for seed in range(300))
    # at most Binomial(300, 0.05): 15 on average, 29 with probability 0.0005
    assert failed <= 29


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("tests", [3, 27])
def test_texts_needed_reveal_a_doubled_rate(level: float, tests: int) -> None:
    alpha = ALPHA / tests
    needed = texts_needed(level, alpha=alpha)

    def power(texts: int) -> float:
        least = int(stats.binom.isf(alpha, texts, level)) + 1  # P(X ≥ least) ≤ alpha
        return float(stats.binom.sf(least - 1, texts, 2 * level))

    assert all(power(texts) >= POWER for texts in range(needed, needed + needed // 2, max(1, needed // 200)))
    assert power(int(0.8 * needed)) < POWER


def test_a_key_biased_in_one_language_is_caught_there() -> None:
    rng = np.random.default_rng(1)
    given = labels(900)
    german = np.array(given["languages"]) == "de"
    p = np.where(german, stats.norm.sf(rng.normal(0.8, 1.0, size=900)), rng.uniform(size=900))
    found = audit(p, **given)
    assert found.outcome is Outcome.FAILS
    assert (found.worst.kind, found.worst.group) == ("language", "de")
    assert found.sentence.startswith("The key fails for de: at ")
    assert not any(cell.significant for cell in found.cells if cell.group in ("en", "fr"))


def test_too_few_texts_cannot_pass() -> None:
    found = uniform(40)
    assert found.outcome is Outcome.CANNOT_TELL
    share = ALPHA / len(found.cells)  # all cells are tested
    assert [cell.needed for cell in found.cells] == [
        texts_needed(cell.level, alpha=share) for cell in found.cells
    ]
    needed = {cell.level: cell.needed for cell in found.overall}
    assert found.sentence == (
        f"Cannot tell: 40 texts are too few to see a doubled rate; it takes {needed[0.001]:,} at 0.1%, "
        f"{needed[0.01]:,} at 1%, {needed[0.05]:,} at 5%."
    )


def test_too_few_texts_can_fail() -> None:
    assert audit(np.full(40, 1e-4), **labels(40)).outcome is Outcome.FAILS


def test_a_pass_names_the_levels_it_resolves() -> None:
    found = uniform(800)
    assert found.outcome is Outcome.PASSES
    assert [cell.resolves for cell in found.overall] == [False, False, True]
    assert "One twice as high would have shown at 5%; elsewhere that takes more texts, " in found.sentence
    every = audit(
        np.random.default_rng(2).uniform(size=30_000), languages=["en"] * 30_000, lengths=[80] * 30_000
    )
    assert every.outcome is Outcome.PASSES
    assert every.sentence.endswith("would have shown at 0.1% and 1% and 5%.")


def test_counts_and_exact_intervals() -> None:
    p = [0.0005] * 3 + [0.005] * 4 + [0.03] * 10 + [0.5] * 83
    found = audit(p, languages=["en"] * 100, lengths=[60] * 100)
    assert [cell.kind for cell in found.cells] == ["all"] * 3  # one language, one band: nothing to set apart
    assert [cell.alarms for cell in found.cells] == [3, 7, 17]
    for cell in found.cells:
        exact = stats.binomtest(cell.alarms, 100).proportion_ci(0.95, method="exact")
        assert (cell.rate.low, cell.rate.high) == pytest.approx((exact.low, exact.high))
        one_sided = stats.binomtest(cell.alarms, 100, cell.level, alternative="greater").pvalue
        assert cell.p_value == pytest.approx(one_sided)
    raw = sorted(cell.p_value for cell in found.cells)
    assert found.worst.corrected == pytest.approx(3 * raw[0])


def test_a_p_value_equal_to_the_level_is_an_alarm() -> None:
    found = audit([0.01] * 50, languages=["en"] * 50, lengths=[60] * 50)
    assert [cell.alarms for cell in found.cells] == [0, 50, 50]
    assert [cell.hits for cell in found.cells] == [0.0, 50.0, 50.0]


def test_small_groups_are_counted_with_all_texts_only() -> None:
    found = audit([0.5] * 100, languages=["en"] * 75 + ["de"] * 20 + ["fr"] * 5, lengths=[60] * 100)
    groups = {(cell.kind, cell.group): cell.texts for cell in found.cells}
    assert groups == {("all", "all texts"): 100, ("language", "de"): 20, ("language", "en"): 75}


def test_length_bands() -> None:
    bands = [length_band(n) for n in (0, 49, 50, 99, 199, 200, 399, 400, 1999, 10_000)]
    said = "under 50,under 50,50–99,50–99,100–199,200–399,200–399,400–999,1000–1999,5000+"
    assert bands == said.split(",")


def test_no_texts() -> None:
    with pytest.raises(InputError, match="no text is long enough"):
        audit([], languages=[], lengths=[])


# With directions


def together(count: int, r: float, *, seed: int, part: int, dims: int = 1500) -> np.ndarray:
    """Directions (count, dims) of texts that share the axis ``part`` with correlation r."""
    own = np.random.default_rng(seed).normal(size=(count, dims))
    own[:, :8] = 0.0
    own *= np.sqrt(1.0 - r) / np.linalg.norm(own, axis=1, keepdims=True)
    own[:, part] = np.sqrt(r)
    return own.astype(np.float32)


def world(g: float, *, seed: int = 0) -> Audit:
    """120 prose texts with r = 0.01 and 40 logs with r = 0.8, under a key that leans by g towards logs."""
    rng = np.random.default_rng(seed)
    z = np.concatenate([rng.normal(size=120), np.sqrt(0.8) * g + np.sqrt(0.2) * rng.normal(size=40)])
    m = np.concatenate([together(120, 0.01, seed=1, part=0), together(40, 0.8, seed=2, part=1)])
    return audit(
        stats.norm.sf(z),
        languages=["en"] * 160,
        lengths=[150] * 160,
        kinds=["prose"] * 120 + ["logs"] * 40,
        directions=m,
    )


def test_a_kind_whose_texts_go_together_is_told_apart() -> None:
    found = world(0.0)
    groups = {group.group: group for group in found.groups}
    assert set(groups) == {"all texts", "prose", "logs"}
    logs, prose = groups["logs"].together, groups["prose"].together
    assert logs is not None
    assert prose is not None
    assert (logs.r, prose.r) == (pytest.approx(0.8, abs=0.01), pytest.approx(0.01, abs=0.005))
    assert logs.effective_number == pytest.approx(40 / (1 + 39 * logs.r))
    assert (logs.largest_block, prose.largest_block) == (40, 1)
    assert found.remarks == [
        "40 of 40 texts of logs are one block: a key calls most of them marked, or none."
    ]
    middle = groups["logs"].cells[1]
    assert middle.independent == 40  # given the key, logs are independent draws
    assert middle.prediction is not None
    assert middle.prediction.ceiling == pytest.approx(
        stats.norm.sf(2.326 * (1 - 0.8**0.5) / 0.2**0.5), rel=2e-3
    )
    assert found.overall[1].independent == 121  # among all texts the logs are one
    assert groups["logs"].trust is groups["prose"].trust is Trust.TRUSTED
    assert found.outcome is Outcome.PASSES
    assert found.sentence.endswith("in each of the 3 groups, with 95% confidence in each.")


def test_the_published_r_describes_uneven_correlations() -> None:
    """A quarter of the texts are logs: over keys the rate varies more than their mean correlation says."""
    whole = world(0.0).groups[0]
    predicted = whole.cells[1].prediction
    assert whole.together is not None
    assert predicted is not None
    both = stats.multivariate_normal(cov=[[1.0, 0.8], [0.8, 1.0]]).cdf([-2.326, -2.326])
    variance = (0.25**2) * (both - 1e-4)  # of the rate at 1%, from pairs of logs; the others add next to none
    g = np.random.default_rng(0).normal(size=200_000)
    r = whole.together.matched
    rates = stats.norm.cdf((np.sqrt(r) * g - 2.326) / np.sqrt(1.0 - r))
    assert rates.var() == pytest.approx(variance, rel=0.05)
    assert r > 2.0 * whole.together.r
    assert predicted.floor < 0.01 < one_key.rate_ceiling(whole.together.r, 0.01) < predicted.ceiling


def test_a_key_that_leans_towards_one_kind_fails_there() -> None:
    found = world(1.9)  # mean z 1.7: 8% of logs are called marked at 1%, though the sample may show none
    assert found.outcome is Outcome.FAILS
    assert found.sentence.startswith("The key fails for logs: at ")
    assert next(group for group in found.groups if group.group == "prose").verdict == "trusted"
    logs = next(group for group in found.groups if group.group == "logs")
    assert logs.cells[1].prediction.rate == pytest.approx(0.08, abs=0.05)


def test_a_prediction_fails_a_key_before_any_alarm() -> None:
    """Eight logs near z = 1.6: none is an alarm at any level, but one such log in twenty would be at 1%."""
    z = np.concatenate([np.random.default_rng(3).normal(size=60), 1.61 + 0.02 * np.linspace(-1, 1, 8)])
    m = np.concatenate([together(60, 0.01, seed=1, part=0), together(8, 0.8, seed=2, part=1)])
    found = audit(
        stats.norm.sf(z),
        languages=["en"] * 68,
        lengths=[150] * 68,
        kinds=["prose"] * 60 + ["logs"] * 8,
        directions=m,
    )
    logs = next(group for group in found.groups if group.group == "logs")
    assert logs.cells[1].alarms == 0
    assert logs.trust is Trust.NOT_TRUSTED
    assert "its scores there predict that it calls" in found.sentence


def test_copies_count_once() -> None:
    """Thirty copies of one marked-looking letter among 200 texts are one alarm."""
    rng = np.random.default_rng(0)
    m = together(201, 0.0, seed=1, part=0)
    m = np.concatenate([m, np.repeat(m[:1], 29, axis=0)])
    p = np.concatenate([[0.004], rng.uniform(0.06, 1.0, size=200), np.full(29, 0.004)])
    found = audit(p, languages=["en"] * 230, lengths=[150] * 230, directions=m)
    middle = found.overall[1]
    assert (middle.texts, middle.alarms, middle.independent, middle.hits) == (230, 30, 201, 1.0)
    assert not middle.significant
    assert audit(p, languages=["en"] * 230, lengths=[150] * 230).outcome is Outcome.FAILS
    assert "near-copies counted once: 201" in found.sentence
