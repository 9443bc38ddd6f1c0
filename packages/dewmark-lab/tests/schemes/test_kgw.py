"""KGW: its test, what each hashing depends on, and parity with transformers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binom
from tests.schemes.toy_host import HOST, KNOWN, bind, numbers
from transformers import WatermarkDetector, WatermarkingConfig
from transformers.generation.logits_process import WatermarkLogitsProcessor

from dewmark.capabilities import evidence_of
from dewmark.detect import score_text
from dewmark.hosts.transformers.description import info_from_model
from dewmark.workspace import Tokenized, Workspace
from dewmark_lab.schemes.green.green_list import KGW, BoundKGW
from dewmark_lab.testing.fake_host import tiny_model

HASHINGS = ("left", "self")
THEIR_VOCAB, RATIO = 512, 0.25  # in the comparison with transformers


def kgw(index: int = 0, **settings: object) -> BoundKGW:
    bound = bind("kgw", index, **settings)
    assert isinstance(bound, BoundKGW)
    return bound


def test_binomial_test_is_exact() -> None:
    bound, text = kgw(gamma=0.25), numbers(90)
    evidence = evidence_of(bound, HOST.tokenizer.encode([text]), HOST.tokenizer.encode([""]))[0]
    green, n = int((evidence.scores > 0).sum()), len(evidence)
    found = score_text(bound, text)
    assert found.p_value == pytest.approx(binom.sf(green - 1, n, 0.25), rel=1e-9)
    assert found.z == pytest.approx((green - 0.25 * n) / math.sqrt(n * 0.25 * 0.75))
    normal = score_text(bound, text, test="z")
    assert normal.z == found.z
    assert normal.p_value == pytest.approx(0.5 * math.erfc(found.z / math.sqrt(2.0)))
    assert score_text(bound, "5 6").p_value == 1.0  # nothing scored


@pytest.mark.parametrize("gamma", [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("hashing", HASHINGS)
def test_green_lists_have_the_right_share(hashing: str, gamma: float) -> None:
    """200 lists of 297 tokens: 4.5 standard deviations of the share, lists of one key being independent.

    Under ``self`` the tokens that outrank their context have the same colour on many lists; those have a
    share of about 1/h, so the variance is bounded by that of 297 tokens at that share.
    """
    bound = kgw(hashing=hashing, gamma=gamma)
    session = bound.session(torch.zeros(1, 0, dtype=torch.long))
    windows = torch.randint(3, KNOWN, (200, bound.width), generator=torch.Generator().manual_seed(0))
    share = session.green(windows)[:, 3:KNOWN].float().mean().item()
    independent = 297 / 16 if hashing == "self" else 200 * 297
    assert abs(share - gamma) < 4.5 * math.sqrt(gamma * (1.0 - gamma) / independent)


def lists(bound: BoundKGW, *windows: list[int]) -> list[list[bool]]:
    """The green lists after windows of ids."""
    session = bound.session(torch.zeros(1, 0, dtype=torch.long))
    return session.green(torch.from_numpy(np.array(windows))).tolist()


def test_left_hashing_depends_on_the_context_in_order() -> None:
    left = lists(kgw(hashing="left", prefix=3), [11, 12, 13], [11, 12, 13], [12, 11, 13], [10, 12, 13])
    assert left[0] == left[1]
    assert left[0] != left[2]
    assert left[0] != left[3]


def test_self_hashing_includes_the_candidate() -> None:
    """A candidate that ranks below its context has one colour after all contexts; h = 4 means three ids."""
    bound = kgw(hashing="self")
    assert bound.width == 3
    ranks = bound.ranks[:-1]
    windows = np.random.default_rng(0).integers(3, KNOWN, (50, 3))
    found = np.array(lists(bound, *windows))[:, 3:KNOWN]
    alone = ranks[None, 3:KNOWN] < ranks[windows].min(axis=1)[:, None]
    assert 0.15 < alone.mean() < 0.35  # a quarter
    for token in range(KNOWN - 3):
        assert len(set(found[alone[:, token], token])) <= 1
    fixed = found.mean(axis=0)
    assert ((fixed > 0.0) & (fixed < 1.0)).mean() > 0.9  # otherwise the context decides


class TheirLists(BoundKGW):
    """Our counting and tests with the green lists of transformers."""

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
    return tiny_model(THEIR_VOCAB)


@pytest.mark.parametrize(("scheme", "width"), [("lefthash", 1), ("selfhash", 4)])
def test_counts_and_z_agree_with_transformers(model: tuple, scheme: str, width: int) -> None:
    """On text that transformers marked, counting each n-gram once (its ``ignore_repeated_ngrams``)."""
    network, tokenizer = model
    config = WatermarkingConfig(
        greenlist_ratio=RATIO, bias=4.0, seeding_scheme=scheme, context_width=width, hashing_key=15485863
    )
    torch.manual_seed(0)
    prompts = torch.randint(4, THEIR_VOCAB, (3, 6))
    ids = network.generate(
        prompts,
        do_sample=True,
        max_new_tokens=60,
        suppress_tokens=[0, 1, 2, 3],  # special tokens, which we never count but they do
        watermarking_config=config,
    )[:, 6:]
    detector = WatermarkDetector(network.config, "cpu", config, ignore_repeated_ngrams=True)
    expected = detector(ids, return_dict=True)

    info = info_from_model(network, tokenizer)
    hashing = "left" if scheme == "lefthash" else "self"
    ours = KGW(gamma=RATIO, hashing=hashing, prefix=width)
    bound = TheirLists(ours, info, "", secret=bytes(32), workspace=Workspace(Path()))
    bound.theirs = detector.processor
    texts = [Tokenized("", tuple(row), tuple((0, 0) for _ in row)) for row in ids.tolist()]
    found = evidence_of(bound, texts, [Tokenized("", (), ())] * len(texts))
    for i, evidence in enumerate(found):
        assert len(evidence) == expected.num_tokens_scored[i]
        assert int((evidence.scores > 0).sum()) == expected.num_green_tokens[i]
        statistic = bound.test(evidence, test="z")
        assert statistic.z == pytest.approx(expected.z_score[i], abs=1e-9)
        assert statistic.z > 3.0  # both see their mark
