"""The mathematics of reweighting: races, slots and tournaments against their definitions, written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dewmark.baselines.distortion_free import support
from dewmark.baselines.keyed_sampling.exp import _BOUND, keyed_race
from dewmark.baselines.keyed_sampling.synthid import tournament
from dewmark.baselines.reweight.keyed_order import SLOTS, delta_factors, dip_factors, slot_masses, slots_of
from dewmark.baselines.vocabulary_hash import to_uniforms
from dewmark.sampling import race

GENERATOR = torch.Generator()


def words(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    GENERATOR.manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (rows, width), generator=GENERATOR).to(torch.int32)


def logits(rows: int, width: int, *, scale: float = 2.0, seed: int = 1) -> torch.Tensor:
    GENERATOR.manual_seed(seed)
    return scale * torch.randn(rows, width, generator=GENERATOR)


@pytest.mark.parametrize("scale", [0.0, 1.0, 3.0])
def test_the_short_race_has_the_winner_of_the_full_one(scale) -> None:
    """Also where the distribution is flat and the few looked at do not decide."""
    scores, keyed = logits(64, 5000, scale=scale), words(64, 5000)
    expected, _ = race(scores.double(), to_uniforms(keyed).log_().neg_())
    chosen, sound = keyed_race(scores, keyed)
    assert torch.equal(chosen, expected)
    assert bool(sound.all())


def test_no_token_left_out_of_the_race_can_reach_its_bound() -> None:
    assert math.exp(-8.0) / -math.log1p(-(2.0**-8)) < _BOUND


def test_a_row_without_tokens_is_said_to_be_unsound() -> None:
    scores = logits(3, 50)
    scores[1] = -math.inf
    assert keyed_race(scores, words(3, 50))[1].tolist() == [True, False, True]


def sorted_reweighting(p: np.ndarray, order: np.ndarray, alpha: float) -> np.ndarray:
    """The DiP reweighting of a true permutation: F'(x) = max(F − α, 0) + max(F − (1 − α), 0), differenced."""
    upto = np.cumsum(p[order])
    new = np.maximum(upto - alpha, 0.0) + np.maximum(upto - (1.0 - alpha), 0.0)
    out = np.empty_like(p)
    out[order] = np.diff(new, prepend=0.0)
    return out


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.45, 0.5, 0.8])
def test_slots_are_a_permutation_where_no_two_tokens_share_one(alpha) -> None:
    keyed = words(200, 20)
    slots = slots_of(keyed)
    alone = torch.tensor([len(set(row)) == 20 for row in slots.tolist()])
    keyed, slots, p = keyed[alone], slots[alone], logits(200, 20)[alone].softmax(1)
    assert len(p) > 100  # 20 tokens in 4,096 slots: 95% of the rows
    factors = dip_factors(slot_masses(p, slots), alpha).gather(1, slots)
    for row, k, f in zip(p.double().numpy(), to_uniforms(keyed).numpy(), factors.numpy(), strict=True):
        np.testing.assert_allclose(row * f, sorted_reweighting(row, np.argsort(k), alpha), atol=1e-6)


def test_delta_takes_the_slot_that_holds_the_number() -> None:
    p, slots = logits(100, 30).softmax(1), slots_of(words(100, 30))
    masses = slot_masses(p, slots)
    u = torch.rand(100, 1, generator=GENERATOR.manual_seed(3), dtype=torch.float64)
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
    p, slots = logits(50, 6000).softmax(1), slots_of(words(50, 6000))
    masses = slot_masses(p, slots)
    u = torch.rand(50, 1, generator=GENERATOR.manual_seed(3), dtype=torch.float64)
    factors = dip_factors(masses, 0.3) if reweighting == "dip" else delta_factors(masses, u)
    assert factors.shape == (50, SLOTS)
    torch.testing.assert_close(
        (p * factors.gather(1, slots)).sum(1), torch.ones(50, dtype=torch.float64), atol=1e-5, rtol=0
    )


def plain_tournament(p: torch.Tensor, bits: torch.Tensor, leaves: int) -> torch.Tensor:
    """Layer by layer over all tokens: p (batch, m), bits (batch, m, depth)."""
    for layer in range(bits.shape[2]):
        g = bits[:, :, layer].double()
        G = (g * p).sum(1, keepdim=True)
        win = (1.0 - (1.0 - G) ** leaves) / G.clamp(min=1e-300)
        p = p * torch.where(g > 0, win, (1.0 - G) ** (leaves - 1))
    return p


@pytest.mark.parametrize(("depth", "leaves"), [(1, 2), (7, 2), (30, 2), (32, 2), (30, 3), (12, 5)])
def test_ten_layers_at_once_are_the_layers_one_by_one(depth, leaves) -> None:
    p, keyed = logits(8, 300).softmax(1), words(8, 300)
    bits = (keyed.unsqueeze(2) >> torch.arange(depth)) & 1
    expected = plain_tournament(p.double(), bits, leaves)
    torch.testing.assert_close(
        tournament(p, keyed, depth=depth, leaves=leaves).double(), expected, atol=1e-6, rtol=1e-4
    )
    assert float((expected - p).abs().max()) > 0.05


def test_a_tournament_of_two_is_a_match_of_two_draws() -> None:
    """One layer, by hand: draw two tokens, the one with bit 1 wins, ties are drawn."""
    p, keyed = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0, 1, 1]], dtype=torch.int32)
    expected = [0.5 * 0.5, 0.3 * (2.0 - 0.5), 0.2 * (2.0 - 0.5)]
    assert tournament(p, keyed, depth=1)[0].tolist() == pytest.approx(expected)


def test_the_support_holds_every_token_that_has_a_chance() -> None:
    scores = logits(4, 1000)
    assert support(scores) is None
    cut = torch.full_like(scores, -math.inf)
    for row, width in enumerate((3, 40, 1, 17)):
        top = scores[row].topk(width).indices
        cut[row, top] = scores[row, top]
    few = support(cut)
    assert few.shape == (4, 40)
    for row in range(4):
        assert set(torch.isfinite(cut[row]).nonzero()[:, 0].tolist()) <= set(few[row].tolist())
    assert support(torch.full((2, 1000), -math.inf)) is None
