"""Unigram: one green list, and each token counts once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.engine_marks.toy_host import KNOWN, SPECIAL, VOCAB, bind, key

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.hosts.fake import FakeHost
from dewmark.workspace import Workspace
from dewmark_lab.schemes.green.green_list import Unigram


def test_list_is_fixed_and_has_no_special_tokens() -> None:
    bound = bind("unigram", gamma=0.4)
    logits = torch.randn(3, VOCAB)
    first = torch.tensor([[5, 6, 7]] * 3)
    session = bound.session(first)
    shifts = [
        session(torch.cat((first, torch.randint(3, KNOWN, (3, n))), dim=1), logits) - logits for n in range(4)
    ]
    green = shifts[0][0] > 1.0
    for shift in shifts:
        assert torch.equal(shift > 1.0, green.expand(3, -1))
    assert not green[[*SPECIAL, *range(KNOWN, VOCAB)]].any()
    # Binomial(297, 0.4) has standard deviation 8.4
    assert abs(int(green.sum()) - 0.4 * 297) < 4.5 * math.sqrt(297 * 0.4 * 0.6)
    counted = [bound.detect(str(token)).score > 0.0 for token in range(3, KNOWN)]
    assert counted == green[3:KNOWN].tolist()


def test_text_of_the_tiny_host_is_detected(tmp_path: object) -> None:
    host = FakeHost()
    bound = Unigram().bind(key(1), host.info, Workspace(cache=tmp_path))
    text = host.generate(
        ["rain over"], scheme=bound, seeds=[1], decoding=Decoding(max_new_tokens=80, min_new_tokens=80)
    )[0].text
    assert bound.detect(text).p_value < 1e-4
    shuffled = " ".join(np.random.default_rng(0).permutation(text.split()).tolist())
    assert bound.detect(" " + shuffled).p_value < 1e-4  # order does not matter


@pytest.mark.parametrize("settings", [{"gamma": 1.5}, {"delta": -1.0}])
def test_bad_parameters_are_rejected(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must"):
        Unigram(**settings)
