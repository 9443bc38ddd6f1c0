"""EXP: the keyed race against its definition, and sessions that choose the token."""

from __future__ import annotations

import math

import torch
from tests.schemes.toy_host import VOCAB, bind, random_words, raw_logits

from dewmark.decoding import Decoding
from dewmark.sampling import RandomStreams, race
from dewmark_lab.schemes.keyed_sampling.exp import keyed_race


def test_row_without_usable_logits_is_unsound() -> None:
    scores = raw_logits(3, 50)
    scores[1] = -math.inf
    assert keyed_race(scores, random_words(3, 50))[1].tolist() == [True, False, True]


def test_session_leaves_only_the_winner_finite() -> None:
    ids, logits = torch.tensor([[50, 60, 70], [51, 60, 70]]), raw_logits(2, VOCAB)
    bound = bind("exp")
    chosen, sound = bound.session(ids).choose(ids, logits, Decoding())
    assert sound.tolist() == [True, True]
    marked = bound.session(ids)(ids, logits)
    assert torch.isfinite(marked).nonzero().tolist() == [[0, int(chosen[0])], [1, int(chosen[1])]]


def test_repeated_contexts_are_drawn_with_the_noise_of_the_row() -> None:
    """The host would draw them with the same numbers. With repeats="keep" the key chooses again."""
    ids, logits = torch.tensor([[5, 6, 7]]), raw_logits(1, VOCAB)
    skip, keep = (bind("exp", repeats=repeats).session(ids, seeds=[3]) for repeats in ("skip", "keep"))
    noise = RandomStreams([3], device=torch.device("cpu"))
    first = skip.choose(ids, logits, Decoding())[0]
    for step in range(1, 4):
        expected, _ = race(logits, noise.exponentials(step, VOCAB))
        assert torch.equal(skip.choose(ids, logits, Decoding())[0], expected)
        assert torch.equal(keep.choose(ids, logits, Decoding())[0], first)
