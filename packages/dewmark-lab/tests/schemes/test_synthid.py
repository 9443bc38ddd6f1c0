"""SynthID against transformers' own implementation, and its fitted Bayesian detector."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engine_marks.toy_host import random_logits, random_words
from transformers import SynthIDTextWatermarkingConfig
from transformers.generation import BayesianDetectorConfig, BayesianDetectorModel
from transformers.generation.logits_process import SynthIDTextWatermarkLogitsProcessor

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.engine_marks.transformers_synthid import tournament
from dewmark.errors import ArtifactError, InputError
from dewmark.hosts.fake import FakeHost
from dewmark.workspace import Workspace
from dewmark_lab.schemes.keyed_sampling.bayesian_detector import BayesianDetector, fit_detector
from dewmark_lab.schemes.keyed_sampling.synthid import BoundSynthID, SynthID, fit_bayesian

DEPTH = 30
PROMPT = " the old bridge over the river"
THEIRS = {
    "ngram_len": 4,
    "keys": list(range(11, 11 + DEPTH)),
    "sampling_table_size": 2**16,
    "sampling_table_seed": 0,
    "context_history_size": 1024,
}


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(400)


@pytest.fixture
def workspace(tmp_path) -> Workspace:
    return Workspace(cache=tmp_path)


def oracle() -> SynthIDTextWatermarkLogitsProcessor:
    return SynthIDTextWatermarkLogitsProcessor(**THEIRS, device=torch.device("cpu"))


def test_tournament_agrees_with_transformers() -> None:
    """Their bits, packed into words, give their scores."""
    processor = oracle()
    contexts = torch.randint(0, 400, (6, 3), generator=torch.Generator().manual_seed(0))
    scores = 2.0 * torch.randn(6, 400, generator=torch.Generator().manual_seed(1))
    keys, _ = processor._compute_keys(contexts, torch.arange(400).expand(6, -1))
    bits = processor.sample_g_values(keys)
    words = (bits << torch.arange(DEPTH)).sum(2).to(torch.int32)
    ours = tournament(scores.softmax(1), words, depth=DEPTH)
    theirs = processor.update_scores(scores, bits).exp()
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-3)
    assert float((ours - scores.softmax(1)).abs().max()) > 0.1


def plain_tournament(p: torch.Tensor, bits: torch.Tensor, leaves: int) -> torch.Tensor:
    """Layer by layer over all tokens: p (batch, m), bits (batch, m, depth)."""
    for layer in range(bits.shape[2]):
        g = bits[:, :, layer].double()
        G = (g * p).sum(1, keepdim=True)
        win = (1.0 - (1.0 - G) ** leaves) / G.clamp(min=1e-300)
        p = p * torch.where(g > 0, win, (1.0 - G) ** (leaves - 1))
    return p


@pytest.mark.parametrize(("depth", "leaves"), [(1, 2), (7, 2), (30, 2), (32, 2), (30, 3), (12, 5)])
def test_ten_layers_at_once_equal_single_layers(depth, leaves) -> None:
    p, keyed = random_logits(8, 300).softmax(1), random_words(8, 300)
    bits = (keyed.unsqueeze(2) >> torch.arange(depth)) & 1
    expected = plain_tournament(p.double(), bits, leaves)
    torch.testing.assert_close(
        tournament(p, keyed, depth=depth, leaves=leaves).double(), expected, atol=1e-6, rtol=1e-4
    )
    assert float((expected - p).abs().max()) > 0.05


def test_one_layer_by_hand() -> None:
    """Draw two tokens: the one with bit 1 wins, ties are broken at random."""
    p, keyed = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0, 1, 1]], dtype=torch.int32)
    expected = [0.5 * 0.5, 0.3 * (2.0 - 0.5), 0.2 * (2.0 - 0.5)]
    assert tournament(p, keyed, depth=1)[0].tolist() == pytest.approx(expected)


class TheirBits(BoundSynthID):
    """Our detector on the bits of transformers' hash."""

    def bits(self, contexts, tokens):
        ngrams = torch.from_numpy(np.column_stack((contexts, tokens))).unsqueeze(0)
        processor = oracle()
        return processor.sample_g_values(processor.compute_ngram_keys(ngrams))[0].numpy().astype(np.uint8)


def test_mean_agrees_with_transformers_on_its_text(host) -> None:
    ids = torch.tensor([host.info.tokenizer.encode([PROMPT])[0].ids])
    torch.manual_seed(0)
    out = host.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        top_k=0,
        max_new_tokens=120,
        min_new_tokens=120,
        watermarking_config=SynthIDTextWatermarkingConfig(**THEIRS),
    )[:, ids.shape[1] :]
    out = torch.tensor([[i for i in out[0].tolist() if i not in host.info.tokenizer.special_ids]])
    processor = oracle()
    bits, mask = processor.compute_g_values(out).double(), processor.compute_context_repetition_mask(out)
    mean = float(bits[mask].mean())
    ours = TheirBits(SynthID(prefix=3), host.info, "", secret=bytes(32))
    found = ours.detect(host.info.tokenizer.decode(out.tolist())[0])
    assert found.effective_length == int(mask.sum())
    assert found.score + 0.5 == pytest.approx(mean, abs=1e-9)
    assert found.p_value < 1e-6


