"""SimKey: codes that follow the text, a distortion-free race, exact p-values for every text."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest
from tests.schemes.toy_host import VOCAB, bind, numbers

from dewmark.capabilities import evidence_of
from dewmark.detect import score_text
from dewmark.errors import UnknownNameError
from dewmark_lab.testing.checks import expect_valid

KEYS = 80
TEXTS = {
    "random": numbers(150),
    "a loop": " ".join([numbers(11, seed=2)] * 14),
    "one word": " ".join(["17"] * 150),
}


@pytest.fixture(autouse=True)
def _encoder(bag_encoder: object) -> None:
    pass


def codes_of(bound, text: str) -> np.ndarray:
    (tokenized,) = bound.host.tokenizer.encode([text])
    return bound.codes(np.array([tokenized.ids], dtype=np.int64))[0]


@pytest.mark.parametrize("test", ["gamma", "cost"])
@pytest.mark.parametrize("kind", TEXTS)
def test_p_values_are_uniform_over_keys(kind: str, test: str) -> None:
    """Even if codes and words repeat; a uniform sample fails once in 10,000 such comparisons."""
    found = [score_text(bind("simkey", i), TEXTS[kind], test=test) for i in range(KEYS)]
    p_values = [d.p_value for d in found]
    expect_valid(p_values, kind)
    assert kstest(p_values, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("bits", [1, 4])
def test_repetition_is_no_evidence(bits: int) -> None:
    """A word under k codes of b bits shows at most k·2^b numbers, however long the text."""
    bound = bind("simkey", bits=bits, hashes=3)
    found = score_text(bound, TEXTS["one word"])
    assert 1 <= found.effective_length <= 3 * 2**bits
    # the second half of a loop has the same windows as the first
    tokenizer = bound.host.tokenizer
    once, twice = (" ".join([numbers(40, seed=4)] * n) for n in (2, 4))
    none = tokenizer.encode([""])
    first, second = (len(evidence_of(bound, tokenizer.encode([text]), none)[0]) for text in (once, twice))
    assert first == second


def test_scores_are_the_largest_of_the_new_numbers() -> None:
    """Against a plain loop."""
    bound = bind("simkey", window=5, stride=3, hashes=4, bits=2)
    text, prompt = bound.host.tokenizer.encode([TEXTS["a loop"], numbers(6, seed=9)])
    (evidence,) = evidence_of(bound, [text], [prompt])
    ids, seen, expected = prompt.ids + text.ids, set(), []
    for t, token in enumerate(text.ids):
        start = len(prompt.ids) + t // 3 * 3
        codes = bound.codes(np.array([ids[start - 5 : start]], dtype=np.int64))[0]
        new = [(j, int(code), token) for j, code in enumerate(codes) if (j, int(code), token) not in seen]
        seen.update(new)
        if new:
            pairs = np.array(new)
            u = bound.pair_hash.uniforms(pairs[:, :2], pairs[:, 2]).max()
            expected.append(-np.log(1.0 - u ** len(new)) - 1.0)
    np.testing.assert_allclose(evidence.scores, expected, rtol=1e-6)


def test_windows_that_reach_into_an_unknown_prompt_are_skipped() -> None:
    bound = bind("simkey", window=8, stride=4)
    tokenizer = bound.host.tokenizer
    (text,) = tokenizer.encode([TEXTS["random"]])
    alone, after = (
        evidence_of(bound, [text], tokenizer.encode([prompt]))[0].positions for prompt in ("", "5 6 7")
    )
    assert (alone[:8] == -1).all()
    assert alone[8] >= 0
    assert after[0] >= 0


def test_codes_follow_the_text() -> None:
    """Over keys a small change keeps most bits: with angle θ each stays with probability 1 − θ/π."""
    text, changed, other = "31 47 102 99 5 60 71 83", "31 47 102 99 5 60 71 84", "200 11 7 140 266 19 58 90"
    shares = []
    for candidate in (changed, other):
        pairs = [
            (codes_of(bound, text), codes_of(bound, candidate))
            for bound in (bind("simkey", i, bits=1, hashes=16) for i in range(30))
        ]
        shares.append(np.mean([np.mean(a == b) for a, b in pairs]))
    vectors = bind("simkey").contexts.encoder.encode([text, changed, other])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = 1.0 - np.arccos(unit[1:] @ unit[0]) / np.pi
    error = np.sqrt(expected * (1.0 - expected) / 480)  # of 480 bits
    assert np.all(np.abs(shares - expected) < 4.0 * error)
    assert shares[0] > shares[1]


def test_over_keys_a_token_follows_the_host() -> None:
    """χ² on 600 keys; a correct scheme fails once in 10,000."""
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    logits = torch.full((1, VOCAB), -torch.inf)
    shares = np.array([0.5, 0.25, 0.15, 0.1])
    logits[0, 10:14] = torch.tensor(shares).log().float()
    counts = np.zeros(4)
    for i in range(600):
        marked = bind("simkey", i).session(ids, seeds=[i])(ids, logits)
        counts[int(marked.argmax()) - 10] += 1
    assert chisquare(counts, 600 * shares).pvalue > 1e-4


def test_tokens_of_a_chunk_use_every_code_once() -> None:
    """Four tokens, four codes: all numbers differ, so equal logits give different tokens."""
    bound = bind("simkey", hashes=4, stride=4, bits=2)
    ids, logits = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12]]), torch.zeros(1, VOCAB)
    session = bound.session(ids, seeds=[3])
    chosen = [int(session(ids, logits).argmax()) for _ in range(4)]
    codes = bound.codes(ids.numpy())[0]
    best = [
        int(bound.pair_hash.uniforms(np.repeat([[j, code]], VOCAB, axis=0), np.arange(VOCAB)).argmax())
        for j, code in enumerate(codes)
    ]
    assert sorted(chosen) == sorted(best)


def test_one_encoder_call_per_chunk(bag_encoder) -> None:
    bound = bind("simkey", stride=5)
    ids = torch.tensor([[20, 21, 22, 23, 24, 25, 26, 27]])
    session = bound.session(ids, seeds=[1])
    before = len(bound.contexts.encoder.calls)
    for step in range(15):
        session(ids, torch.zeros(1, VOCAB))
        ids = torch.cat((ids, torch.tensor([[30 + step]])), dim=1)
    assert len(bound.contexts.encoder.calls) - before == 3


def test_an_unknown_encoder_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(UnknownNameError, match="use-m4"):
        bind("simkey", encoder="use-m4")
