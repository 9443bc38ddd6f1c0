"""The default costs nothing: over keys, whole texts follow the host's distribution."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.dew.noise import InverseRoot, innovations, keyed_noise, mixture_of, roots
from dewmark.dew.race import WordRace
from dewmark.dew.reference import INDEPENDENT, TAIL, TAIL_BETA, USED_BETA
from dewmark.dew.scheme import DEW
from dewmark.dew.word_step import Aligned, KeyTensors, WordStates
from dewmark.sampling import RandomStreams
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost

CPU = torch.device("cpu")
KEYS = 2500
LENGTH = 4  # words after the first three
START = "the old bridge"
WORDS = [" the", " of", " water", " night"]
PARTS = [" a", " water", "n", "s"]  # the last two extend words


def bind(kind: str, tmp_path, m: int = 8):
    scheme = DEW().with_settings({"m": m, "strength": "exact"})
    return scheme.bind(Key(bytes(32)), FakeHost(400, kind=kind).info, Workspace(cache=tmp_path))


def random_keys(bound, count: int, generator: torch.Generator) -> KeyTensors:
    """The numbers of so many keys."""
    form = torch.randint(-(1 << 63), (1 << 63) - 1, (count, 3), generator=generator)
    form[:, 2] = 0  # the message
    return KeyTensors(torch.randn(count, *bound.own.W.shape, generator=generator), form)


def ids_of(bound, pieces) -> list[int]:
    names = bound.host.tokenizer.decode([[i] for i in range(bound.host.vocab_size)])
    return [names.index(piece) for piece in pieces]


def transitions(size: int) -> torch.Tensor:
    """Logits (size, size) of the next token given the last one."""
    return torch.randn(size, size, generator=torch.Generator().manual_seed(4))


def texts_written(bound, tokens: list[int], decoding: Decoding, race: WordRace, *, seed: int) -> Counter:
    """How often each text of ``LENGTH`` tokens is written, over keys and seeds."""
    keys = random_keys(bound, KEYS, torch.Generator().manual_seed(seed))
    start = torch.tensor(bound.host.tokenizer.encode([START])[0].ids).expand(KEYS, -1)
    texts = WordStates(bound.word_tables(CPU), KEYS, k=3)
    texts.push(start)
    noise = RandomStreams(range(seed * KEYS, (seed + 1) * KEYS), device=CPU)
    among, logits = torch.tensor(tokens), transitions(len(tokens))
    ids, last = start, torch.zeros(KEYS, dtype=torch.long)
    for step in range(LENGTH):
        scores = torch.full((KEYS, bound.host.vocab_size), -torch.inf)
        scores[:, among] = logits[last]
        chosen, sound = race(scores, texts, keys, [decoding] * KEYS, noise.states(step))
        assert sound.all()
        last = torch.searchsorted(among, chosen)
        texts.push(chosen.unsqueeze(1))
        ids = torch.cat((ids, chosen.unsqueeze(1)), dim=1)
    return Counter(map(tuple, ids[:, -LENGTH:].tolist()))


def misfit(found: Counter, tokens: list[int], decoding: Decoding) -> float:
    """p of the chi-square test that the texts follow the host's distribution."""
    from dewmark.sampling import warp

    shares = torch.softmax(warp(transitions(len(tokens)), decoding).double(), dim=1).numpy()
    observed, expected = [], []
    for text in itertools.product(range(len(tokens)), repeat=LENGTH):
        path = (0, *text)
        expected.append(np.prod([shares[a, b] for a, b in itertools.pairwise(path)]))
        observed.append(found[tuple(tokens[i] for i in text)])
    total = sum(observed)
    counts, means = np.array(observed, dtype=float), total * np.array(expected)
    assert counts[means == 0.0].sum() == 0
    rare = means < 5.0
    counts = np.append(counts[~rare], counts[rare].sum())
    means = np.append(means[~rare], means[rare].sum())
    kept = means > 0.0
    return float(stats.chisquare(counts[kept], means[kept]).pvalue)


@pytest.mark.parametrize(
    ("kind", "pieces", "decoding"),
    [
        ("words", WORDS, Decoding()),
        ("words", WORDS, Decoding(temperature=0.8, top_p=0.9)),
        ("bytes", PARTS, Decoding()),
    ],
    ids=["words", "filtered", "parts"],
)
def test_texts_follow_the_hosts_distribution_over_keys(kind, pieces, decoding, bag_encoder, tmp_path) -> None:
    """All texts of four tokens, words that repeat and words that split among them.

    As many texts as show below that steps which ignore one another are noticed.
    """
    bound = bind(kind, tmp_path)
    tokens = sorted(ids_of(bound, pieces))
    found = texts_written(bound, tokens, decoding, bound.race, seed=1)
    assert misfit(found, tokens, decoding) > 1e-3


