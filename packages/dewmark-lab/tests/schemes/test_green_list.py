"""Green lists (KGW, Unigram, MorphMark, MPAC, SWEET, EWD): what is raised, counted and weighed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.schemes.toy_host import HOST, KNOWN, SPECIAL, VOCAB, ToyModel, bind, key, numbers, raw_logits

from dewmark.capabilities import evidence_of
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.detect import score_text
from dewmark.errors import ConfigError
from dewmark.registry import SCHEMES
from dewmark.workspace import Workspace
from dewmark_lab.schemes.green.entropy import BoundEWD
from dewmark_lab.schemes.green.green_list import GreenBound
from dewmark_lab.schemes.green.morphmark import BoundMorphMark
from dewmark_lab.schemes.green.mpac import MPAC, largest_count_pmf
from dewmark_lab.schemes.host_reading import entropy
from dewmark_lab.testing.fake_host import FakeHost

HASHINGS = ("left", "self")
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
    """Which logits a session raises after ids (batch, length)."""
    logits = torch.randn(len(ids), VOCAB, generator=torch.Generator().manual_seed(0))
    marked = bound.session(ids, mask)(ids, logits)
    shift = marked - logits
    assert set(shift.round(decimals=4).unique().tolist()) <= {0.0, 2.0}
    return shift > 1.0


@pytest.mark.parametrize(("name", "settings"), MARKERS)
def test_detection_counts_the_tokens_whose_logits_are_raised(name: str, settings: dict[str, object]) -> None:
    """For every token of the vocabulary after three contexts."""
    bound = green_bound(name, gamma=0.3, **settings)
    ids = torch.randint(3, KNOWN, (3, 9), generator=torch.Generator().manual_seed(1))
    found = raised(bound, ids).numpy()
    windows = ids[:, 9 - bound.width :].numpy()
    for row, window in zip(found, windows, strict=True):
        tokens = np.array(PLAIN)
        contexts = bound.contexts_of(np.tile(window, (len(tokens), 1)), tokens)
        assert np.array_equal(row[PLAIN], bound.pair_scores(contexts, tokens) > 0.0)
    assert not found[:, [*SPECIAL, *range(KNOWN, VOCAB)]].any()


def test_special_tokens_count_as_absent_context() -> None:
    bound = green_bound("kgw", prefix=2)
    with_bos, without = torch.tensor([[1, 9]]), torch.tensor([[9]])
    assert torch.equal(raised(bound, with_bos), raised(bound, without))


def test_low_precision_stays_low_precision() -> None:
    for name in ("kgw", "unigram", "sweet", "morphmark"):
        ids, logits = torch.tensor([[5, 6, 7]]), torch.randn(1, VOCAB).bfloat16()
        assert green_bound(name).session(ids)(ids, logits).dtype is torch.bfloat16


def test_list_is_fixed_and_has_no_special_tokens() -> None:
    bound = bind("unigram", gamma=0.4)
    logits = torch.randn(3, VOCAB)
    first = torch.tensor([[5, 6, 7]] * 3)
    session = bound.session(first)
    shifts = [
        session(torch.cat((first, torch.randint(3, KNOWN, (3, n))), dim=1), logits) - logits for n in range(4)
    ]
    green = shifts[0][0] > 1.0
    for shift in shifts:
        assert torch.equal(shift > 1.0, green.expand(3, -1))
    assert not green[[*SPECIAL, *range(KNOWN, VOCAB)]].any()
    # Binomial(297, 0.4) has standard deviation 8.4
    assert abs(int(green.sum()) - 0.4 * 297) < 4.5 * math.sqrt(297 * 0.4 * 0.6)
    counted = [score_text(bound, str(token)).score > 0.0 for token in range(3, KNOWN)]
    assert counted == green[3:KNOWN].tolist()


OTHER = [*SPECIAL, *range(KNOWN, VOCAB)]
FORMS = {
    "linear": lambda P: 1.55 * P,
    "exponential": lambda P: math.expm1(1.3 * P),
    "logarithmic": lambda P: math.log1p(2.15 * P),
}


def morph(logits: torch.Tensor, **settings: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Probabilities before and after, and which tokens are green, all (batch, vocab)."""
    bound = bind("morphmark", **settings)
    assert isinstance(bound, BoundMorphMark)
    ids = torch.arange(5, 5 + len(logits)).unsqueeze(1)
    session = bound.session(ids)
    return logits.double().softmax(-1), session(ids, logits).double().softmax(-1), session.green(ids)


