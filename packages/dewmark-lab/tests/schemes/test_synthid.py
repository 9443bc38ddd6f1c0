"""SynthID against transformers' own implementation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.schemes.toy_host import random_words, raw_logits
from transformers import SynthIDTextWatermarkingConfig
from transformers.generation.logits_process import SynthIDTextWatermarkLogitsProcessor

from dewmark.detect import score_text
from dewmark.workspace import Workspace
from dewmark_lab.schemes.engines.transformers_synthid import tournament
from dewmark_lab.schemes.keyed_sampling.synthid import BoundSynthID, SynthID
from dewmark_lab.testing.fake_host import FakeHost

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
    p, keyed = raw_logits(8, 300).softmax(1), random_words(8, 300)
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
    ours = TheirBits(SynthID(prefix=3), host.info, "", secret=bytes(32), workspace=Workspace(Path()))
    found = score_text(ours, host.info.tokenizer.decode(out.tolist())[0])
    assert found.effective_length == int(mask.sum())
    assert found.score + 0.5 == pytest.approx(mean, abs=1e-9)
    assert found.p_value < 1e-6
    # the authors' weighted mean: linearly falling weights, the first layer's ten times the last one's
    weights = np.array([10.0 - 9.0 * layer / (DEPTH - 1) for layer in range(DEPTH)])
    weighted = score_text(ours, host.info.tokenizer.decode(out.tolist())[0], test="weighted")
    expected = bits[mask].numpy() @ weights / weights.sum()
    assert weighted.score + 0.5 == pytest.approx(float(expected.mean()), abs=1e-9)
    z = (expected.mean() - 0.5) * np.sqrt(len(expected)) / (0.5 * np.sqrt(weights @ weights) / weights.sum())
    assert weighted.z == pytest.approx(float(z), abs=1e-6)
