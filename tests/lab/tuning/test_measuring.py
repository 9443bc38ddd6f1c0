"""Measuring on the tiny host: the same prompts and seeds, kept in files, resumed after a kill."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dewmark.errors import ConfigError
from dewmark.hosts.fake import FakeHost
from dewmark.lab.evaluation.quality import distinct
from dewmark.lab.tuning import Sample, delete_words, measure

WORDS = ("bridge", "river", "sea", "ship", "town", "hill", "city", "road")
SAMPLE = Sample([f"the old {word}" for word in WORDS], tokens=40)
WEAK, STRONG = {"sampler": "bias", "lambda": 0.1}, {"sampler": "bias", "lambda": 6.0}


class CountingHost(FakeHost):
    """Counts its batches, and may be told to die at one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0
        self.dies_at: int | None = None

    def complete(self, *args, **options):
        self.batches += 1
        if self.batches == self.dies_at:
            raise KeyboardInterrupt
        return super().complete(*args, **options)


@pytest.fixture
def host(bag_encoder) -> CountingHost:
    return CountingHost()


def arrays(found):
    unmarked, marked = found
    return [
        np.concatenate([one.perplexity, one.distinct_3, one.z, one.p_value, one.z_deleted])
        for one in (unmarked, *marked)
    ]


def test_the_measures_of_a_weak_and_of_a_strong_mark(host):
    unmarked, (weak, strong) = measure(host, [WEAK, STRONG], SAMPLE)
    assert unmarked.perplexity.shape == strong.z.shape == (1, 8)
    assert unmarked.z.size == 0
    # a bias of at most 0.1 hardly changes a text: most are the unmarked ones, word for word
    assert np.mean(weak.perplexity == unmarked.perplexity) > 0.3
    assert weak.z.mean() < 2.0  # the mean of 8 nearly standard normals, at 5 standard deviations
    assert strong.z.mean() > weak.z.mean() + 3.0
    assert strong.z_deleted.mean() < strong.z.mean()
    assert strong.p_value.mean() < weak.p_value.mean()


def test_keys_differ_and_runs_agree(host):
    sample = Sample(SAMPLE.prompts[:3], tokens=30, keys=2)
    first = measure(host, [STRONG], sample)
    assert first[1][0].z.shape == (2, 3)
    assert not np.array_equal(first[1][0].perplexity[0], first[1][0].perplexity[1])
    again = measure(host, [STRONG], sample)
    assert all(np.array_equal(a, b) for a, b in zip(arrays(first), arrays(again), strict=True))


def test_a_run_that_was_killed_goes_on_with_the_configuration_it_was_at(host, tmp_path):
    expected = arrays(measure(host, [WEAK, STRONG], SAMPLE, batch_size=4))
    assert host.batches == 6
    host.batches, host.dies_at = 0, 4  # in the second batch of the first configuration
    with pytest.raises(KeyboardInterrupt):
        measure(host, [WEAK, STRONG], SAMPLE, batch_size=4, out=tmp_path)
    files = list((tmp_path / "configurations").iterdir())
    assert len(files) == 1  # the unmarked texts, whole
    host.batches, host.dies_at = 0, None
    told = []
    found = measure(
        host,
        [WEAK, STRONG],
        SAMPLE,
        batch_size=4,
        out=tmp_path,
        progress=lambda what, done, total: told.append((done, total)),
    )
    assert host.batches == 4
    assert told[0] == (0, 24)
    assert told[-1] == (24, 24)
    assert all(np.array_equal(a, b) for a, b in zip(arrays(found), expected, strict=True))
    host.batches = 0
    measure(host, [STRONG, WEAK], SAMPLE, out=tmp_path)
    assert host.batches == 0


def test_what_decides_the_texts_decides_the_file_and_a_broken_file_is_made_again(host, tmp_path):
    def count(configurations, sample):
        host.batches = 0
        measure(host, configurations, sample, out=tmp_path)
        return host.batches

    small = Sample(SAMPLE.prompts[:2], tokens=25)
    assert count([WEAK], small) == 2
    assert count([WEAK], small) == 0
    assert count([STRONG], small) == 1
    assert count([WEAK], Sample(small.prompts, tokens=26)) == 2
    assert count([WEAK], Sample(small.prompts, tokens=25, seed=5)) == 2
    assert count([WEAK], Sample(small.prompts, tokens=25, keys=2)) == 1  # the first key's are there
    for file in (tmp_path / "configurations").iterdir():
        file.write_text(file.read_text()[:-40])
    assert count([WEAK], small) == 2


def test_files_hold_no_key(host, tmp_path):
    from dewmark.lab.tuning import _keys

    measure(host, [STRONG], Sample(SAMPLE.prompts[:2], tokens=25), out=tmp_path)
    (secret,) = (key.subkey("test").hex() for key in _keys(1))
    for file in (tmp_path / "configurations").iterdir():
        content = json.loads(file.read_text(encoding="utf-8"))
        assert set(content) == {"format", "settings", "rows"}
        assert secret not in file.read_text()


def test_what_cannot_be_measured(host):
    with pytest.raises(ConfigError, match="the grid is empty"):
        measure(host, [], SAMPLE)
    with pytest.raises(ConfigError, match="at least 2 prompts, got 1"):
        Sample(["the sea"])
    with pytest.raises(ConfigError, match="keys must be at least 1, got 0"):
        Sample(SAMPLE.prompts, keys=0)
    assert host.batches == 0


def test_distinct_and_deletion():
    assert distinct("a b c a b c", 3) == 3 / 4
    assert distinct("a b", 3) == 1.0
    text = " ".join(map(str, range(4000)))
    kept = delete_words(text, 0.3, seed=1).split(" ")
    assert abs(len(kept) / 4000 - 0.7) < 4 * np.sqrt(0.21 / 4000)
    assert kept == sorted(kept, key=int)
    assert delete_words(text, 0.3, seed=1).split(" ") == kept
    assert delete_words("word", 0.99999, seed=1) == "word"
