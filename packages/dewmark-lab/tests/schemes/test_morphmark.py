"""MorphMark: how much probability moves, from which tokens to which, row by row."""

from __future__ import annotations

import math

import pytest
import torch
from tests.engine_marks.toy_host import KNOWN, SPECIAL, VOCAB, bind

from dewmark_lab.schemes.green.morphmark import BoundMorphMark

OTHER = [*SPECIAL, *range(KNOWN, VOCAB)]
FORMS = {
    "linear": lambda P: 1.55 * P,
    "exponential": lambda P: math.expm1(1.3 * P),
    "logarithmic": lambda P: math.log1p(2.15 * P),
}


def morph(logits: torch.Tensor, **settings: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Probabilities before and after, and which tokens are green, all (batch, vocab)."""
    bound = bind("morphmark", **settings)
    assert isinstance(bound, BoundMorphMark)
    ids = torch.arange(5, 5 + len(logits)).unsqueeze(1)
    session = bound.session(ids)
    return logits.double().softmax(-1), session(ids, logits).double().softmax(-1), session.green(ids)


def some_logits(rows: int) -> torch.Tensor:
    return 3.0 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("form", FORMS)
def test_moved_share_of_red_mass_is_the_papers(form: str) -> None:
    """In each row r P_R of mass moves from red to green in proportion, and nothing else changes."""
    before, after, green = morph(some_logits(30), form=form)
    other = torch.zeros(VOCAB, dtype=torch.bool)
    other[OTHER] = True
    masses = set()
    for p, q, g in zip(before, after, green, strict=True):
        P_G, P_R = float(p[g].sum()), float(p[~g & ~other].sum())
        r = min(FORMS[form](P_G), 1.0) if P_G >= 0.15 else 0.0
        masses.add(round(P_G, 2))
        assert torch.allclose(q[other], p[other], rtol=1e-4, atol=1e-9)
        assert torch.allclose(q[g], p[g] * (1.0 + r * P_R / P_G), rtol=1e-4, atol=1e-9)
        assert torch.allclose(q[~g & ~other], p[~g & ~other] * (1.0 - r), rtol=1e-2, atol=2e-6)
    assert len(masses) > 15  # rows differ in their green mass


def test_rows_with_little_green_mass_are_left_alone() -> None:
    logits = some_logits(20)
    before, after, green = morph(logits, p0=0.5)
    light = (before * green).sum(dim=1) < 0.5
    assert 0 < int(light.sum()) < 20
    assert torch.allclose(after[light], before[light], rtol=1e-5)
    assert not torch.allclose(after[~light], before[~light], rtol=1e-2)


def test_row_without_green_or_red_tokens_survives() -> None:
    _, _, green = morph(some_logits(1))
    for keep in (green[0], ~green[0]):
        logits = torch.where(keep, some_logits(1), torch.tensor(-math.inf))
        for p0 in (0.0, 0.15):
            before, after, _ = morph(logits, p0=p0)
            assert torch.allclose(after, before, atol=1e-4)
