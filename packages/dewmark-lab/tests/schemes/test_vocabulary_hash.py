"""The pair hash over a vocabulary gives the same words with torch as with numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engine_marks.toy_host import VOCAB

from dewmark_lab.schemes import pair_hash
from dewmark_lab.schemes.pair_hash import PairHash
from dewmark_lab.schemes.vocabulary_hash import VocabularyHash, below, below_on_device, combine, to_uniforms


def test_words_on_a_device_equal_those_of_numpy() -> None:
    """The torch arithmetic of other devices, run on the CPU, against the numpy one that detection uses."""
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
            assert np.array_equal(to_uniforms(found).numpy(), pair_hash.to_uniforms(expected))
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