def test_the_test_would_notice_steps_that_ignore_one_another(bag_encoder, tmp_path, monkeypatch) -> None:
    bound = bind("words", tmp_path)
    tokens = sorted(ids_of(bound, WORDS))
    monkeypatch.setattr("dewmark.dew.word_step.WordStates.remember", lambda *_, **__: None)
    found = texts_written(bound, tokens, Decoding(), bound.race, seed=0)
    assert misfit(found, tokens, Decoding()) < 1e-5


def test_noise_is_independent_over_keys_and_of_what_was_revealed(bag_encoder, tmp_path) -> None:
    """x of 20 candidates, given the step before: normal over 4,000 keys and uncorrelated with its noise."""
    bound, keys = bind("words", tmp_path, m=20), 4000
    generator = torch.Generator().manual_seed(0)
    own, mixture = random_keys(bound, keys, generator), bound.race.mixture
    ids = torch.tensor(bound.host.tokenizer.encode([START])[0].ids).expand(keys, -1)
    tables = bound.word_tables(CPU)
    texts = WordStates(tables, keys, k=3)
    texts.push(ids)
    candidates = torch.arange(4, 24).expand(keys, -1)
    drawn = []
    for _ in range(2):
        aligned = texts.align(candidates, own.W)
        uniforms = torch.rand(keys, 20, generator=generator, dtype=torch.float64)
        shares = roots(aligned, mixture)
        y = keyed_noise(aligned, uniforms, own.form, shares)
        x = innovations(aligned, y, texts.state, tables.units, shares, mixture=mixture)
        drawn.append((y[:, :8], x))
        texts.remember(
            aligned, y, torch.arange(8).expand(keys, -1), shares, free=torch.ones(keys, dtype=torch.bool)
        )
        texts.push(torch.full((keys, 1), 30))
    (before, _), (_, after) = drawn
    assert stats.kstest(after.numpy().ravel(), "norm").pvalue > 1e-3
    limit = 4.5 / np.sqrt(keys)
    together = np.corrcoef(np.concatenate((before, after), axis=1).T)
    off = ~np.eye(20, dtype=bool)
    assert np.abs(together[8:, 8:][off]).max() < limit
    assert np.abs(together[:8, 8:]).max() < limit
    raw = np.corrcoef(np.concatenate((before, aligned.u), axis=1).T)
    assert np.abs(raw[:8, 8:]).max() > 0.3


def test_noise_beyond_the_likeliest_candidates_is_normal_and_new(bag_encoder, tmp_path) -> None:
    """Only the likeliest are made independent of one another; all are so of the step before."""
    bound, keys, m = bind("words", tmp_path, m=INDEPENDENT + 8), 4000, INDEPENDENT + 8
    generator = torch.Generator().manual_seed(1)
    own, mixture = random_keys(bound, keys, generator), bound.race.mixture
    texts = WordStates(bound.word_tables(CPU), keys, k=3)
    texts.push(torch.tensor(bound.host.tokenizer.encode([START])[0].ids).expand(keys, -1))
    candidates = torch.arange(4, 4 + m).flip(0).expand(keys, -1)
    drawn = []
    for _ in range(2):
        aligned = texts.align(candidates, own.W)
        uniforms = torch.rand(keys, m, generator=generator, dtype=torch.float64)
        shares = roots(aligned, mixture)
        y = keyed_noise(aligned, uniforms, own.form, shares)
        x = innovations(aligned, y, texts.state, texts.tables.units, shares, mixture=mixture)
        drawn.append((y, x))
        texts.remember(
            aligned,
            y,
            torch.arange(m - 8, m).expand(keys, -1),
            shares,
            free=torch.ones(keys, dtype=torch.bool),
        )
        texts.push(torch.full((keys, 1), 30))
    before, after = drawn[0][0][:, -8:], drawn[1][1][:, INDEPENDENT:]
    assert aligned.rows[:, INDEPENDENT:].any()
    for candidate in after.T.numpy():
        assert stats.kstest(candidate, "norm").pvalue > 1e-4
    together = np.corrcoef(np.concatenate((before, after), axis=1).T)
    assert np.abs(together[:8, 8:]).max() < 4.5 / np.sqrt(keys)


