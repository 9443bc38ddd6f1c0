"""A keyed order of the vocabulary: slots and reweightings against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engine_marks.toy_host import random_logits, random_words

from dewmark_lab.schemes.reweight.keyed_order import SLOTS, delta_factors, dip_factors, slot_masses, slots_of
from dewmark_lab.schemes.vocabulary_hash import to_uniforms


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
    for row, k, f in zip(p.double().numpy(), to_uniforms(keyed).numpy(), factors.numpy(), strict=True):
        np.testing.assert_allclose(row * f, sorted_reweighting(row, np.argsort(k), alpha), atol=1e-6)


def test_delta_takes_the_slot_that_contains_the_number() -> None:
    p, slots = random_logits(100, 30).softmax(1), slots_of(random_words(100, 30))
    masses = slot_masses(p, slots)
    u = torch.rand(100, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    factors = delta_factors(masses, u)
    upto = masses.cumsum(1)
    chosen = factors.argmax(1, keepdim=True)
    assert bool(
        ((upto.gather(1, chosen) > u) & (upto.gather(1, chosen) - masses.gather(1, chosen) <= u)).all()
    )
    torch.testing.assert_close((factors * masses).sum(1), torch.ones(100, dtype=torch.float64))
    ends = torch.tensor([[2.0**-33], [1.0 - 2.0**-33]], dtype=torch.float64)
    assert bool(torch.isfinite(delta_factors(masses[:2], ends)).all())


@pytest.mark.parametrize("reweighting", ["dip", "delta"])
def test_reweighted_probabilities_add_up(reweighting) -> None:
    p, slots = random_logits(50, 6000).softmax(1), slots_of(random_words(50, 6000))
    masses = slot_masses(p, slots)
    u = torch.rand(50, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    factors = dip_factors(masses, 0.3) if reweighting == "dip" else delta_factors(masses, u)
    assert factors.shape == (50, SLOTS)
    torch.testing.assert_close(
        (p * factors.gather(1, slots)).sum(1), torch.ones(50, dtype=torch.float64), atol=1e-5, rtol=0
    )
