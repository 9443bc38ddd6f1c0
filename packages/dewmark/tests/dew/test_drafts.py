"""Drafts make the mark stronger, and over keys the text stays the host's."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import ndtri, ndtri_exp

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.dew.drafts import DraftScores, Drawn, race_moments
from dewmark.dew.noise import form_noise
from dewmark.dew.scheme import DEW
from dewmark.dew.word_step import KeyTensors, WordStates
from dewmark.sampling import RandomStreams, draft_seed
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost

CPU = torch.device("cpu")
KEYS, DRAFTS, LENGTH = 800, 2, 3
START = "the old bridge"
WORDS = [" the", " of", " water", " night"]


def bind(tmp_path):
    return DEW(m=8, strength=0.0).bind(
        Key(bytes(32)), FakeHost(400, kind="words").info, Workspace(cache=tmp_path)
    )


def test_moments_are_those_of_the_winner_s_noise() -> None:
    """Against 200,000 races; p = e^(−3) lies on the grid."""
    times = np.random.default_rng(1).exponential(size=200_000)
    mean, variance = race_moments()
    for log_p in (0.0, -0.5, -3.0, -9.0):
        x = ndtri(np.exp(-np.exp(log_p) * times))
        at = round((log_p + 30.0) * 20)
        assert mean[at] == pytest.approx(x.mean(), abs=0.01)
        assert variance[at] == pytest.approx(x.var(), abs=0.02)


def drafted(bound, tokens: list[int], logits: torch.Tensor) -> tuple[Counter, np.ndarray, np.ndarray]:
    """The texts that are kept over keys, and Σ(u + h) of drafts (KEYS, DRAFTS) and of the kept (KEYS,)."""
    rows, generator = KEYS * DRAFTS, torch.Generator().manual_seed(5)
    W = torch.randn(KEYS, *bound.own.W.shape, generator=generator)
    form = torch.randint(-(1 << 63), (1 << 63) - 1, (KEYS, 3), generator=generator)
    form[:, 2] = 0  # the message
    keys = KeyTensors(W.repeat_interleave(DRAFTS, dim=0), form.repeat_interleave(DRAFTS, dim=0))
    ids = torch.tensor(bound.host.tokenizer.encode([START])[0].ids).expand(rows, -1)
    texts, noise = WordStates(bound.word_tables(CPU), rows, k=3), RandomStreams(range(rows), device=CPU)
    texts.push(ids)
    scores = DraftScores(rows, device=CPU)
    among, last, u = torch.tensor(tokens), torch.zeros(rows, dtype=torch.long), torch.zeros(rows)
    for step in range(LENGTH):
        full = torch.full((rows, bound.host.vocab_size), -torch.inf)
        full[:, among] = logits[last]
        drawn = bound.race.drawn(full, texts, keys, [Decoding()] * rows, noise.states(step))
        chosen, last = drawn.tokens, torch.searchsorted(among, drawn.tokens)
        log_p = full.log_softmax(dim=1).gather(1, chosen.unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(drawn.log_p, log_p, rtol=1e-4, atol=1e-4)
        scores.add(drawn, torch.ones(rows, dtype=torch.bool))
        aligned = texts.align(chosen.unsqueeze(1), keys.W)
        u += aligned.u[:, 0] + form_noise(aligned.pairs, keys.form)[:, 0] * (aligned.pairs != 0)[:, 0]
        texts.push(chosen.unsqueeze(1))
        ids = torch.cat((ids, chosen.unsqueeze(1)), dim=1)
    best = scores.best(DRAFTS)
    assert (best // DRAFTS == torch.arange(KEYS)).all()
    return (Counter(map(tuple, ids[best, -LENGTH:].tolist())), u.view(KEYS, DRAFTS).numpy(), u[best].numpy())


def test_kept_drafts_fit_the_key_better_and_follow_the_host(bag_encoder, tmp_path) -> None:
    """All texts of three words; that drafts of one text share their noise shows with many more keys only."""
    bound = bind(tmp_path)
    names = bound.host.tokenizer.decode([[i] for i in range(bound.host.vocab_size)])
    tokens = sorted(names.index(piece) for piece in WORDS)
    logits = torch.randn(4, 4, generator=torch.Generator().manual_seed(4))
    kept, every, best = drafted(bound, tokens, logits)
    assert stats.ttest_1samp(best - every.mean(axis=1), 0.0, alternative="greater").pvalue < 1e-6
    shares = torch.softmax(logits.double(), dim=1).numpy()
    expected = [
        np.prod([shares[a, b] for a, b in itertools.pairwise((0, *text))])
        for text in itertools.product(range(4), repeat=LENGTH)
    ]
    counts = [kept[tuple(tokens[i] for i in t)] for t in itertools.product(range(4), repeat=LENGTH)]
    common = KEYS * np.array(expected) >= 5.0
    found, means = np.array(counts, dtype=float), KEYS * np.array(expected)
    found = np.append(found[common], found[~common].sum())
    means = np.append(means[common], means[~common].sum())
    assert stats.chisquare(found, means).pvalue > 1e-3


def test_drafts_with_more_choice_are_not_preferred() -> None:
    """Of four drafts, two with ten times the variance: they are kept in half of 4,000 cases."""
    size, rng = 4 * 4000, np.random.default_rng(3)
    scores, true = DraftScores(size, device=CPU), torch.ones(size, dtype=torch.bool)
    for _ in range(12):
        p = np.where(np.arange(size) % 2, 1e-6, 0.7)
        x = torch.from_numpy(ndtri_exp(-p * rng.exponential(size=size)))
        scores.add(Drawn(true, true, x, torch.from_numpy(np.log(p)), marked=true, begins=true), true)
    share = (scores.best(4) % 2).double().mean()
    assert float(share) == pytest.approx(0.5, abs=4.5 * 0.5 / np.sqrt(4000))


def test_what_an_ended_draft_draws_does_not_count() -> None:
    scores = DraftScores(6, device=CPU)
    noise = torch.tensor([0.0, 5.0, 1.0, 0.0, 1.0, 9.0], dtype=torch.float64)
    true = torch.ones(6, dtype=torch.bool)
    drawn = Drawn(true, true, noise, log_p=torch.zeros(6), marked=true, begins=true)
    scores.add(drawn, torch.tensor([1, 1, 1, 1, 1, 0], dtype=torch.bool))
    assert scores.best(3).tolist() == [1, 4]
    assert scores.best(3).tolist() == [0, 3]  # counting began anew


@pytest.mark.parametrize(("begins", "kept"), [(False, 1), (True, 0)])
def test_an_extension_replaces_what_the_shorter_word_scored(begins: bool, kept: int) -> None:
    """Of certain tokens x is standard normal: 5 and then 1 count as 1 in one word, as 6/√2 in two."""
    scores, true = DraftScores(2, device=CPU), torch.ones(2, dtype=torch.bool)
    for noise, live, starts in (([5.0, 2.0], [1, 1], True), ([1.0, 0.0], [1, 0], begins)):
        drawn = Drawn(
            true,
            true,
            torch.tensor(noise).double(),
            log_p=torch.zeros(2),
            marked=true,
            begins=true & starts,
        )
        scores.add(drawn, torch.tensor(live, dtype=torch.bool))
    assert scores.best(2).tolist() == [kept]


def test_first_draft_has_the_seed_of_the_text() -> None:
    assert draft_seed(7, 0) == 7
    assert len({draft_seed(seed, i) for seed in range(9) for i in range(9)}) == 81
