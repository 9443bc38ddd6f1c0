"""The race between candidates and all other tokens: the same draws as the race over the whole vocabulary."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy import stats

from dewmark import sampling
from dewmark.decoding import Decoding
from dewmark.sampling import CandidateRace, RandomStreams, race, token_uniforms, warp


def random_logits(batch=6, vocab=300, seed=0, scale=3.0):
    return torch.randn(batch, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def states_of(seeds) -> torch.Tensor:
    return RandomStreams(list(seeds), device=torch.device("cpu")).states(0)


def drawn(scores: torch.Tensor, decodings: list[Decoding], m: int, seeds) -> list[int]:
    candidates = CandidateRace(scores, decodings, m)
    states = states_of(seeds)
    uniforms = candidates.uniforms(states)
    assert torch.equal(uniforms, token_uniforms(states, candidates.candidates))
    winners, sound = candidates.winners(-uniforms.log())
    return torch.where(sound, winners, -1).tolist()


@pytest.mark.parametrize(
    "decoding",
    [
        Decoding(top_k=20, temperature=0.7),
        Decoding(top_p=0.8, temperature=0.5),
        Decoding(min_p=0.05),
        Decoding(top_k=25, top_p=0.9, min_p=0.01, temperature=1.3),
        Decoding(top_p=1e-300),  # 0 in single precision
        Decoding(top_p=0.3, temperature=60.0),  # flat: hundreds of tokens are left
        Decoding(),
    ],
)
def test_the_choice_is_that_of_the_race_over_the_whole_vocabulary(decoding) -> None:
    scores = random_logits(batch=40, vocab=1000)
    expected, _ = race(
        warp(scores, decoding).double(), RandomStreams(range(40), device=scores.device).exponentials(0, 1000)
    )
    assert drawn(scores, [decoding] * 40, 64, range(40)) == expected.tolist()


@pytest.mark.parametrize(
    "decoding",
    [Decoding(), Decoding(temperature=2.0), Decoding(top_k=20), Decoding(top_p=0.95), Decoding(min_p=0.02)],
)
def test_with_few_candidates_the_distribution_is_the_same(decoding) -> None:
    """Chi-square of 3,000 draws against the warped distribution; 4 of 40 tokens are candidates."""
    scores = random_logits(batch=1, vocab=40, scale=1.0)
    p = warp(scores, decoding).softmax(dim=-1)[0].double().numpy()
    draws = drawn(scores.expand(3000, -1).clone(), [decoding] * 3000, 4, range(3000))
    counts = np.bincount(draws, minlength=40)
    assert counts[p == 0.0].sum() == 0
    kept = p > 0.0
    assert kept.sum() > 8
    assert stats.chisquare(counts[kept], 3000 * p[kept] / p.sum()).pvalue > 1e-3


def test_rows_with_different_settings_do_not_disturb_each_other() -> None:
    scores = random_logits(batch=5, vocab=400)
    decodings = [
        Decoding(),
        Decoding(top_k=3),
        Decoding(top_p=0.5),
        Decoding(temperature=5.0, top_p=0.99),
        Decoding(min_p=0.3),
    ]
    together = drawn(scores, decodings, 16, range(5))
    alone = [drawn(scores[i : i + 1], [decodings[i]], 16, [i])[0] for i in range(5)]
    assert together == alone


def test_rows_that_leave_nothing_to_choose_win_nothing() -> None:
    scores = random_logits(batch=3, vocab=100)
    scores[0] = -torch.inf
    scores[2, 5] = torch.nan
    winners = drawn(scores, [Decoding(), Decoding(), Decoding(top_p=0.9)], 16, range(3))
    assert winners[0] == winners[2] == -1
    assert winners[1] >= 0


def test_masked_tokens_are_never_drawn() -> None:
    """As a grammar leaves them: fewer tokens than candidates."""
    scores = torch.full((200, 100), -torch.inf)
    scores[:, [3, 50, 99]] = torch.tensor([0.0, 1.0, -1.0])
    assert set(drawn(scores, [Decoding()] * 200, 16, range(200))) == {3, 50, 99}


def test_only_rows_that_keep_every_candidate_are_filtered_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    filtered = Mock(wraps=sampling.filter_logits)
    monkeypatch.setattr(sampling, "filter_logits", filtered)
    scores = random_logits(batch=5, vocab=400)
    decodings = [
        Decoding(top_k=3),
        Decoding(top_p=0.1),
        Decoding(min_p=0.9),
        Decoding(),
        Decoding(top_k=17),
    ]
    CandidateRace(scores, decodings, 16)
    assert [call.args[1] for call in filtered.call_args_list] == [decodings[4]]
