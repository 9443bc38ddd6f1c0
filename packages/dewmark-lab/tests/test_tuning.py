"""Tuning: which configurations a grid contains, how they are measured, and which one is chosen."""

from __future__ import annotations

import dataclasses
import functools
import json

import numpy as np
import pytest

from dewmark.errors import ConfigError, UnknownNameError
from dewmark.hosts.fake import FakeHost
from dewmark_lab import tuning
from dewmark_lab.tuning import (
    DECODING,
    Measured,
    Sample,
    _keys,
    choose,
    curve_of,
    delete_words,
    describe,
    expand,
    flags,
    pareto_front,
    parse_grid,
    varying,
)

measure = functools.partial(tuning.measure, scheme="dew-paper")


class TestGrid:
    def test_a_bias_has_no_alpha_and_keyed_sampling_may_have_a_bias_too(self):
        found = expand({"sampler": ["bias", "gumbel"], "lambda": [1, 2], "alpha": [0.1]}, scheme="dew-paper")
        assert sorted(found, key=str) == sorted(
            [
                {"sampler": "bias", "lambda": 1.0},
                {"sampler": "bias", "lambda": 2.0},
                {"sampler": "gumbel", "lambda": 1.0, "alpha": 0.1},
                {"sampler": "gumbel", "lambda": 2.0, "alpha": 0.1},
            ],
            key=str,
        )

    def test_given_values_replace_the_defaults(self):
        default, paper = expand({}), expand({}, scheme="dew-paper")
        assert {settings["sampler"] for settings in paper} == {"bias", "gumbel"}
        assert {(settings["alpha"], settings["lambda"]) for settings in default} == {
            (alpha, strength) for alpha in (0.5, 0.95) for strength in (0.0, 2.0)
        }
        found = expand(parse_grid(["k=3,5"]))
        assert [{**settings, "k": k} for settings in default for k in (3, 5)] == found
        assert len(expand(parse_grid(["alpha=0.5", "lambda=0"]))) == 1

    def test_equal_values_are_one_configuration(self):
        assert len(expand({"alpha": ["1", "1.0", 1], "lambda": [2.0]})) == 1

    def test_other_schemes_have_no_default_grid(self):
        assert expand({"delta": ["1", "2"]}, scheme="kgw") == [{"delta": 1.0}, {"delta": 2.0}]
        with pytest.raises(ConfigError, match="kgw has no default grid"):
            expand({}, scheme="kgw")

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            (["lambda="], ConfigError, "--grid lambda needs at least one value"),
            (["lambda= , "], ConfigError, "--grid lambda needs at least one value"),
            (["lambda"], ConfigError, "must have the form name=value"),
            (["lamda=1"], UnknownNameError, "did you mean 'lambda'"),
            (["lambda=-1"], ConfigError, "lambda must be at least 0"),
            (["sampler=bias", "alpha=0.5"], ConfigError, "no sampler of the grid uses alpha"),
            (["sampler=greedy"], ConfigError, "sampler must be one of bias, gumbel"),
        ],
    )
    def test_invalid_grids(self, options, error, message):
        with pytest.raises(error, match=message) as caught:
            expand(parse_grid(options), scheme="dew-paper")
        assert "\n" not in str(caught.value)

    def test_an_empty_list_of_values(self):
        with pytest.raises(ConfigError, match="the grid is empty"):
            expand({"sampler": []}, scheme="dew-paper")

    def test_labels_of_a_configuration(self):
        settings = {"sampler": "gumbel", "alpha": 0.25, "k": 5}
        assert describe(settings) == "gumbel alpha=0.25 k=5"
        assert flags(settings) == "--set sampler=gumbel --set alpha=0.25 --set k=5"
        assert curve_of(settings) == ("gumbel k=5", "alpha=0.25")
        assert curve_of({"alpha": 0.5, "lambda": 2.0}) == ("lambda=2", "alpha=0.5")
        assert curve_of({"delta": 2.0}) == ("", "delta=2")

    def test_shared_settings_are_left_out(self):
        both = [{"k": 3, "sampler": "bias", "lambda": 1.0}, {"k": 3, "sampler": "bias", "lambda": 2.0}]
        assert varying(both) == [{"sampler": "bias", "lambda": 1.0}, {"sampler": "bias", "lambda": 2.0}]
        assert varying([{"k": 3, "delta": 2.0}, {"k": 5, "delta": 2.0}]) == [{"k": 3}, {"k": 5}]


