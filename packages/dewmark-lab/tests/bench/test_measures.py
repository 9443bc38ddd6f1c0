"""What ``dewmark bench`` times, and the numbers made of it; no test asserts a time."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dewmark.errors import UnknownNameError
from dewmark.registry import SCHEMES
from dewmark_lab.bench.measures import (
    CONFIGURATIONS,
    bench_detection,
    configuration,
    prompts,
    random_texts,
)
from dewmark_lab.bench.random_models import open_host
from dewmark_lab.bench.timing import time_tasks

NAMES = ["kgw", "dew-bias:encoder=random:32"]


@pytest.fixture(scope="module")
def host():
    return open_host("random:tiny", device="cpu")


def test_ratios_are_taken_within_rounds_and_the_first_round_is_not_counted() -> None:
    # the machine is twice as slow in every second round: ratios do not see it
    times = {"base": [99.0, 1.0, 2.0, 1.0], "slow": [0.0, 1.5, 3.0, 1.5]}
    costs = time_tasks(
        "x",
        {name: values.__getitem__ for name, values in times.items()},
        repeats=3,
        baselines={"slow": "base"},
    )
    assert costs["slow"].ratio == 1.5
    assert costs["base"].ratio is None
    assert costs["base"].fastest == 1.0
    assert costs["slow"].median == 1.5


def test_the_interval_of_a_median_ratio_covers_it_with_95_percent() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        times = np.exp(rng.normal(np.log(1.1), 0.2, size=41))
        tasks = {"base": lambda number: 1.0, "slow": times.__getitem__}
        low, high = time_tasks("x", tasks, repeats=40, baselines={"slow": "base"})["slow"].interval
        covered += low <= 1.1 <= high
    assert 0.92 < covered / 400 < 0.995
    assert time_tasks("x", tasks, repeats=5, baselines={"slow": "base"})["slow"].interval is None


def test_no_task_is_always_first() -> None:
    order: list[tuple[int, str]] = []
    tasks = {name: lambda number, name=name: order.append((number, name)) or 1.0 for name in "abc"}
    time_tasks("x", tasks, repeats=2)
    assert "".join(name for _, name in order) == "abcbcacab"


def test_every_configuration_is_valid_for_its_scheme() -> None:
    for name in CONFIGURATIONS:
        scheme, settings = configuration(name)
        SCHEMES[scheme]().with_settings(settings)
    assert configuration("kgw:gamma=0.1,delta=3")[1]["gamma"] == "0.1"
    with pytest.raises(UnknownNameError, match="did you mean"):
        configuration("kgv")


def test_texts_have_the_requested_length_and_do_not_repeat(host) -> None:
    texts = random_texts(host.tokenizer, 4, tokens=120, seed=1)
    assert texts == random_texts(host.tokenizer, 4, tokens=120, seed=1)
    assert len(set(texts) | set(random_texts(host.tokenizer, 4, tokens=120, seed=2))) == 8
    lengths = [len(cut.ids) for cut in host.tokenizer.encode(texts)]
    assert np.abs(np.array(lengths) - 120).max() <= 2
    windows = [tuple(words[i : i + 3]) for words in map(str.split, texts) for i in range(len(words) - 2)]
    assert len(set(windows)) > 0.9 * len(windows)
    assert prompts(3, first=400) != prompts(3)


def test_all_measures_have_a_row_for_every_scheme(host) -> None:
    found = list(bench_detection(host, NAMES, texts=8, tokens=40, repeats=1))
    assert {row.measure for row in found} == {"detection, a batch of 8", "detection, one by one"}
    json.dumps([row.to_dict() for row in found])
