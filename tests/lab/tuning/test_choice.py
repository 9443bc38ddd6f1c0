"""What is chosen of measures made up for the purpose, and what is said of the noise."""

from __future__ import annotations

import numpy as np
import pytest

from dewmark.errors import ConfigError
from dewmark.lab.tuning import Measured, choose

PROMPTS = 400
BASE = np.random.default_rng(0).lognormal(4.0, 0.5, size=(1, PROMPTS))


def measured(name, *, ratio=1.0, change=0.0, z=5.0, noise=0.01, keys=1, prompts=PROMPTS):
    """Perplexities of a known ratio to the unmarked texts', z of a known mean and deviation 1."""
    rng = np.random.default_rng(sum(map(ord, name)))
    shape = (keys, prompts)
    scores = z + rng.normal(size=shape)
    return Measured(
        settings={"sampler": name, "alpha": 0.5},
        perplexity=BASE[:, :prompts] * ratio * np.exp(noise * rng.normal(size=shape)),
        distinct_3=np.full(shape, 0.9 + change),
        z=scores,
        p_value=np.where(scores > 3.7, 1e-5, 0.5),
        z_deleted=scores * 0.8,
    )


def unmarked(prompts=PROMPTS):
    none = np.zeros((0, prompts))
    return Measured({}, BASE[:, :prompts], np.full((1, prompts), 0.9), none, none, none)


def name_of(tuning):
    return None if tuning.chosen is None else tuning.chosen.settings["sampler"]


def test_the_strongest_within_the_budget_is_chosen():
    grid = [
        measured("weak", z=3.0),
        measured("good", z=6.0, ratio=1.03),
        measured("loud", z=9.0, ratio=1.2),
        measured("flat", z=9.0, ratio=0.8),  # a lower perplexity is distortion too
        measured("dull", z=9.0, change=-0.05),
    ]
    tuning = choose(unmarked(), grid, budget=1.05)
    assert name_of(tuning) == "good"
    assert [result.within for result in tuning.results] == [True, True, False, False, False]
    assert tuning.notes == ()  # the measures are sharp enough
    assert tuning.results[1].ratio.value == pytest.approx(1.03, abs=0.01)
    assert tuning.results[4].change.value == pytest.approx(-0.05)
    assert tuning.results[1].z_deleted == pytest.approx(0.8 * tuning.results[1].z)
    assert name_of(choose(unmarked(), grid, budget=1.3)) == "loud"


def test_nothing_within_the_budget():
    tuning = choose(unmarked(), [measured("loud", ratio=1.5)], budget=1.05)
    assert tuning.chosen is None
    assert tuning.to_dict()["flags"] is None
    assert "no configuration keeps to the budget" in tuning.notes[0]


def test_the_interval_covers_the_true_ratio():
    """The truth lies in 95% of the intervals: of 100, at least 88 is 3.2 standard deviations below."""
    hits = 0
    for number in range(100):
        rng = np.random.default_rng(number)
        prompts = rng.normal(size=(1, 60))
        plain = Measured({}, np.exp(prompts + rng.normal(size=(1, 60))), *[np.ones((1, 60))] * 4)
        marked = Measured({}, 1.2 * np.exp(prompts + rng.normal(size=(1, 60))), *[np.ones((1, 60))] * 4)
        ratio = choose(plain, [marked], budget=1.05).results[0].ratio
        hits += ratio.low <= 1.2 <= ratio.high
    assert hits >= 88


def test_a_choice_within_noise_says_so_and_how_many_texts_would_do():
    few = 24
    tuning = choose(unmarked(few), [measured("wide", noise=0.3, prompts=few)], budget=1.2)
    ratio = tuning.results[0].ratio
    assert 1 / 1.2 < ratio.value < 1.2 < max(ratio.high, 1 / ratio.low)  # as the seed has it
    (note,) = tuning.notes
    assert "the choice is within noise" in note
    texts = int(note.split("about ")[1].split()[0])
    half = np.log(ratio.high / ratio.low) / 2
    assert texts == pytest.approx(few * (half / np.log(1.2)) ** 2, rel=0.1)


def test_a_stronger_one_that_noise_may_have_left_out_is_named():
    grid = [measured("calm", z=3.0), measured("near", z=6.0, ratio=1.09, noise=0.3)]
    tuning = choose(unmarked(), grid, budget=1.05)
    assert name_of(tuning) == "calm"
    assert any(note.startswith("noise may have left out near alpha=0.5") for note in tuning.notes)
    alone = choose(unmarked(), grid[1:], budget=1.05)
    assert alone.chosen is None
    assert alone.notes[1].startswith("noise may have left out near")
    dull = measured("dull", z=6.0, change=-0.05)
    assert choose(unmarked(), [grid[0], dull], budget=1.05).notes == ()  # its repetitions are no noise


def test_a_lead_within_noise_is_named():
    tuning = choose(unmarked(), [measured("one", z=5.0), measured("two", z=5.01)], budget=1.05)
    assert len(tuning.notes) == 1
    assert "is within noise" in tuning.notes[0]


def test_several_keys_are_averaged():
    tuning = choose(unmarked(), [measured("keys", keys=3, z=5.0)], budget=1.05)
    assert tuning.chosen is not None
    assert tuning.chosen.z == pytest.approx(5.0, abs=4 / np.sqrt(3 * PROMPTS))
    assert tuning.texts == PROMPTS


@pytest.mark.parametrize("budget", [1.0, 0.9, float("inf"), float("nan")])
def test_budgets_that_are_none(budget):
    with pytest.raises(ConfigError, match="a ratio of perplexities above 1"):
        choose(unmarked(), [measured("any")], budget=budget)
