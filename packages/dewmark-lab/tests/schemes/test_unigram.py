"""Unigram: one green list, and each token counts once."""

from __future__ import annotations

import math

import torch
from tests.engine_marks.toy_host import KNOWN, SPECIAL, VOCAB, bind


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
