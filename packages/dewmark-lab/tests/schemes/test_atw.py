"""ATW: the gate, the gain, the context's half of the vocabulary, and the exact distribution over keys."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.schemes.toy_host import HOST, VOCAB, ToyModel, key, numbers

from dewmark.detect import score_text
from dewmark.errors import ConfigError, VocabularyError
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import key_test
from dewmark.workspace import Workspace
from dewmark_lab.schemes.learned.atw import ATW, BoundATW, SemanticMap, balanced, penalized
from dewmark_lab.schemes.learned.keyed_signs import LAYERS, context_rows, exact_tail

OPEN, SURE = torch.zeros(VOCAB), torch.zeros(VOCAB)
SURE[7] = 30.0


def semantics(outputs: int = 12) -> SemanticMap:
    """A random network on random 8-dimensional token vectors."""
    rng = np.random.default_rng(0)
    sizes = [(8, 10), (10, 10), (10, 10), (10, outputs)]
    layers = tuple(
        (rng.normal(size=size).astype(np.float32) / math.sqrt(size[0]), np.zeros(size[1], dtype=np.float32))
        for size in sizes
    )
    return SemanticMap(rng.normal(size=(VOCAB, 8)).astype(np.float16), layers, "test")


SEMANTICS = semantics()


def bound(index: int = 0, *, model: object = None, **settings: object) -> BoundATW:
    """ATW on the toy vocabulary."""
    scheme = ATW().with_settings(settings)
    workspace = Workspace(cache=Path(), open_host=lambda _: model or ToyModel())  # type: ignore[arg-type,return-value]
    secret = scheme.secret_of(key(index))
    return BoundATW(scheme, HOST, "test", secret=secret, semantics=SEMANTICS, workspace=workspace)


def shift_of(scheme: BoundATW, written: list[int], logits: torch.Tensor) -> torch.Tensor:
    """The change of the logits after ``written``, (vocab,)."""
    prompt = torch.tensor([[9, 8]])
    ids = torch.cat((prompt, torch.tensor([written], dtype=torch.long)), dim=1)
    return (scheme.session(prompt)(ids, logits[None]) - logits)[0]


PLAIN = {"repetition_penalty": 1.0, "top_k": 0, "top_p": 1.0}  # the mark alone


def test_uncertain_positions_are_marked() -> None:
    """After the opening certain positions are left alone; in the opening every position is marked."""
    scheme, written = bound(opening=3, **PLAIN), list(range(10, 25))
    assert shift_of(scheme, written, torch.randn(VOCAB)).any()
    assert not shift_of(scheme, written, SURE).any()
    assert shift_of(scheme, [10, 11, 12], SURE)[7] in (0.0, pytest.approx(0.2 * 30.0))
    assert any(shift_of(bound(i, opening=3, **PLAIN), [10, 11], SURE)[7] for i in range(8))


def test_green_logits_are_multiplied() -> None:
    """The authors' rule: logit · (1 + δ v), also where the logit is negative."""
    scheme, written = bound(delta=0.5, alpha=0.0, **PLAIN), list(range(10, 30))
    logits = 2.0 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(0))
    shift = shift_of(scheme, written, logits)
    green = shift != 0
    torch.testing.assert_close(shift[green], 0.5 * logits[green], atol=1e-5, rtol=1e-4)
    assert 0.3 < float(green[3:300].float().mean()) < 0.7
    assert not green[[0, 1, 2, 300, 319]].any()


def test_repetition_penalty_comes_before_the_mark_and_truncation_after_it() -> None:
    """What is written loses a tenth; of what the mark leaves, the 50 likeliest with 0.9 of the mass stay."""
    scheme, written = bound(alpha=0.0), [10, 10, 11, *range(20, 30)]
    plain = bound(alpha=0.0, **PLAIN)
    logits = 3.0 + 2.0 * torch.rand(VOCAB, generator=torch.Generator().manual_seed(0))
    logits[11] = -4.0
    found = logits + shift_of(scheme, written, logits)
    unseen = logits + shift_of(plain, written, logits)
    kept = torch.isfinite(found)
    assert 30 < int(kept.sum()) <= 50
    assert found[kept].min() > unseen[~kept].max() - 1.0  # up to the penalty
    torch.testing.assert_close(
        penalized(logits[None], torch.tensor([[10, 10, 11]]), 1.1)[0, [10, 11, 12]],
        torch.stack((logits[10] / 1.1, logits[11] * 1.1, logits[12])),
    )


