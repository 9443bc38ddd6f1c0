"""MPAC: the distribution of the winners' votes, and messages that come back."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.engine_marks.toy_host import VOCAB, bind, key, numbers, random_logits

from dewmark.decoding import Decoding
from dewmark.hosts.fake import FakeHost
from dewmark.workspace import Workspace
from dewmark_lab.schemes.green.mpac import MPAC, largest_count_pmf


@pytest.mark.parametrize(("n", "boxes"), [(1, 4), (7, 2), (12, 4), (25, 8)])
def test_distribution_of_the_fullest_box_agrees_with_simulation(n: int, boxes: int) -> None:
    """50,000 throws; every probability within 4.5 standard errors."""
    throws = np.random.default_rng(0).multinomial(n, [1.0 / boxes] * boxes, size=50_000).max(axis=1)
    pmf = largest_count_pmf(n, boxes)
    assert pmf.sum() == pytest.approx(1.0)
    for k, p in enumerate(pmf):
        assert abs((throws == k).mean() - p) <= 4.5 * math.sqrt(max(p, 1e-5) / 50_000)


@pytest.mark.parametrize("test", ["any", "message"])
def test_p_values_are_valid_over_keys(test: str) -> None:
    text = numbers(160, top=60)
    p = np.array([bind("mpac", index).detect(text, test=test).p_value for index in range(150)])
    for a in (0.01, 0.1, 0.5):
        assert (p <= a).mean() <= a + 4.5 * math.sqrt(a * (1.0 - a) / len(p))
    assert p.mean() < 0.65


@pytest.mark.parametrize(("radix", "bits"), [(2, 8), (4, 8), (8, 9)])
def test_a_message_comes_back(radix: int, bits: int, tmp_path: object) -> None:
    host, message = FakeHost(), 0b10110101
    scheme = MPAC(message=message, bits=bits, radix=radix, delta=4.0)
    bound = scheme.bind(key(1), host.info, Workspace(cache=tmp_path))
    options = Decoding(max_new_tokens=200, min_new_tokens=200)
    text = host.generate(["the old bridge"], scheme=bound, seeds=[1], decoding=options)[0].text
    assert bound.detect(text).p_value < 1e-4
    assert bound.detect(text, test="message").p_value < 1e-4
    read = bound.read(text)
    assert read.value == message
    assert read.p_values.max() < 0.2
    other = MPAC(message=3, bits=bits, radix=radix).bind(key(1), host.info, Workspace(cache=tmp_path))
    assert other.read(text).value == message  # the message is not needed to read it
    assert other.detect(text).p_value == bound.detect(text).p_value
    assert bound.read(text[:40]).votes.sum() < read.votes.sum()


def test_one_colour_gains_delta() -> None:
    bound, ids, logits = bind("mpac", delta=1.5), torch.tensor([[5, 6]]), random_logits(1, VOCAB)
    shift = (bound.session(ids)(ids, logits) - logits)[0, 3:300]
    assert set(shift.round(decimals=4).unique().tolist()) == {0.0, 1.5}
    assert abs(float((shift > 0).float().mean()) - 0.25) < 4.5 * math.sqrt(0.25 * 0.75 / 297)
