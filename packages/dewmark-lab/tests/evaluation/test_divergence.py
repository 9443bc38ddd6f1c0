"""Divergence of marked steps from the host's: closed forms, and the average over keys."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from tests.fakes import COMPOSED

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, InputError
from dewmark.hosts.fake import FakeHost
from dewmark.opening import load_scheme
from dewmark.scheme import BoundScheme
from dewmark_lab.evaluation.divergence import divergence

PROMPTS = ["the old river", "people of the town", "the sea was", "light and wind"]
STEPS = 12


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture(scope="module")
def texts(host: FakeHost) -> list[str]:
    decoding = Decoding(max_new_tokens=STEPS, min_new_tokens=STEPS)
    return [made.text for made in host.generate(PROMPTS, scheme=None, seeds=range(4), decoding=decoding)]


def schemes(host: FakeHost, name: str, *, keys: int, **settings: object) -> list[BoundScheme]:
    secrets = [Key(hashlib.sha256(f"divergence {i}".encode()).digest()) for i in range(keys)]
    return [load_scheme(key, host=host.info, scheme=name, settings=settings) for key in secrets]


def entropy(host: FakeHost, texts: list[str], decoding: Decoding) -> float:
    """The mean entropy of the host's steps after temperature and filters."""
    from dewmark.sampling import warp

    ids = [each.ids[:STEPS] for each in host.info.tokenizer.encode(texts)]
    found = []
    for logits in host.next_logits(PROMPTS, ids):
        p = warp(logits.double(), decoding).softmax(dim=-1)
        found.append(float(torch.special.entr(p).sum(dim=-1).mean()))
    return float(np.mean(found))


@pytest.mark.parametrize("decoding", [Decoding(), Decoding(temperature=0.7, top_p=0.9)])
def test_a_choice_that_the_key_determines_costs_the_entropy_and_nothing_on_average(host, texts, decoding):
    """EXP under one key is a point mass: E[−log p(x)] = H(p) over keys, and E q = p."""
    bound = schemes(host, "exp", keys=24)
    found = divergence(host, bound, PROMPTS, texts, decoding=decoding, steps=STEPS, draws=2, cells=511)
    spread = found.keys_sd / np.sqrt(24)
    assert found.mean == pytest.approx(entropy(host, texts, decoding), abs=4 * spread)
    assert abs(found.of_average.value) < 0.25 * found.mean
    assert found.steps == sum(min(len(t.ids), STEPS) for t in host.info.tokenizer.encode(texts))


def test_a_bias_has_its_closed_form(host, texts):
    """At temperature 1 without filters: KL of the softmax with δ on the green list."""
    bound = schemes(host, "kgw", keys=2, delta=2.0)
    found = divergence(host, bound, PROMPTS, texts, decoding=Decoding(), steps=1, cells=511)
    expected = []
    for prompt, text in zip(PROMPTS, texts, strict=True):
        begun, ids = host.info.tokenizer.encode([prompt, text])
        (logits,) = host.next_logits([prompt], [ids.ids[:1]])
        line = torch.tensor([begun.ids])
        moved = bound[0].session(line, torch.ones_like(line), seeds=[0])(line, logits.float())
        log_q, log_p = moved.double().log_softmax(dim=-1), logits.double().log_softmax(dim=-1)
        expected.append(float((log_q.exp() * (log_q - log_p)).sum()))
    assert found.per_key[0] == pytest.approx(np.mean(expected), rel=1e-4)
    assert found.per_key[0] > 0.05


def test_a_weaker_key_moves_less(host, texts, bag_encoder):
    """The divergence of the paper's bias grows with λ."""

    def mean(strength: float) -> float:
        bound = schemes(host, "dew-paper", keys=2, lambda_=strength, **COMPOSED)
        return divergence(host, bound, PROMPTS, texts, decoding=Decoding(), steps=4, draws=400, cells=32).mean

    weak, strong = mean(0.02), mean(4.0)
    assert abs(weak) < 0.1 < 0.5 < strong


def test_the_default_is_measured_while_its_words_grow(host, texts, bag_encoder):
    """Words are marked piece by piece; without a mark there is nothing but the noise of the draws."""

    def mean(alpha: float) -> float:
        bound = schemes(host, "dew", keys=2, alpha=alpha)
        return divergence(
            host, bound, PROMPTS[:2], texts[:2], decoding=Decoding(), steps=4, draws=400, cells=32
        ).mean

    assert mean(1e-6) < 0.1 < mean(1.0)


def test_what_cannot_be_measured_is_refused(host, texts):
    with pytest.raises(InputError, match="two keys"):
        divergence(host, schemes(host, "exp", keys=1), PROMPTS, texts, decoding=Decoding())
    with pytest.raises(ConfigError, match="temperature"):
        divergence(host, schemes(host, "exp", keys=2), PROMPTS, texts, decoding=Decoding(temperature=0.0))