def grams(kind: str, n: int) -> torch.Tensor:
    """Gram matrices (20, n, n) of unit vectors, float64."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(20, n, 128, generator=generator, dtype=torch.float64)
    if kind == "alike":  # cosines about 0.99
        vectors = vectors[:, :1] + 0.1 * vectors
    elif kind == "equal":  # rank one
        vectors = vectors[:, :1].expand(-1, n, -1)
    elif kind == "pairs":  # every word twice
        vectors = vectors[:, : n // 2].repeat(1, 2, 1)
    vectors = torch.nn.functional.normalize(vectors, dim=-1)
    return vectors @ vectors.mT


@pytest.mark.parametrize("kind", ["random", "alike", "equal", "pairs"])
@pytest.mark.parametrize(("alpha", "n"), [(0.95, 32), (0.5, 32), (0.95, 64), (0.99, 2)])
def test_newton_schulz_finds_the_root_of_eigenvalues(kind, alpha, n) -> None:
    """Up to float32's rounding, which the root magnifies by at most √κ; κ is the condition of A."""
    A = alpha * grams(kind, n) + (1.0 - alpha) * torch.eye(n, dtype=torch.float64)
    y = torch.randn(20, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values, vectors = torch.linalg.eigh(A)
    root = (vectors * values.rsqrt().unsqueeze(1)) @ vectors.mT
    expected = (root @ y.unsqueeze(2)).squeeze(2)
    found = InverseRoot.of(1.0 - alpha, n)(A.float(), y.float().unsqueeze(2)).squeeze(2).double()
    condition = (1.0 + (n - 1) * alpha) / (1.0 - alpha)
    allowed = 30.0 * torch.finfo(torch.float32).eps * math.sqrt(condition)
    assert float((found - expected).norm(dim=1).div(expected.norm(dim=1)).max()) < allowed


def test_roots_of_a_singular_matrix_stay_bounded() -> None:
    """With α = 1 a direction without variance, in which y has only rounding, is stretched 122-fold."""
    y = torch.randn(20, 32, generator=torch.Generator().manual_seed(1))
    found = InverseRoot.of(mixture_of(alpha=1.0, beta=0.0, strength=0.0).fresh, 32)(
        grams("equal", 32).float(), y.unsqueeze(2)
    ).squeeze(2)
    assert float(found.norm(dim=1).div(y.norm(dim=1)).max()) < 130.0


@pytest.mark.parametrize(
    ("alpha", "beta", "shares"),
    [
        (0.1, 0.0, [(0.1, 0.0), (0.1, 0.0), (0.0, 0.0), (0.0, 0.0)]),
        (0.65, 0.3, [(0.65, 0.3), (TAIL, TAIL_BETA), (0.0, USED_BETA), (0.0, 0.0)]),
        (0.2, 0.1, [(0.2, 0.1), (0.2, 0.1), (0.0, 0.3), (0.0, 0.0)]),
    ],
)
def test_no_candidate_has_more_keyed_noise_than_asked_for(alpha, beta, shares) -> None:
    """Likely ones and others with u and h, one with h alone, and one that carries no mark."""
    n = INDEPENDENT + 4
    rows, pairs = torch.ones(1, n, dtype=torch.long), torch.ones(1, n, dtype=torch.long)
    rows[:, -2:] = pairs[:, -1:] = 0
    aligned = Aligned(rows, torch.zeros(1, n, 2), torch.zeros(1, n), pairs, rows > 0, torch.zeros(1, 2, 2))
    found = torch.cat(roots(aligned, mixture_of(alpha=alpha, beta=beta, strength=0.0))).square().T
    likely, tail, used, none = shares
    expected = [likely] * INDEPENDENT + [tail] * 2 + [used, none]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_two_spellings_of_a_word_share_h(bag_encoder, tmp_path) -> None:
    """The same candidate twice: over keys their y have the correlation α + β, and their x none."""
    bound, keys = bind("words", tmp_path), 4000
    generator = torch.Generator().manual_seed(2)
    own, mixture = random_keys(bound, keys, generator), bound.race.mixture
    texts = WordStates(bound.word_tables(CPU), keys, k=3)
    texts.push(torch.tensor(bound.host.tokenizer.encode([START])[0].ids).expand(keys, -1))
    aligned = texts.align(torch.tensor([[24, 24]]).expand(keys, -1), own.W)
    assert (aligned.rows > 0).all()
    shares = roots(aligned, mixture)
    y = keyed_noise(aligned, torch.rand(keys, 2, generator=generator, dtype=torch.float64), own.form, shares)
    x = innovations(aligned, y, texts.state, texts.tables.units, shares, mixture=mixture)
    assert np.corrcoef(y.T)[0, 1] == pytest.approx(
        mixture.alpha + mixture.beta, abs=4.5 * 0.1 / np.sqrt(keys)
    )
    assert abs(np.corrcoef(x.T)[0, 1]) < 4.5 / np.sqrt(keys)
