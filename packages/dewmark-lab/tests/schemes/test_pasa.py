"""PASA: clusters, a distortion-free coupling, and tests that hold whatever the model says."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.schemes.toy_host import HOST, VOCAB, ToyModel, key, numbers

from dewmark.capabilities import evidence_of
from dewmark.detect import score_text
from dewmark.errors import ConfigError, VocabularyError
from dewmark.stats.evidence import Evidence
from dewmark.stats.scan import Units, restrict
from dewmark.workspace import HostInfo, Workspace
from dewmark_lab.schemes.host_reading import weighted_bernoulli_pmf
from dewmark_lab.schemes.keyed_sampling.pasa import (
    PASA,
    MatchEvidence,
    auxiliary_distribution,
    masses_of,
    token_clusters,
)
from dewmark_lab.testing.checks import expect_valid

KEYS = 80
RNG = np.random.default_rng(5)
# ten directions with noise, so that there is something to find
CENTRES = RNG.normal(size=(10, 16))
TABLE = (CENTRES[np.arange(VOCAB) % 10] + 0.2 * RNG.normal(size=(VOCAB, 16))).astype(np.float32)
PASA_HOST: HostInfo = dataclasses.replace(HOST, identity="clustered", embeddings=lambda: TABLE)


class Frozen:
    """A model whose logits are unrelated to the text."""

    def __init__(self, *, vocab: int = VOCAB, scale: float = 2.0) -> None:
        self.asked: list[int] = []
        self._vocab, self._scale = vocab, scale

    def next_logits(self, prompts, completions):
        self.asked.append(len(completions))
        for ids in completions:
            generator = torch.Generator().manual_seed(len(ids))
            yield self._scale * torch.randn(len(ids), self._vocab, generator=generator)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pasa")


def bind(cache: Path, index: int = 0, *, model=None, **settings):
    workspace = Workspace(cache=cache, open_host=None if model is None else lambda name: model)
    return PASA(**{"clusters": 10, **settings}).bind(key(index), PASA_HOST, workspace)


def test_clusters_are_those_of_the_embeddings(cache: Path) -> None:
    clusters = token_clusters(PASA_HOST, 10, Workspace(cache=cache))
    known = np.arange(3, 300)
    assert (clusters[[0, 1, 2, 300, 319]] == 10).all()
    # k-means may split one direction and join two; most tokens are grouped correctly
    same = clusters[known][:, None] == clusters[known][None, :]
    truth = known[:, None] % 10 == known[None, :] % 10
    assert (same == truth).mean() > 0.9


def test_auxiliary_distribution_sums_to_one() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1)) * 3
    clusters = (torch.arange(50) % 4).expand(6, -1)
    masses = masses_of(logits, clusters, 4)
    torch.testing.assert_close(masses.sum(dim=1), torch.ones(6))
    assert (masses[:, 4] == 0).all()
    for alpha in (0.1, 0.5, 1.0):
        pmf = auxiliary_distribution(masses, alpha)
        torch.testing.assert_close(pmf.sum(dim=1), torch.ones(6))
        assert float(pmf[:, :-1].max()) <= alpha + 1e-6


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0])
def test_over_keys_the_next_token_follows_the_host(cache: Path, alpha: float) -> None:
    """Probabilities in [0, 1] of mean p: their mean over K keys is within 4.5·√(p(1−p)/K) of it."""
    ids = torch.tensor([[5, 6, 7, 8]])
    logits = 2.0 * torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(3))
    count = 150
    marked = torch.stack(
        [bind(cache, i, alpha=alpha).session(ids)(ids, logits).softmax(dim=1)[0] for i in range(count)]
    ).double()
    expected = logits.double().softmax(dim=1)[0]
    margin = 4.5 * (expected * (1 - expected) / count).sqrt() + 1e-6
    assert ((marked.mean(dim=0) - expected).abs() <= margin).all()


def test_only_one_cluster_is_left(cache: Path) -> None:
    """With α = 1 the key leaves one cluster, with the host's probabilities within it."""
    bound, ids = bind(cache, alpha=1.0), torch.tensor([[5, 6, 7, 8]])
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(4))
    marked = bound.session(ids)(ids, logits)[0]
    alive = torch.isfinite(marked)
    assert len(set(bound.clusters[alive.numpy()])) == 1
    torch.testing.assert_close(marked[alive], logits[0, alive])


def test_repeated_history_is_left_to_the_host(cache: Path) -> None:
    bound, logits = bind(cache, history=2), torch.zeros(1, VOCAB)
    twin = int(np.flatnonzero(bound.clusters == bound.clusters[40])[-1])  # another token of the same cluster
    session = bound.session(torch.tensor([[5]]))
    first = session(torch.tensor([[5, 40, 50]]), logits)
    again = session(torch.tensor([[5, 40, 50, 9, twin, 50]]), logits)
    assert not torch.equal(first, logits)
    assert torch.equal(again, logits)