def some_logits(rows: int) -> torch.Tensor:
    return 3.0 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("form", FORMS)
def test_moved_share_of_red_mass_is_the_papers(form: str) -> None:
    """In each row r P_R of mass moves from red to green in proportion, and nothing else changes."""
    before, after, green = morph(some_logits(30), form=form)
    other = torch.zeros(VOCAB, dtype=torch.bool)
    other[OTHER] = True
    masses = set()
    for p, q, g in zip(before, after, green, strict=True):
        P_G, P_R = float(p[g].sum()), float(p[~g & ~other].sum())
        r = min(FORMS[form](P_G), 1.0) if P_G >= 0.15 else 0.0
        masses.add(round(P_G, 2))
        assert torch.allclose(q[other], p[other], rtol=1e-4, atol=1e-9)
        assert torch.allclose(q[g], p[g] * (1.0 + r * P_R / P_G), rtol=1e-4, atol=1e-9)
        assert torch.allclose(q[~g & ~other], p[~g & ~other] * (1.0 - r), rtol=1e-2, atol=2e-6)
    assert len(masses) > 15  # rows differ in their green mass


def test_rows_with_little_green_mass_are_left_alone() -> None:
    logits = some_logits(20)
    before, after, green = morph(logits, p0=0.5)
    light = (before * green).sum(dim=1) < 0.5
    assert 0 < int(light.sum()) < 20
    assert torch.allclose(after[light], before[light], rtol=1e-5)
    assert not torch.allclose(after[~light], before[~light], rtol=1e-2)


def test_row_without_green_or_red_tokens_survives() -> None:
    _, _, green = morph(some_logits(1))
    for keep in (green[0], ~green[0]):
        logits = torch.where(keep, some_logits(1), torch.tensor(-math.inf))
        for p0 in (0.0, 0.15):
            before, after, _ = morph(logits, p0=p0)
            assert torch.allclose(after, before, atol=1e-4)


@pytest.mark.parametrize(("n", "boxes"), [(1, 4), (7, 2), (12, 4), (25, 8)])
def test_distribution_of_the_fullest_box_agrees_with_simulation(n: int, boxes: int) -> None:
    """50,000 throws; every probability within 4.5 standard errors."""
    throws = np.random.default_rng(0).multinomial(n, [1.0 / boxes] * boxes, size=50_000).max(axis=1)
    pmf = largest_count_pmf(n, boxes)
    assert pmf.sum() == pytest.approx(1.0)
    for k, p in enumerate(pmf):
        assert abs((throws == k).mean() - p) <= 4.5 * math.sqrt(max(p, 1e-5) / 50_000)


@pytest.mark.parametrize("test", ["any", "message"])
def test_p_values_are_valid_over_keys(test: str) -> None:
    text = numbers(160, top=60)
    p = np.array([score_text(bind("mpac", index), text, test=test).p_value for index in range(150)])
    for a in (0.01, 0.1, 0.5):
        assert (p <= a).mean() <= a + 4.5 * math.sqrt(a * (1.0 - a) / len(p))
    assert p.mean() < 0.65


