"""SynthID against transformers' own implementation, and its fitted Bayesian detector."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import SynthIDTextWatermarkingConfig
from transformers.generation import BayesianDetectorConfig, BayesianDetectorModel
from transformers.generation.logits_process import SynthIDTextWatermarkLogitsProcessor

from dewmark.baselines.keyed_sampling.bayesian_detector import Bayesian, fit
from dewmark.baselines.keyed_sampling.synthid import BoundSynthID, SynthID, fit_bayesian, tournament
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.errors import ArtifactError, InputError
from dewmark.hosts.fake import FakeHost
from dewmark.workspace import Workspace

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


def test_the_tournament_is_transformers_own() -> None:
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


class TheirBits(BoundSynthID):
    """Our detector on the bits that transformers' hash gives."""

    def bits(self, contexts, tokens):
        ngrams = torch.from_numpy(np.column_stack((contexts, tokens))).unsqueeze(0)
        processor = oracle()
        return processor.sample_g_values(processor.compute_ngram_keys(ngrams))[0].numpy().astype(np.uint8)


def test_our_mean_is_theirs_on_their_text(host) -> None:
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
    ours = TheirBits(SynthID(), host.info, "", secret=bytes(32))
    found = ours.detect(host.info.tokenizer.decode(out.tolist())[0])
    assert found.effective_length == int(mask.sum())
    assert found.score + 0.5 == pytest.approx(mean, abs=1e-9)
    assert found.p_value < 1e-6


def test_our_ratios_are_their_posterior() -> None:
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
    assert Bayesian(beta, delta, leaves=2).log_ratios(bits).sum() == pytest.approx(odds, abs=1e-3)


def sampled(beta: np.ndarray, delta: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Bits (count, depth) drawn from the model of a marked text, two leaves."""
    rng = np.random.default_rng(seed)
    bits = np.zeros((count, len(beta)), dtype=np.uint8)
    for layer in range(len(beta)):
        q = 1.0 / (1.0 + np.exp(-beta[layer] - bits @ delta[layer]))
        bits[:, layer] = rng.random(count) < 0.5 + q / 4.0
    return bits


def test_the_fit_recovers_what_the_bits_were_drawn_from() -> None:
    """By the likelihood that it gives to other bits drawn alike."""
    beta = np.linspace(1.0, -2.0, 12)
    delta = np.tril(np.full((12, 12), -0.15), -1)
    true, found = Bayesian(beta, delta, leaves=2), fit(sampled(beta, delta, 20_000, 0), leaves=2)
    fresh = sampled(beta, delta, 20_000, 1)
    flat = fit(sampled(beta, np.zeros((12, 12)), 20_000, 0), leaves=2)
    gap = (true.log_ratios(fresh) - found.log_ratios(fresh)).sum()
    # of 78 parameters each costs half a nat of other bits; the penalty shifts 66 of them by less than that
    assert 0.0 < gap < 100.0
    assert found.log_ratios(fresh).sum() > flat.log_ratios(fresh).sum()
    assert np.triu(found.delta).max() == 0.0


@pytest.mark.parametrize("n", [16, 100])
def test_the_tail_is_that_of_simulated_unmarked_texts(n) -> None:
    """Saddlepoint against Monte-Carlo: four standard errors and 3% for the formula itself."""
    depth = 8
    fitted = Bayesian(np.linspace(1.0, -1.0, depth), np.tril(np.full((depth, depth), -0.2), -1), leaves=2)
    rng = np.random.default_rng(5)
    texts = 20_000
    bits = rng.integers(0, 2, size=(texts * n, depth), dtype=np.uint8)
    totals = fitted.log_ratios(bits).reshape(texts, n).sum(axis=1)
    for p in (0.9, 0.5, 0.1, 0.01, 0.002):
        tail = fitted.null.tail(float(np.quantile(totals, 1.0 - p)), n)
        assert tail == pytest.approx(p, abs=4.0 * np.sqrt(p * (1.0 - p) / texts) + 0.03 * p)
    best = float(fitted.log_ratios(np.ones((1, depth), dtype=np.uint8))[0])
    assert 0.0 <= fitted.null.tail(n * best, n) < 1e-10  # a text of ones only
    assert fitted.null.test(0.0, 0).p_value == 1.0


def test_a_fitted_detector_is_the_stronger_test_under_any_key(host, workspace, tmp_path) -> None:
    settings = {"decoding": Decoding(max_new_tokens=60, min_new_tokens=60), "batch_size": 60}
    teacher = SynthID().bind(Key(bytes(32)), host.info, workspace)
    prompts = [" " + word for word in host.info.tokenizer.decode([[i] for i in range(4, 124)])]
    lessons = host.generate(prompts, scheme=teacher, seeds=range(120), **settings)
    fit_bayesian(teacher, [g.text for g in lessons], prompts=prompts).save(tmp_path / "fitted")
    scheme = SynthID(bayesian=str(tmp_path / "fitted"))
    bound = scheme.bind(Key(bytes(range(32))), host.info, workspace)
    assert bound.tests == ("mean", "weighted", "bayesian")
    texts = [g.text for g in host.generate(prompts[:60], scheme=bound, seeds=range(60), **settings)]
    z = {test: np.array([d.z for d in bound.detect_batch(texts, test=test)]) for test in bound.tests}
    gain = z["bayesian"] - z["mean"]
    assert gain.mean() > 3.0 * gain.std() / np.sqrt(len(gain))  # paired, so the texts' own spread is out
    stored = scheme.restore(bound.state(), host.info, bound.fingerprint, workspace)
    assert stored.detect(PROMPT * 5, test="bayesian") == bound.detect(PROMPT * 5, test="bayesian")


def test_fits_that_cannot_be_used_are_refused(host, workspace, tmp_path) -> None:
    bound = SynthID().bind(Key(bytes(32)), host.info, workspace)
    with pytest.raises(InputError, match="at least 1000"):
        fit_bayesian(bound, [PROMPT])
    fitted = Bayesian(np.zeros(DEPTH), np.zeros((DEPTH, DEPTH)), leaves=2)
    fitted.save(tmp_path / "fitted")
    for settings, message in (({"depth": 12}, "30 layers"), ({"leaves": 3}, "fitted to 2 leaves")):
        scheme = SynthID(bayesian=str(tmp_path / "fitted"), **settings)
        with pytest.raises(ArtifactError, match=message):
            scheme.bind(Key(bytes(32)), host.info, workspace)
    silent = Bayesian(np.full(4, -100.0), np.zeros((4, 4)), leaves=2)  # what a fit to unmarked texts tends to
    assert silent.null.test(0.0, 50).p_value == 1.0
    with pytest.raises(ArtifactError, match="no bundle"):
        SynthID(bayesian=str(tmp_path / "none")).bind(Key(bytes(32)), host.info, workspace)
