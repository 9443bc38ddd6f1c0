"""Green lists: detection counts the tokens whose logits are raised, and bad logits are rejected."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engine_marks.toy_host import KNOWN, SPECIAL, VOCAB, ToyModel, bind

from dewmark_lab.schemes.green.green_list import GreenBound

HASHINGS = ("left", "self")
MARKERS = [
    *(("kgw", {"hashing": hashing}) for hashing in HASHINGS),
    ("unigram", {}),
    ("ewd", {}),
    ("sweet", {"threshold": 0.0}),
]
PLAIN = [i for i in range(VOCAB) if i not in SPECIAL and i < KNOWN]


def green_bound(name: str, **settings: object) -> GreenBound:
    bound = bind(name, model=ToyModel(), **settings)
    assert isinstance(bound, GreenBound)
    return bound


def raised(bound: GreenBound, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Which logits a session raises after ids (batch, length)."""
    logits = torch.randn(len(ids), VOCAB, generator=torch.Generator().manual_seed(0))
    marked = bound.session(ids, mask)(ids, logits)
    shift = marked - logits
    assert set(shift.round(decimals=4).unique().tolist()) <= {0.0, 2.0}
    return shift > 1.0


@pytest.mark.parametrize(("name", "settings"), MARKERS)
def test_detection_counts_the_tokens_whose_logits_are_raised(name: str, settings: dict[str, object]) -> None:
    """For every token of the vocabulary after three contexts."""
    bound = green_bound(name, gamma=0.3, **settings)
    ids = torch.randint(3, KNOWN, (3, 9), generator=torch.Generator().manual_seed(1))
    found = raised(bound, ids).numpy()
    windows = ids[:, 9 - bound.width :].numpy()
    for row, window in zip(found, windows, strict=True):
        tokens = np.array(PLAIN)
        contexts = bound.contexts_of(np.tile(window, (len(tokens), 1)), tokens)
        assert np.array_equal(row[PLAIN], bound.pair_scores(contexts, tokens) > 0.0)
    assert not found[:, [*SPECIAL, *range(KNOWN, VOCAB)]].any()


def test_special_tokens_count_as_absent_context() -> None:
    bound = green_bound("kgw", prefix=2)
    with_bos, without = torch.tensor([[1, 9]]), torch.tensor([[9]])
    assert torch.equal(raised(bound, with_bos), raised(bound, without))


def test_low_precision_stays_low_precision() -> None:
    for name in ("kgw", "unigram", "sweet", "morphmark"):
        ids, logits = torch.tensor([[5, 6, 7]]), torch.randn(1, VOCAB).bfloat16()
        assert green_bound(name).session(ids)(ids, logits).dtype is torch.bfloat16