def test_green_half_depends_on_meaning_and_key() -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    text = list(range(10, 40))
    reference = shift_of(bound(), text, logits)
    torch.testing.assert_close(shift_of(bound(), [*text, 200, 201], logits), reference)  # not renewed yet
    assert not torch.equal(shift_of(bound(), [100 + i for i in text], logits), reference)
    assert not torch.equal(shift_of(bound(1), text, logits), reference)
    opening = shift_of(bound(), text[:3], logits)
    torch.testing.assert_close(shift_of(bound(), [77, 78], logits), opening)  # whatever was written


def test_detection_counts_uncertain_positions_and_the_opening() -> None:
    """The toy model is certain at even positions: of 40 tokens, the first 11 and then the odd ones count."""
    found = score_text(bound(), numbers(40))
    assert [token.scored for token in found.tokens] == [i <= 10 or i % 2 == 1 for i in range(40)]
    assert {token.score for token in found.tokens if token.scored} <= {-1.0, 1.0}


def _evidence(signs: np.ndarray, tokens: list[int], weights: list[int], scores: list[int]) -> Evidence:
    return Evidence(
        scores=np.array(scores, dtype=np.float64),
        alignments=np.array(scores, dtype=np.float64),
        weights=np.array(weights, dtype=np.float64),
        positions=np.arange(len(tokens)),
        T=np.array(tokens),
        C=context_rows(signs.astype(np.int8)),
        kernel=(1.0,),
    )


def test_distribution_over_keys_is_exact() -> None:
    """Against an enumeration of all keys with three places: each token's place, sign and opening sign."""
    signs = np.array([[1, -1, 1], [1, 1, -1], [0, 0, 0], [-1, 1, 1]])
    tokens, weights = [4, 4, 4, 9], [2, 1, 1, 3]
    sums = []
    for pi, sigma, tau in itertools.product(range(3), (-1, 1), (-1, 1)):
        four = sigma * (2 * signs[0, pi] + signs[1, pi]) + tau
        sums += [four + 3 * s * signs[3, place] for place, s in itertools.product(range(3), (-1, 1))]
    pmf = np.array(sums)
    for total in range(-7, 8):
        evidence = _evidence(signs, tokens, weights, [0, 0, total, 0])  # only the weighted sum matters
        assert exact_tail(evidence) == pytest.approx(float((pmf >= total).mean()), abs=1e-12)
    evidence = _evidence(signs, tokens, weights, [1, 1, 1, 1])
    assert evidence.total**2 / key_test(evidence).z ** 2 == pytest.approx(pmf.var(), rel=1e-6)


def test_balanced_weights_give_the_largest_z() -> None:
    """For equal scores, against plain counts and against every change of one token's weight."""
    scheme = bound()
    text = scheme.host.tokenizer.encode([numbers(160, top=30)])[0]
    plain = scheme._evidence(text, None)
    best = balanced(plain)

    def z(weights: np.ndarray) -> float:
        even = dataclasses.replace(plain, scores=np.ones(len(plain)), weights=weights)
        return key_test(even).z

    assert z(best.weights) > 1.02 * z(plain.weights)
    for token in np.unique(plain.T)[:10]:
        for factor in (0.5, 2.0):
            assert z(best.weights * np.where(token == plain.T, factor, 1.0)) < 1.01 * z(best.weights)
    assert np.array_equal(best.weights, np.rint(best.weights))
    alone = _evidence(np.array([[1, -1], [-1, 1]]), [4, 9], [3, 3], [1, 1])
    assert balanced(alone).weights[0] == balanced(alone).weights[1]


@pytest.mark.parametrize("test", ["weighted", "count", "key"])
def test_p_values_are_valid_over_keys(test: str) -> None:
    """P(p ≤ a) ≤ a within 4.5 standard deviations on a repetitive text; the host runs once."""
    model, text = ToyModel(), numbers(160, top=40)
    p, known = [], {}
    for i in range(80):
        scheme = bound(i, model=model)
        scheme.readings.known = known
        p.append(score_text(scheme, text, test=test).p_value)
    assert len(model.calls) == 1
    for a in (0.01, 0.05, 0.2, 0.5):
        assert np.mean(np.array(p) <= a) <= a + 4.5 * math.sqrt(a * (1.0 - a) / len(p))
    assert 0.37 < np.mean(p) < 0.65  # nor too conservative: ties alone raise the mean above 1/2


def test_bad_settings_and_incomplete_networks_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"top_p.*got 0\.0"):
        ATW(top_p=0.0)
    arrays = SEMANTICS.arrays()
    assert set(arrays) == {f"{name}.{part}" for name in LAYERS for part in "Wb"}
    with pytest.raises(VocabularyError, match=f"the vocabulary {HOST.vocab_size}"):
        SemanticMap.of(SEMANTICS.table[:-1], arrays, "test", HOST)