WORDS = ("bridge", "river", "sea", "ship", "town", "hill", "city", "road")
WEAK, STRONG = {"sampler": "bias", "lambda": 0.1}, {"sampler": "bias", "lambda": 6.0}


def sample(*, prompts=8, tokens=25, **options) -> Sample:
    decoding = dataclasses.replace(DECODING, max_new_tokens=tokens, min_new_tokens=tokens)
    return Sample([f"the old {word}" for word in WORDS[:prompts]], decoding=decoding, **options)


class CountingHost(FakeHost):
    """Counts its batches, and can be interrupted at one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0
        self.dies_at: int | None = None

    def complete(self, *args, **options):
        self.batches += 1
        if self.batches == self.dies_at:
            raise KeyboardInterrupt
        return super().complete(*args, **options)


def arrays(found):
    unmarked, marked = found
    return [
        np.concatenate(
            [one.perplexity, one.distinct_content, one.unlisted, one.z, one.p_value, one.z_deleted]
        )
        for one in (unmarked, *marked)
    ]


class TestMeasuring:
    @pytest.fixture
    def host(self, bag_encoder) -> CountingHost:
        return CountingHost()

    def test_a_weak_and_a_strong_mark(self, host):
        unmarked, (weak, strong) = measure(host, [WEAK, STRONG], sample(tokens=40))
        assert unmarked.perplexity.shape == strong.z.shape == (1, 8)
        assert unmarked.z.size == 0
        # a bias of at most 0.1 rarely changes a text: most equal the unmarked ones
        assert np.mean(weak.perplexity == unmarked.perplexity) > 0.3
        assert weak.z.mean() < 2.0  # the mean of 8 nearly standard normals, at 5 standard deviations
        assert strong.z.mean() > weak.z.mean() + 3.0
        assert strong.z_deleted.mean() < strong.z.mean()
        assert strong.p_value.mean() < weak.p_value.mean()

    def test_keys_differ_and_runs_agree(self, host):
        two_keys = sample(prompts=3, keys=2)
        first = measure(host, [STRONG], two_keys)
        assert first[1][0].z.shape == (2, 3)
        assert not np.array_equal(first[1][0].perplexity[0], first[1][0].perplexity[1])
        again = measure(host, [STRONG], two_keys)
        assert all(np.array_equal(a, b) for a, b in zip(arrays(first), arrays(again), strict=True))

    def test_an_interrupted_run_resumes_at_its_configuration(self, host, tmp_path):
        expected = arrays(measure(host, [WEAK, STRONG], sample(), batch_size=4))
        assert host.batches == 6
        host.batches, host.dies_at = 0, 4  # in the second batch of the first configuration
        with pytest.raises(KeyboardInterrupt):
            measure(host, [WEAK, STRONG], sample(), batch_size=4, out=tmp_path)
        files = list((tmp_path / "configurations").iterdir())
        assert len(files) == 1  # the unmarked texts
        host.batches, host.dies_at = 0, None
        progress = []
        found = measure(
            host,
            [WEAK, STRONG],
            sample(),
            batch_size=4,
            out=tmp_path,
            progress=lambda what, done, total: progress.append((done, total)),
        )
        assert host.batches == 4
        assert progress[0] == (0, 24)
        assert progress[-1] == (24, 24)
        assert all(np.array_equal(a, b) for a, b in zip(arrays(found), expected, strict=True))
        host.batches = 0
        measure(host, [STRONG, WEAK], sample(), out=tmp_path)
        assert host.batches == 0

    def test_files_are_reused_only_for_the_same_texts(self, host, tmp_path):
        def count(configurations, texts):
            host.batches = 0
            measure(host, configurations, texts, out=tmp_path)
            return host.batches

        assert count([WEAK], sample(prompts=2)) == 2
        assert count([WEAK], sample(prompts=2)) == 0
        assert count([STRONG], sample(prompts=2)) == 1
        assert count([WEAK], sample(prompts=2, tokens=26)) == 2
        assert count([WEAK], sample(prompts=2, seed=5)) == 2
        assert count([WEAK], sample(prompts=2, keys=2)) == 1  # the first key's texts are there
        for file in (tmp_path / "configurations").iterdir():
            file.write_text(file.read_text()[:-40])
        assert count([WEAK], sample(prompts=2)) == 2  # truncated files are made again

    def test_files_contain_no_key(self, host, tmp_path):
        measure(host, [STRONG], sample(prompts=2), out=tmp_path)
        (secret,) = (key.subkey("test").hex() for key in _keys(1))
        for file in (tmp_path / "configurations").iterdir():
            content = json.loads(file.read_text(encoding="utf-8"))
            assert set(content) == {"format", "settings", "rows"}
            assert secret not in file.read_text()

    def test_invalid_samples(self, host):
        with pytest.raises(ConfigError, match="the grid is empty"):
            measure(host, [], sample())
        with pytest.raises(ConfigError, match="at least 2 prompts, got 1"):
            sample(prompts=1)
        with pytest.raises(ConfigError, match="keys must be at least 1, got 0"):
            sample(keys=0)
        assert host.batches == 0

    def test_deletion_of_words(self):
        text = " ".join(map(str, range(4000)))
        kept = delete_words(text, 0.3, seed=1).split(" ")
        assert abs(len(kept) / 4000 - 0.7) < 4 * np.sqrt(0.21 / 4000)
        assert kept == sorted(kept, key=int)
        assert delete_words(text, 0.3, seed=1).split(" ") == kept
        assert delete_words("word", 0.99999, seed=1) == "word"


PROMPTS = 400
BASE = np.random.default_rng(0).lognormal(4.0, 0.5, size=(1, PROMPTS))


def measured(name, *, ratio=1.0, change=0.0, unlisted=0.0, z=5.0, noise=0.01, keys=1, prompts=PROMPTS):
    """Perplexities with a known ratio to the unmarked ones, z with a known mean and deviation 1."""
    rng = np.random.default_rng(sum(map(ord, name)))
    shape = (keys, prompts)
    scores = z + rng.normal(size=shape)
    return Measured(
        settings={"sampler": name, "alpha": 0.5},
        perplexity=BASE[:, :prompts] * ratio * np.exp(noise * rng.normal(size=shape)),
        distinct_content=np.full(shape, 0.9 + change),
        unlisted=0.03 + unlisted + 0.01 * rng.normal(size=shape),
        z=scores,
        p_value=np.where(scores > 3.7, 1e-5, 0.5),
        z_deleted=scores * 0.8,
    )


def unmarked(prompts=PROMPTS):
    none = np.zeros((0, prompts))
    shares = np.full((1, prompts), 0.9), np.full((1, prompts), 0.03)
    return Measured({}, BASE[:, :prompts], *shares, none, none, none)


def name_of(tuning):
    return None if tuning.chosen is None else tuning.chosen.settings["sampler"]


class TestChoice:
    def test_the_strongest_within_the_budget_is_chosen(self):
        grid = [
            measured("weak", z=3.0),
            measured("good", z=6.0, ratio=1.03),
            measured("loud", z=9.0, ratio=1.2),
            measured("flat", z=9.0, ratio=0.8),  # a lower perplexity is distortion too
            measured("dull", z=9.0, change=-0.05),
            measured("odd", z=9.0, unlisted=0.02),
        ]
        tuning = choose(unmarked(), grid, budget=1.05)
        assert name_of(tuning) == "good"
        assert [result.within for result in tuning.results] == [True, True, False, False, False, False]
        assert tuning.notes == ()
        assert tuning.results[1].ratio.value == pytest.approx(1.03, abs=0.01)
        assert tuning.results[4].change.value == pytest.approx(-0.05)
        assert tuning.results[1].z_deleted == pytest.approx(0.8 * tuning.results[1].z)
        assert name_of(choose(unmarked(), grid, budget=1.3)) == "loud"

    def test_the_front_has_what_no_other_beats_in_strength_and_variety(self):
        grid = [
            measured("weak", z=3.0, change=0.01),
            measured("beaten", z=2.0, change=-0.02),
            measured("loud", z=9.0, ratio=2.0, change=-0.05),  # the front knows no budget
        ]
        tuning = choose(unmarked(), grid, budget=1.05)
        assert [result.front for result in tuning.results] == [True, False, True]
        assert [result["front"] for result in tuning.to_dict()["results"]] == [True, False, True]

    def test_nothing_within_the_budget(self):
        tuning = choose(unmarked(), [measured("loud", ratio=1.5)], budget=1.05)
        assert tuning.chosen is None
        assert tuning.to_dict()["flags"] is None
        assert "no configuration is within the budget" in tuning.notes[0]

    def test_the_interval_covers_the_true_ratio(self):
        """95% of the intervals contain the truth: 88 of 100 is 3.2 standard deviations below."""
        hits = 0
        for number in range(100):
            rng = np.random.default_rng(number)
            prompts = rng.normal(size=(1, 60))
            plain = Measured({}, np.exp(prompts + rng.normal(size=(1, 60))), *[np.ones((1, 60))] * 5)
            marked = Measured({}, 1.2 * np.exp(prompts + rng.normal(size=(1, 60))), *[np.ones((1, 60))] * 5)
            ratio = choose(plain, [marked], budget=1.05).results[0].ratio
            hits += ratio.low <= 1.2 <= ratio.high
        assert hits >= 88

    def test_a_choice_within_noise_comes_with_the_number_of_texts_needed(self):
        few = 24
        tuning = choose(unmarked(few), [measured("wide", noise=0.3, prompts=few)], budget=1.2)
        ratio = tuning.results[0].ratio
        assert 1 / 1.2 < ratio.value < 1.2 < max(ratio.high, 1 / ratio.low)  # with this seed
        (note,) = tuning.notes
        assert "the choice is within noise" in note
        texts = int(note.split("about ")[1].split()[0])
        half = np.log(ratio.high / ratio.low) / 2
        assert texts == pytest.approx(few * (half / np.log(1.2)) ** 2, rel=0.1)

    def test_stronger_configurations_that_noise_may_have_excluded_are_named(self):
        grid = [measured("calm", z=3.0), measured("near", z=6.0, ratio=1.09, noise=0.3)]
        tuning = choose(unmarked(), grid, budget=1.05)
        assert name_of(tuning) == "calm"
        assert any(note.startswith("noise may have excluded near alpha=0.5") for note in tuning.notes)
        alone = choose(unmarked(), grid[1:], budget=1.05)
        assert alone.chosen is None
        assert alone.notes[1].startswith("noise may have excluded near")
        dull = measured("dull", z=6.0, change=-0.05)
        assert choose(unmarked(), [grid[0], dull], budget=1.05).notes == ()  # its variety is clearly off

    def test_a_lead_within_noise_is_named(self):
        tuning = choose(unmarked(), [measured("one", z=5.0), measured("two", z=5.01)], budget=1.05)
        assert len(tuning.notes) == 1
        assert "is within noise" in tuning.notes[0]

    def test_keys_are_averaged(self):
        tuning = choose(unmarked(), [measured("keys", keys=3, z=5.0)], budget=1.05)
        assert tuning.chosen is not None
        assert tuning.chosen.z == pytest.approx(5.0, abs=4 / np.sqrt(3 * PROMPTS))
        assert tuning.texts == PROMPTS

    @pytest.mark.parametrize("budget", [1.0, 0.9, float("inf"), float("nan")])
    def test_invalid_budgets(self, budget):
        with pytest.raises(ConfigError, match="a ratio of perplexities above 1"):
            choose(unmarked(), [measured("any")], budget=budget)


def test_the_pareto_front_has_every_point_that_no_other_beats():
    points = [(3.0, 1.0), (2.0, 2.0), (1.0, 3.0), (2.0, 1.0), (2.0, 2.0), (0.0, 0.0)]
    assert pareto_front(points) == [0, 1, 2, 4]  # equal points do not beat each other
    assert pareto_front([]) == []