def test_ratios_agree_with_the_posterior_of_transformers() -> None:
    model = BayesianDetectorModel(BayesianDetectorConfig(watermarking_depth=6, base_rate=0.3))
    rng = np.random.default_rng(0)
    beta, delta = rng.normal(size=6), np.tril(rng.normal(size=(6, 6)), -1)
    with torch.no_grad():
        model.likelihood_model_watermarked.beta.copy_(torch.from_numpy(beta).view(1, 1, 6))
        model.likelihood_model_watermarked.delta.copy_(torch.from_numpy(delta).view(1, 1, 6, 6))
    bits = rng.integers(0, 2, size=(15, 6), dtype=np.uint8)
    with torch.no_grad():
        (posterior,) = model(torch.from_numpy(bits).unsqueeze(0), torch.ones(1, 15))
    odds = float(torch.logit(posterior.double())) - np.log(0.3 / 0.7)
    assert BayesianDetector(beta, delta, leaves=2).log_ratios(bits).sum() == pytest.approx(odds, abs=1e-3)


def sampled(beta: np.ndarray, delta: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Bits (count, depth) drawn from the model of a marked text, two leaves."""
    rng = np.random.default_rng(seed)
    bits = np.zeros((count, len(beta)), dtype=np.uint8)
    for layer in range(len(beta)):
        q = 1.0 / (1.0 + np.exp(-beta[layer] - bits @ delta[layer]))
        bits[:, layer] = rng.random(count) < 0.5 + q / 4.0
    return bits


def test_fit_recovers_the_model() -> None:
    """Judged by the likelihood of fresh bits from the same model."""
    beta = np.linspace(1.0, -2.0, 12)
    delta = np.tril(np.full((12, 12), -0.15), -1)
    true = BayesianDetector(beta, delta, leaves=2)
    found = fit_detector(sampled(beta, delta, 8_000, 0), leaves=2)
    fresh = sampled(beta, delta, 8_000, 1)
    flat = fit_detector(sampled(beta, np.zeros((12, 12)), 8_000, 0), leaves=2)
    gap = (true.log_ratios(fresh) - found.log_ratios(fresh)).sum()
    # each of 78 parameters costs half a nat on fresh bits; the penalty shifts 66 of them by less
    assert 0.0 < gap < 100.0
    assert found.log_ratios(fresh).sum() > flat.log_ratios(fresh).sum()
    assert np.triu(found.delta).max() == 0.0


@pytest.mark.parametrize("n", [16, 100])
def test_tail_agrees_with_simulated_unmarked_texts(n) -> None:
    """The saddlepoint formula against Monte Carlo: four standard errors and 3% for the formula."""
    depth = 8
    delta = np.tril(np.full((depth, depth), -0.2), -1)
    fitted = BayesianDetector(np.linspace(1.0, -1.0, depth), delta, leaves=2)
    rng = np.random.default_rng(5)
    texts = 8_000
    bits = rng.integers(0, 2, size=(texts * n, depth), dtype=np.uint8)
    totals = fitted.log_ratios(bits).reshape(texts, n).sum(axis=1)
    for p in (0.9, 0.5, 0.1, 0.01, 0.002):
        tail = fitted.null.tail(float(np.quantile(totals, 1.0 - p)), n)
        assert tail == pytest.approx(p, abs=4.0 * np.sqrt(p * (1.0 - p) / texts) + 0.03 * p)
    best = float(fitted.log_ratios(np.ones((1, depth), dtype=np.uint8))[0])
    assert 0.0 <= fitted.null.tail(n * best, n) < 1e-10  # a text of ones
    assert fitted.null.test(0.0, 0).p_value == 1.0


def test_fitted_detector_is_stronger_under_any_key(host, workspace, tmp_path) -> None:
    settings = {"decoding": Decoding(max_new_tokens=60, min_new_tokens=60), "batch_size": 70}
    teacher = SynthID(depth=12).bind(Key(bytes(32)), host.info, workspace)
    prompts = [" " + word for word in host.info.tokenizer.decode([[i] for i in range(4, 74)])]
    lessons = host.generate(prompts, scheme=teacher, seeds=range(70), **settings)
    fit_bayesian(teacher, [g.text for g in lessons], prompts=prompts).save(tmp_path / "fitted")
    scheme = SynthID(depth=12, bayesian=str(tmp_path / "fitted"))
    bound = scheme.bind(Key(bytes(range(32))), host.info, workspace)
    assert bound.tests == ("mean", "weighted", "bayesian")
    texts = [g.text for g in host.generate(prompts[:50], scheme=bound, seeds=range(50), **settings)]
    z = {test: np.array([d.z for d in bound.detect_batch(texts, test=test)]) for test in bound.tests}
    gain = z["bayesian"] - z["mean"]
    assert gain.mean() > 3.0 * gain.std() / np.sqrt(len(gain))  # paired, so differences between texts cancel
    stored = scheme.restore(bound.state(), host.info, bound.fingerprint, workspace)
    assert stored.detect(PROMPT * 5, test="bayesian") == bound.detect(PROMPT * 5, test="bayesian")


def test_unusable_fits_are_rejected(host, workspace, tmp_path) -> None:
    bound = SynthID().bind(Key(bytes(32)), host.info, workspace)
    with pytest.raises(InputError, match="at least 1000"):
        fit_bayesian(bound, [PROMPT])
    fitted = BayesianDetector(np.zeros(DEPTH), np.zeros((DEPTH, DEPTH)), leaves=2)
    fitted.save(tmp_path / "fitted")
    for settings, message in (({"depth": 12}, "30 layers"), ({"leaves": 3}, "fitted to 2 leaves")):
        scheme = SynthID(bayesian=str(tmp_path / "fitted"), **settings)
        with pytest.raises(ArtifactError, match=message):
            scheme.bind(Key(bytes(32)), host.info, workspace)
    silent = BayesianDetector(
        np.full(4, -100.0), np.zeros((4, 4)), leaves=2
    )  # as if fitted to unmarked texts
    assert silent.null.test(0.0, 50).p_value == 1.0
    with pytest.raises(ArtifactError, match="no bundle"):
        SynthID(bayesian=str(tmp_path / "none")).bind(Key(bytes(32)), host.info, workspace)
