"""Against transformers' own KGW: its green lists under our counting give its own detector's numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.baselines.numbers import key
from transformers import WatermarkDetector, WatermarkingConfig
from transformers.generation.logits_process import WatermarkLogitsProcessor

from dewmark.baselines.green.kgw import KGW, BoundKGW
from dewmark.hosts import info_from_model
from dewmark.hosts.fake import tiny_model
from dewmark.workspace import Tokenized

VOCAB = 512
RATIO = 0.25


class TheirLists(BoundKGW):
    """Our counting and tests, with the green lists of transformers' hashing."""

    theirs: WatermarkLogitsProcessor

    def contexts_of(self, windows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return windows

    def pair_scores(self, contexts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        selfhash = self.theirs.seeding_scheme == "selfhash"
        green = []
        for context, token in zip(contexts, tokens, strict=True):
            prefix = np.append(context, token) if selfhash else context
            green.append(int(token) in self.theirs._get_greenlist_ids(torch.from_numpy(prefix)))
        return np.array(green) - self.gamma


@pytest.fixture(scope="module")
def model() -> tuple:
    return tiny_model(VOCAB)


@pytest.mark.parametrize(("scheme", "width"), [("lefthash", 1), ("selfhash", 4)])
def test_counts_and_z_are_those_of_transformers(model: tuple, scheme: str, width: int) -> None:
    """On text that transformers marked, each n-gram once as with its ``ignore_repeated_ngrams``."""
    network, tokenizer = model
    config = WatermarkingConfig(
        greenlist_ratio=RATIO, bias=4.0, seeding_scheme=scheme, context_width=width, hashing_key=15485863
    )
    torch.manual_seed(0)
    prompts = torch.randint(4, VOCAB, (3, 6))
    ids = network.generate(
        prompts,
        do_sample=True,
        max_new_tokens=60,
        suppress_tokens=[0, 1, 2, 3],  # special ones, which we never count and they do
        watermarking_config=config,
    )[:, 6:]
    detector = WatermarkDetector(network.config, "cpu", config, ignore_repeated_ngrams=True)
    expected = detector(ids, return_dict=True)

    info = info_from_model(network, tokenizer)
    hashing = "left" if scheme == "lefthash" else "self"
    bound = TheirLists(
        KGW(gamma=RATIO, hashing=hashing, prefix=width),
        info,
        "",
        secret=bytes(32),
        gamma=RATIO,
        width=width - (hashing == "self"),
    )
    bound.theirs = detector.processor
    texts = [Tokenized("", tuple(row), tuple((0, 0) for _ in row)) for row in ids.tolist()]
    found = bound.evidence(texts, [Tokenized("", (), ())] * len(texts))
    for i, evidence in enumerate(found):
        assert len(evidence) == expected.num_tokens_scored[i]
        assert int((evidence.scores > 0).sum()) == expected.num_green_tokens[i]
        statistic = bound.statistic(evidence, test="z")
        assert statistic.z == pytest.approx(expected.z_score[i], abs=1e-9)
        assert statistic.z > 3.0  # it is their mark that both see


def test_both_raise_a_quarter_of_the_vocabulary_by_the_bias(model: tuple) -> None:
    """Processors do the same to logits, but for which: theirs a fixed number, ours a share on average."""
    network, tokenizer = model
    ids, logits = torch.randint(4, VOCAB, (8, 5)), torch.zeros(8, VOCAB)
    theirs = WatermarkLogitsProcessor(VOCAB, "cpu", greenlist_ratio=RATIO, bias=2.0)(ids, logits)
    bound = KGW(gamma=RATIO, prefix=1).bind(key(0), info_from_model(network, tokenizer), None)
    ours = bound.session(ids)(ids, logits)
    assert set(theirs.unique().tolist()) == set(ours.unique().tolist()) == {0.0, 2.0}
    assert (theirs > 0).sum(dim=1).tolist() == [128] * 8
    # Binomial(508, 1/4) has standard deviation 9.8
    assert ((ours > 0).sum(dim=1) - 127).abs().max() < 4.5 * 9.8
