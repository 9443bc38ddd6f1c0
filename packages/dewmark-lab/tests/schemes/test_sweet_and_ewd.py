"""SWEET and EWD: the host's entropy gates or weights each position, and the p-values stay exact."""

from __future__ import annotations

import math

import pytest
import torch
from tests.engine_marks.toy_host import HOST, VOCAB, ToyModel, bind, numbers

from dewmark.errors import ConfigError
from dewmark_lab.schemes.green.entropy import BoundEWD
from dewmark_lab.schemes.host_reading import entropy


def test_entropy_is_that_of_the_softmax() -> None:
    logits = 4.0 * torch.randn(5, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits[1, 3:] = -math.inf
    p = logits.softmax(dim=-1)
    expected = torch.special.entr(p).sum(dim=-1)
    assert torch.allclose(entropy(logits.float()).double(), expected, atol=1e-5)
    assert entropy(torch.zeros(1, 50)).item() == pytest.approx(math.log(50))
    assert entropy(torch.tensor([[0.0, -math.inf]])).item() == 0.0


def test_sweet_counts_only_uncertain_positions() -> None:
    """The toy model is certain at even positions, so of 40 tokens the odd ones count."""
    model = ToyModel()
    found = bind("sweet", model=model).detect(numbers(40), prompt="9 8 7")
    assert [token.scored for token in found.tokens] == [i % 2 == 1 for i in range(40)]
    assert model.calls == [(["9 8 7"], [tuple(map(int, numbers(40).split()))])]


def test_sweet_marks_only_uncertain_rows() -> None:
    ids, logits = torch.tensor([[5, 6], [7, 8]]), torch.zeros(2, VOCAB)
    logits[1, 9] = 30.0
    shift = bind("sweet").session(ids)(ids, logits) - logits
    assert set(shift[0].unique().tolist()) == {0.0, 2.0}
    assert not shift[1].any()


def test_ewd_weights_by_spike_entropy() -> None:
    """W = Σ p/(1 + zp) − 1/(1 + z), over 1 − 1/(1 + z): 0 if one token is certain, most if all are equal."""
    bound = bind("ewd", model=ToyModel(), gamma=0.25, delta=1.5)
    assert isinstance(bound, BoundEWD)
    z = 0.75 * (math.e**1.5 - 1.0) / (1.0 + 0.25 * (math.e**1.5 - 1.0))
    assert bound.scheme.modulus == pytest.approx(z)
    certain = torch.full((1, VOCAB), -math.inf)
    certain[0, 4] = 0.0
    assert bound.weigh(certain).item() == pytest.approx(0.0, abs=1e-6)
    flat = 1.0 / (1.0 + z / VOCAB) - 1.0 / (1.0 + z)
    assert bound.weigh(torch.zeros(1, VOCAB)).item() == pytest.approx(
        flat / (1.0 - 1.0 / (1.0 + z)), rel=1e-4
    )


def test_ewd_statistic_is_the_weighted_sum() -> None:
    bound, text = bind("ewd", model=ToyModel()), numbers(60)
    evidence = bound.evidence(HOST.tokenizer.encode([text]), HOST.tokenizer.encode([""]))[0]
    green, w = evidence.scores > 0.0, evidence.weights
    expected = (w[green].sum() - 0.5 * w.sum()) / math.sqrt(0.25 * (w**2).sum())
    found = bound.detect(text)
    assert found.test == "exact"
    assert found.z == pytest.approx(expected)
    assert found.effective_length == pytest.approx(w.sum() ** 2 / (w**2).sum())
    assert bound.detect(text, test="z").p_value == pytest.approx(0.5 * math.erfc(expected / math.sqrt(2.0)))


def test_exact_and_normal_p_values_agree_on_long_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """For 900 pairs of symmetric scores they are within 5%; beyond the limit the normal is used."""
    bound, text = bind("ewd", model=ToyModel()), numbers(950)
    exact, normal = bound.detect(text), bound.detect(text, test="z")
    assert exact.effective_length > 400
    assert exact.p_value == pytest.approx(normal.p_value, rel=0.05)
    monkeypatch.setattr("dewmark_lab.schemes.green.entropy.EXACT_LIMIT", 10)
    assert bound.detect(text).p_value == normal.p_value


@pytest.mark.parametrize("name", ["sweet", "ewd"])
def test_detection_without_a_host_names_the_remedy(name: str) -> None:
    with pytest.raises(ConfigError, match="runs a language model to detect"):
        bind(name).detect(numbers(40))
