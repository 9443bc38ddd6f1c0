"""Marking with green lists: what is raised is what is counted, on every row, and bad logits are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.baselines.numbers import KNOWN, SPECIAL, VOCAB, ToyModel, bind

from dewmark.baselines.green.green_list import GreenBound
from dewmark.baselines.vocabulary_hash import VocabularyHash, below, below_on_device, combine, to_uniforms
from dewmark.core import prf
from dewmark.core.prf import PairHash
from dewmark.errors import NumericalError, VocabularyError

HASHINGS = ("left", "self", "min", "skip", "additive")
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
    """Which logits a session raises after the ids (batch, length)."""
    logits = torch.randn(len(ids), VOCAB, generator=torch.Generator().manual_seed(0))
    marked = bound.session(ids, mask)(ids, logits)
    shift = marked - logits
    assert set(shift.round(decimals=4).unique().tolist()) <= {0.0, 2.0}
    return shift > 1.0


@pytest.mark.parametrize(("name", "settings"), MARKERS)
def test_what_is_raised_is_what_detection_counts(name: str, settings: dict[str, object]) -> None:
    """Every token of the vocabulary after three contexts, judged by both."""
    bound = green_bound(name, gamma=0.3, **settings)
    ids = torch.randint(3, KNOWN, (3, 9), generator=torch.Generator().manual_seed(1))
    found = raised(bound, ids).numpy()
    windows = ids[:, 9 - bound.width :].numpy()
    for row, window in zip(found, windows, strict=True):
        tokens = np.array(PLAIN)
        contexts = bound.contexts_of(np.tile(window, (len(tokens), 1)), tokens)
        assert np.array_equal(row[PLAIN], bound.pair_scores(contexts, tokens) > 0.0)
    assert not found[:, [*SPECIAL, *range(KNOWN, VOCAB)]].any()


@pytest.mark.parametrize(("name", "settings"), MARKERS)
def test_padding_does_not_reach_the_marks(name: str, settings: dict[str, object]) -> None:
    bound = green_bound(name, **settings)
    alone = [torch.tensor([row]) for row in ([9, 8, 7, 6, 5, 4], [9, 8], [5])]
    batch = torch.zeros(3, 6, dtype=torch.long)
    for i, row in enumerate(alone):
        batch[i, 6 - row.shape[1] :] = row[0]
    mask = (batch != 0).long()
    expected = torch.cat([raised(bound, row) for row in alone])
    assert torch.equal(raised(bound, batch, mask), expected)
    assert torch.equal(raised(bound, batch), expected)
    assert torch.equal(raised(bound, torch.where(mask.bool(), batch, 77), mask), expected)


def test_padding_is_remembered_while_the_text_grows() -> None:
    bound = green_bound("kgw", prefix=4)
    prompt, mask = torch.tensor([[77, 77, 5], [5, 6, 7]]), torch.tensor([[0, 0, 1], [1, 1, 1]])
    session = bound.session(prompt, mask)
    logits = torch.zeros(2, VOCAB)
    ids, short = prompt, torch.tensor([[5]])
    alone = bound.session(short)
    for token in (11, 12, 13, 14, 15):
        assert torch.equal(session(ids, logits)[0], alone(short, logits[:1])[0])
        ids = torch.cat((ids, torch.full((2, 1), token)), dim=1)
        short = torch.cat((short, torch.tensor([[token]])), dim=1)


def test_special_tokens_are_empty_places_of_a_context() -> None:
    bound = green_bound("kgw", prefix=2)
    with_bos, without = torch.tensor([[1, 9]]), torch.tensor([[9]])
    assert torch.equal(raised(bound, with_bos), raised(bound, without))


def test_other_vocabularies_and_nan_are_refused() -> None:
    session = green_bound("kgw").session(torch.tensor([[5, 6, 7]]))
    with pytest.raises(VocabularyError, match="321 logits"):
        session(torch.tensor([[5, 6, 7]]), torch.zeros(1, VOCAB + 1))
    logits = torch.zeros(1, VOCAB)
    logits[0, 9] = float("nan")
    with pytest.raises(NumericalError, match="NaN"):
        session(torch.tensor([[5, 6, 7]]), logits)


def test_low_precision_stays_low_precision() -> None:
    for name in ("kgw", "unigram", "sweet", "morphmark"):
        ids, logits = torch.tensor([[5, 6, 7]]), torch.randn(1, VOCAB).bfloat16()
        assert green_bound(name).session(ids)(ids, logits).dtype is torch.bfloat16


def test_words_on_a_device_are_those_of_numpy() -> None:
    """The arithmetic that other devices use, run here, against the one that scores."""
    pairs = PairHash(bytes(range(32)), VOCAB)
    vocabulary = VocabularyHash(pairs)
    contexts = torch.randint(0, VOCAB, (4, 3), generator=torch.Generator().manual_seed(0))
    candidates = torch.randint(0, VOCAB, (4, 50), generator=torch.Generator().manual_seed(1))
    for chosen in (None, candidates):
        ids = torch.arange(VOCAB).expand(4, VOCAB) if chosen is None else chosen
        expected = np.stack(
            [
                pairs.words(np.tile(c, (len(t), 1)), t)
                for c, t in zip(contexts.numpy(), ids.numpy(), strict=True)
            ]
        )
        for found in (vocabulary.words(contexts, chosen), vocabulary.words_on_device(contexts, chosen)):
            assert found.dtype is torch.int32
            assert np.array_equal(found.numpy().view(np.uint32), expected)
            assert np.array_equal(to_uniforms(found).numpy(), prf.to_uniforms(expected))
    seeds = torch.from_numpy(pairs.seeds(contexts.numpy()).view(np.int32))
    table = torch.from_numpy(pairs.token_words.view(np.int32)).unsqueeze(0)
    assert torch.equal(combine(seeds[:, :1], seeds[:, 1:], table), vocabulary.words(contexts))


@pytest.mark.parametrize("limit", [1, 2**30, 2**31, 3 * 2**30, 2**32 - 1])
def test_comparisons_are_unsigned(limit: int) -> None:
    words = torch.tensor([[0, 1, 2**31 - 1, -(2**31), -1]], dtype=torch.int32)
    expected = [x < limit for x in (0, 1, 2**31 - 1, 2**31, 2**32 - 1)]
    limits = np.array([[limit]], dtype=np.uint32)
    assert below(words, limits)[0].tolist() == expected
    assert below_on_device(words, limits)[0].tolist() == expected
