"""Green lists: detection counts the tokens whose logits are raised, and bad logits are rejected."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.engine_marks.toy_host import KNOWN, SPECIAL, VOCAB, ToyModel, bind

from dewmark_lab.schemes.green.green_list import GreenBound
from dewmark_lab.schemes.green.morphmark import BoundMorphMark

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