@pytest.mark.parametrize(("radix", "bits"), [(2, 8), (4, 8), (8, 9)])
def test_a_message_comes_back(radix: int, bits: int, tmp_path: object) -> None:
    host, message = FakeHost(), 0b10110101
    scheme = MPAC(message=message, bits=bits, radix=radix, delta=4.0)
    bound = scheme.bind(key(1), host.info, Workspace(cache=tmp_path))
    options = Decoding(max_new_tokens=200, min_new_tokens=200)
    text = host.generate(["the old bridge"], scheme=bound, seeds=[1], decoding=options)[0].text
    assert score_text(bound, text).p_value < 1e-4
    assert score_text(bound, text, test="message").p_value < 1e-4
    read = bound.message(text)
    assert read.value == message
    assert read.p_values.max() < 0.2
    other = MPAC(message=3, bits=bits, radix=radix).bind(key(1), host.info, Workspace(cache=tmp_path))
    assert other.message(text).value == message  # the message is not needed to read it
    assert score_text(other, text).p_value == score_text(bound, text).p_value
    assert bound.message(text[:40]).votes.sum() < read.votes.sum()


def test_one_colour_gains_delta() -> None:
    bound, ids, logits = bind("mpac", delta=1.5), torch.tensor([[5, 6]]), raw_logits(1, VOCAB)
    shift = (bound.session(ids)(ids, logits) - logits)[0, 3:300]
    assert set(shift.round(decimals=4).unique().tolist()) == {0.0, 1.5}
    assert abs(float((shift > 0).float().mean()) - 0.25) < 4.5 * math.sqrt(0.25 * 0.75 / 297)


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
    found = score_text(bind("sweet", model=model), numbers(40), prompt="9 8 7")
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
    evidence = evidence_of(bound, HOST.tokenizer.encode([text]), HOST.tokenizer.encode([""]))[0]
    green, w = evidence.scores > 0.0, evidence.weights
    expected = (w[green].sum() - 0.5 * w.sum()) / math.sqrt(0.25 * (w**2).sum())
    found = score_text(bound, text)
    assert found.test == "exact"
    assert found.z == pytest.approx(expected)
    assert found.effective_length == pytest.approx(w.sum() ** 2 / (w**2).sum())
    assert score_text(bound, text, test="z").p_value == pytest.approx(
        0.5 * math.erfc(expected / math.sqrt(2.0))
    )


def test_exact_and_normal_p_values_agree_on_long_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """For 900 pairs of symmetric scores they are within 5%; beyond the limit the normal is used."""
    bound, text = bind("ewd", model=ToyModel()), numbers(950)
    exact, normal = score_text(bound, text), score_text(bound, text, test="z")
    assert exact.effective_length > 400
    assert exact.p_value == pytest.approx(normal.p_value, rel=0.05)
    monkeypatch.setattr("dewmark_lab.schemes.green.entropy.EXACT_LIMIT", 10)
    assert score_text(bound, text).p_value == normal.p_value


@pytest.mark.parametrize("name", ["sweet", "ewd"])
def test_detection_without_a_host_names_the_remedy(name: str) -> None:
    with pytest.raises(ConfigError, match="runs a language model to detect"):
        score_text(bind(name), numbers(40))


@pytest.mark.parametrize("inner", ["morphmark", "exp"])
@pytest.mark.parametrize("pooled", [False, True])
def test_a_bias_is_not_measured_alone_or_in_a_pool(inner: str, pooled: bool, bag_encoder, tmp_path) -> None:
    """Its tokens are unlikely because the key raised them, not because there was a choice."""
    host = FakeHost(256)
    scheme = (
        SCHEMES["waterpool"]().with_settings({"inner": inner, "pool": "memory"})
        if pooled
        else SCHEMES[inner]()
    )
    bound = scheme.bind(Key(bytes(32)), host.info, Workspace(cache=tmp_path))
    decoding = Decoding(max_new_tokens=20, min_new_tokens=20)
    (made,) = host.generate(["the old bridge"], scheme=bound, seeds=[1], decoding=decoding)
    assert (made.room is None) == (inner == "morphmark")
