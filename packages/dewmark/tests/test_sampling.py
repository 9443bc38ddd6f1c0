"""Random streams, filters and the race draw from the distribution that they should."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy import stats
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from dewmark import sampling
from dewmark.decoding import Decoding
from dewmark.mark import ChoosingSession, Writer, draw
from dewmark.sampling import (
    RandomStreams,
    filter_logits,
    left_padding,
    likeliest,
    race,
    race_of_few,
    race_of_top_k,
    warp,
)


def random_logits(batch=4, vocab=300, seed=0, scale=3.0):
    return torch.randn(batch, vocab, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("top_k", [1, 5, 299, 1000])
def test_top_k_equals_transformers(top_k):
    scores = random_logits()
    assert torch.equal(filter_logits(scores, Decoding(top_k=top_k)), TopKLogitsWarper(top_k)(None, scores))


def test_top_k_keeps_ties_like_transformers():
    scores = torch.tensor([[3.0, 2.0, 2.0, 2.0, 1.0]])
    assert torch.equal(filter_logits(scores, Decoding(top_k=2)), TopKLogitsWarper(2)(None, scores))
    assert torch.isfinite(filter_logits(scores, Decoding(top_k=2))).sum() == 4


@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_top_p_equals_transformers(top_p):
    scores = random_logits()
    assert torch.equal(filter_logits(scores, Decoding(top_p=top_p)), TopPLogitsWarper(top_p)(None, scores))


def test_top_p_of_a_large_vocabulary_equals_transformers():
    peaked, flat = random_logits(vocab=5000, scale=6.0), random_logits(vocab=5000, seed=1, scale=0.5)
    scores = torch.cat((peaked, flat, peaked - torch.inf))
    scores[-1, :3] = torch.tensor([1.0, 3.0, 2.0])  # the others were filtered before
    kept = torch.isfinite(filter_logits(scores[:-4], Decoding(top_p=0.9)))
    assert torch.equal(kept, torch.isfinite(TopPLogitsWarper(0.9)(None, scores[:-4])))
    assert kept[:4].sum(dim=1).max() < 1000 < kept[4:].sum(dim=1).min()  # more than are sorted first
    kept = torch.isfinite(filter_logits(scores[-1:], Decoding(top_p=0.7)))
    assert kept[0].nonzero().flatten().tolist() == [1, 2]


def test_top_p_keeps_ties_together():
    scores = torch.tensor([[3.0, 2.0, 2.0, 2.0, 1.0]])
    assert torch.isfinite(filter_logits(scores, Decoding(top_p=0.5))).sum() == 4


def test_the_likeliest_token_survives_any_top_p() -> None:
    scores = torch.tensor([[0.0, 3.0, 1.0]])
    assert torch.isfinite(filter_logits(scores, Decoding(top_p=1e-300))).tolist() == [[False, True, False]]


def drawn(scores, decoding):
    return draw(scores, decoding, RandomStreams(range(len(scores)), device=torch.device("cpu")), 0)


def test_the_race_samples_from_the_warped_distribution():
    scores = random_logits(batch=1, vocab=50, scale=1.0)
    warped = TemperatureLogitsWarper(0.7)(None, scores)
    warped = TopPLogitsWarper(0.8)(None, TopKLogitsWarper(20)(None, warped))
    expected = warped.double().softmax(-1)[0].numpy()
    count = 8_000
    ids, fine = drawn(scores.expand(count, -1), Decoding(temperature=0.7, top_k=20, top_p=0.8))
    visits = np.bincount(ids.numpy(), minlength=50)
    assert fine.all()
    assert (expected > 0).sum() >= 5
    assert visits[expected == 0].sum() == 0
    assert stats.chisquare(visits[expected > 0], count * expected[expected > 0]).pvalue > 0.001


ROWS = {
    "peaked": random_logits(batch=200, vocab=5_000, scale=2.0),
    "tied": random_logits(batch=200, vocab=5_000, scale=2.0).round(),  # dozens with the 20th
    "flat": random_logits(batch=200, vocab=5_000, scale=0.1),  # more than 1,024 are left
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize(
    "filters",
    [{"top_k": k, "top_p": 0.95, "min_p": 0.01} for k in (1, 20, 128)] + [{"top_p": 0.9}, {"min_p": 0.05}],
)
def test_a_race_of_few_has_the_winner_of_the_race_of_all(filters: dict[str, Any], kind: str) -> None:
    scores = ROWS[kind]
    decoding = Decoding(temperature=0.7, **filters)
    noise = RandomStreams(range(len(scores)), device=torch.device("cpu"))
    ids, fine = race(warp(scores, decoding), noise.exponentials(0, scores.shape[1]))
    assert fine.all()
    assert torch.equal(drawn(scores, decoding)[0], ids)


def test_random_numbers_are_those_of_splitmix64():
    state = int(np.random.Philox(9).random_raw(3)[2])
    actual = RandomStreams([9], device=torch.device("cpu")).exponentials(2, 5)[0]
    for value in actual.tolist():
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        z ^= z >> 31
        assert value == pytest.approx(-np.log(((z >> 12) + 0.5) / 2**52), rel=1e-12)


def test_random_numbers_are_exponential_and_independent_of_row_and_step():
    streams = RandomStreams([1, 2], device=torch.device("cpu"))
    first, second = streams.exponentials(0, 20_000), streams.exponentials(1, 20_000)
    for row in (first[0], first[1], second[0]):
        assert stats.kstest(row.numpy(), "expon").pvalue > 0.001
    assert abs(np.corrcoef(first[0], first[1])[0, 1]) < 0.03
    assert abs(np.corrcoef(first[0], second[0])[0, 1]) < 0.03
    assert abs(np.corrcoef(first[0][1:], first[0][:-1])[0, 1]) < 0.03


def test_rounding_of_logits_hardly_ever_changes_the_winner():
    scores = random_logits(batch=400, vocab=10_000, scale=1.5)
    moved = scores + 1e-3 * torch.randn(scores.shape, generator=torch.Generator().manual_seed(1))
    changed = int((drawn(scores, Decoding())[0] != drawn(moved, Decoding())[0]).sum())
    assert changed <= 3  # inverting the cumulative distribution changes about 40 of these 400


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.5}])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_logits_are_flagged_in_their_row_only(settings, value):
    scores = random_logits(batch=3, vocab=10)
    scores[1, 4] = value
    ids, fine = drawn(scores, Decoding(**settings))
    assert fine.tolist() == [True, False, True]
    assert ids.max() < 10


def test_no_token_left_is_flagged():
    _, fine = drawn(torch.full((1, 4), -float("inf")), Decoding())
    assert not fine.any()


def test_a_row_has_its_own_stream_whatever_the_batch_and_the_length():
    both = RandomStreams([11, 12], device=torch.device("cpu")).exponentials(7, 30)
    alone = RandomStreams([12], device=torch.device("cpu")).exponentials(7, 40)
    assert torch.equal(both[1], alone[0, :30])
    assert not torch.equal(both[0], both[1])
    assert both.dtype == torch.float64
    assert ((both > 0) & torch.isfinite(both)).all()


@pytest.mark.parametrize("finite", [0, 1, 8])
@pytest.mark.parametrize("vocab", [305, 999, 1000])
def test_the_likeliest_tokens_are_tokens_even_where_none_is_possible(vocab, finite):
    """The vocabulary is padded for the search, and -inf wins over nothing: no padding may be returned."""
    scores = torch.full((64, vocab), -float("inf"))
    ids = torch.stack([torch.randperm(vocab, generator=torch.Generator().manual_seed(i)) for i in range(64)])
    scores.scatter_(1, ids[:, :finite], 1.0 + torch.arange(finite, dtype=torch.float32).expand(64, -1))
    for m in (9, vocab // 40):
        values, found = likeliest(scores, m)
        assert ((found >= 0) & (found < vocab)).all()
        assert torch.equal(values, scores.sort(dim=1, descending=True).values[:, :m])


class FirstOrSecond(ChoosingSession):
    """A mark that takes the likelier token at even lengths of the text, and the other at odd ones."""

    def choose(self, input_ids, scores, decoding):
        ids = scores.argsort(dim=1, descending=True)[:, input_ids.shape[1] % 2]
        return ids, torch.ones(len(ids), dtype=torch.bool)


def test_spared_tokens_are_drawn_with_numbers_that_the_mark_does_not_use():
    """Otherwise they would tell it, and a mark drawn with the same seeds would repeat them."""
    seeds, scores = range(400), random_logits(batch=400, vocab=50, scale=0.0)
    ids = torch.zeros((400, 0), dtype=torch.long)
    everything = Mock(exempts=lambda decoding: False, spares=lambda rows: [True] * len(rows), unmarked_ids=())
    writer = Writer(FirstOrSecond(), ids, seeds=seeds, final=True, exemptions=everything)
    spared, _ = writer.draw(ids, scores, Decoding())
    marks_own, _ = draw(scores, Decoding(), RandomStreams(seeds, device=torch.device("cpu")), 0)
    assert int((spared == marks_own).sum()) < 8 + 3.5 * np.sqrt(8)  # 1 in 50, by chance


def test_only_rows_that_keep_many_tokens_are_sorted_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    least = Mock(wraps=sampling._least_kept)
    monkeypatch.setattr(sampling, "_least_kept", least)
    filter_logits(ROWS["peaked"], Decoding(top_p=0.5))
    filter_logits(random_logits(scale=0.1), Decoding(top_p=0.9))  # the few are the whole vocabulary
    assert [call.args[0].shape for call in least.call_args_list] == [(200, 1024), (4, 300)]
    mixed = torch.cat((ROWS["flat"][:2], ROWS["peaked"]))
    filter_logits(mixed, Decoding(top_p=0.5))
    assert [call.args[0].shape for call in least.call_args_list[2:]] == [(202, 1024), (2, 5_000)]


def test_a_race_of_few_is_one_only_where_no_others_are_left() -> None:
    decoding = Decoding(top_k=20)
    states = RandomStreams(range(200), device=torch.device("cpu")).states(0)
    assert race_of_few(warp(ROWS["peaked"], decoding), states) is not None
    assert race_of_few(warp(ROWS["flat"], Decoding(top_p=0.9)), states) is None
    assert race_of_top_k(ROWS["peaked"], decoding, states) is not None
    assert race_of_top_k(ROWS["flat"], decoding, states) is not None
    assert race_of_top_k(ROWS["tied"], decoding, states) is None  # too many tie with the 20th
    assert race_of_top_k(ROWS["peaked"], Decoding(top_p=0.1), states) is None
    assert race_of_few(random_logits(batch=200), states) is not None  # no others are there


@pytest.mark.parametrize(
    ("pad_id", "mask", "padding"),
    [
        (0, None, [2, 0, 1]),  # a later 0 is part of the text
        (None, None, [0, 0, 0]),
        (0, [[0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]], [1, 0, 3]),
        (None, [[0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]], [1, 0, 3]),
    ],
)
def test_padding_is_what_the_mask_leaves_out_or_a_run_of_the_padding_token(
    pad_id: int | None, mask: list[list[int]] | None, padding: list[int]
) -> None:
    ids = torch.tensor([[0, 0, 5, 6], [5, 0, 6, 0], [0, 7, 7, 7]])
    found = left_padding(ids, None if mask is None else torch.tensor(mask), pad_id=pad_id)
    assert found.tolist() == [[each] for each in padding]
    assert left_padding(ids[:, :0], None, pad_id=pad_id).tolist() == [[0]] * 3