def test_distribution_of_weighted_matches_agrees_with_all_outcomes() -> None:
    levels, chances = np.array([3, 0, 1, 2, 3]), np.array([0.1, 0.5, 0.9, 0.3, 0.02])
    expected = np.zeros(levels.sum() + 1)
    for outcome in itertools.product([0, 1], repeat=5):
        expected[levels @ outcome] += np.prod(np.where(outcome, chances, 1 - chances))
    np.testing.assert_allclose(weighted_bernoulli_pmf(levels, chances), expected, atol=1e-15)
    equal = weighted_bernoulli_pmf(np.full(50, 4), np.full(50, 0.5))
    assert equal[::4] == pytest.approx([math.comb(50, k) / 2.0**50 for k in range(51)], rel=1e-12)


@pytest.mark.parametrize(("kind", "scale"), [("random", 4.0), ("a loop", 1.0)])
@pytest.mark.parametrize("test", ["weighted", "count", "race"])
def test_p_values_are_exact_whatever_the_model_says(cache: Path, kind: str, scale: float, test: str) -> None:
    """Even if the model did not write the text."""
    text = {"random": numbers(120), "a loop": " ".join([numbers(13, seed=2)] * 9)}[kind]
    model = Frozen(scale=scale)
    workspace = Workspace(cache=cache, open_host=lambda name: model)
    keys = [key(i) for i in range(KEYS)]
    bounds = list(PASA(clusters=10).bind_keys(keys, PASA_HOST, workspace))
    readings = bounds[0].read(*map(bounds[0].tokenize, ([text], [""])))
    found = [bound.whole(readings, test=test, fpr=0.01)[0] for bound in bounds]
    p_values = np.array([d.p_value for d in found])
    expect_valid(p_values, f"{kind}, scale {scale}")
    # discrete but exact: P(p ≤ a) = a at every value a that p can take
    share = (p_values[None, :] <= p_values[:, None]).mean(axis=1)
    assert (np.abs(share - p_values) <= 4.5 * np.sqrt(p_values * (1 - p_values) / KEYS) + 1 / KEYS).all()
    assert model.asked == ([] if test == "race" else [1])  # one pass for all keys


def test_matches_have_the_claimed_chances(cache: Path) -> None:
    """Over keys Σ B_t has mean Σ q_t and variance Σ q_t (1 − q_t): 4.5 standard errors."""
    tokenizer = PASA_HOST.tokenizer
    (text,), (none,) = tokenizer.encode([numbers(80)]), tokenizer.encode([""])
    sums, expected = [], None
    for i in range(KEYS):
        (evidence,) = evidence_of(bind(cache, i, model=Frozen()), [text], [none])
        sums.append(evidence.matches.sum())
        expected = evidence.chances
    assert abs(np.mean(sums) - expected.sum()) < 4.5 * np.sqrt((expected * (1 - expected)).sum() / KEYS)


def test_surrogate_is_opened_and_checked(cache: Path) -> None:
    asked = []
    workspace = Workspace(cache=cache, open_host=lambda name: asked.append(name) or Frozen())
    score_text(PASA(clusters=10, surrogate="small").bind(key(0), PASA_HOST, workspace), numbers(40))
    assert asked == ["small"]
    with pytest.raises(VocabularyError, match="same vocabulary"):
        score_text(bind(cache, model=Frozen(vocab=50)), numbers(40))
    with pytest.raises(ConfigError, match="race"):
        score_text(bind(cache), numbers(40))
    assert score_text(bind(cache), numbers(40), test="race").tokens_scored > 0


def test_certain_model_gives_no_evidence(cache: Path) -> None:
    """Where the model is certain of another cluster than the text's, nothing is scored."""
    found = score_text(bind(cache, model=ToyModel(), alpha=1.0), numbers(60))
    assert found.tokens_scored <= 58
    assert np.isfinite(found.z)


def test_a_part_of_a_text_has_the_matches_of_its_own_pairs() -> None:
    rng = np.random.default_rng(3)
    n = 60
    plain = Evidence.independent(rng.normal(size=n), np.ones(n), np.arange(n))
    whole = MatchEvidence(
        **vars(plain), matches=rng.integers(0, 2, n).astype(float), chances=rng.uniform(0.1, 0.5, n)
    )
    units = Units.of(whole)
    part = restrict(whole, units[20:50])
    assert part.matches.tolist() == whole.matches[20:50].tolist()
    assert part.chances.tolist() == whole.chances[20:50].tolist()
    assert len(part) == len(part.matches) == 30
