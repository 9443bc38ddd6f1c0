"""A keyed order of the vocabulary: slots and reweightings against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engine_marks.toy_host import random_logits, random_words

from dewmark_lab.schemes.pair_hash import torch_uniforms
from dewmark_lab.schemes.reweight.dipmark import SLOTS, dip_factors, slot_masses, slots_of


def sorted_reweighting(p: np.ndarray, order: np.ndarray, alpha: float) -> np.ndarray:
    """The DiP reweighting of a true permutation: F'(x) = max(F − α, 0) + max(F − (1 − α), 0), differenced."""
    upto = np.cumsum(p[order])
    new = np.maximum(upto - alpha, 0.0) + np.maximum(upto - (1.0 - alpha), 0.0)
    out = np.empty_like(p)
    out[order] = np.diff(new, prepend=0.0)
    return out


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.45, 0.5, 0.8])
def test_slots_act_as_a_permutation_if_no_two_tokens_share_one(alpha) -> None:
    keyed = random_words(200, 20)
    slots = slots_of(keyed)
    alone = torch.tensor([len(set(row)) == 20 for row in slots.tolist()])
    keyed, slots, p = keyed[alone], slots[alone], random_logits(200, 20)[alone].softmax(1)
    assert len(p) > 100  # 20 tokens in 4,096 slots: 95% of the rows
    factors = dip_factors(slot_masses(p, slots), alpha).gather(1, slots)
    for row, k, f in zip(p.double().numpy(), torch_uniforms(keyed).numpy(), factors.numpy(), strict=True):
        np.testing.assert_allclose(row * f, sorted_reweighting(row, np.argsort(k), alpha), atol=1e-6)


def test_reweighted_probabilities_add_up() -> None:
    p, slots = random_logits(50, 6000).softmax(1), slots_of(random_words(50, 6000))
    factors = dip_factors(slot_masses(p, slots), 0.3)
    assert factors.shape == (50, SLOTS)
    torch.testing.assert_close(
        (p * factors.gather(1, slots)).sum(1), torch.ones(50, dtype=torch.float64), atol=1e-5, rtol=0
    )
