"""UnbiasedWM's likelihood ratio: valid whatever the host says, strong if it is right."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import dewmark
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.detect import score_text, score_texts
from dewmark.errors import ConfigError
from dewmark.workspace import Workspace
from dewmark_lab.schemes.reweight.unbiased import Unbiased, ratio_z
from dewmark_lab.testing.fake_host import FakeHost, tiny_model

PROMPT = " the old bridge over the river"
VOCAB = 100


class Frozen:
    """A host with fixed random logits (L, vocab) for each text."""

    def __init__(self, scale: float = 2.0) -> None:
        self.calls = 0
        self._scale = scale

    def next_logits(self, prompts, completions):
        self.calls += 1
        for ids in completions:
            generator = torch.Generator().manual_seed(len(ids))
            logits = self._scale * torch.randn(len(ids), VOCAB, generator=generator)
            logits[torch.arange(len(ids)), list(ids)] += 5.0  # the text is likely
            yield logits


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost(VOCAB)


def bind(host, tmp_path, model, secret: bytes = bytes(range(32)), **settings):
    workspace = Workspace(cache=tmp_path, open_host=None if model is None else lambda name: model)
    return Unbiased(**settings).bind(Key(secret), host.info, workspace)


def words(host, count: int) -> str:
    """A text of ``count`` tokens with a repeated phrase."""
    ids = [4 + (7 * i * i) % 90 for i in range(count - 5)] + [4, 11, 32, 67, 4 + 112 % 90]
    return host.info.tokenizer.decode([ids])[0]


def test_each_factor_has_mean_one_over_keys(host, tmp_path) -> None:
    """For every token, under a host that did not write the text."""
    tokenizer, model = host.info.tokenizer, Frozen()
    (text,), (start,) = tokenizer.encode([words(host, 12)]), tokenizer.encode([PROMPT])
    (logits,) = model.next_logits([PROMPT], [text.ids])
    found = []
    for i in range(400):
        bound = bind(host, tmp_path, model, i.to_bytes(2, "big") * 16)
        pairs = bound.pairs_of(text, start, bound.first_contexts(text, start))
        found.append(bound.pair_factors(pairs, logits))
    # E[f²] is at most 1/p, for a slot that holds the token alone: 4.5 such standard errors
    p = logits.softmax(1)[range(len(text.ids)), list(text.ids)].numpy()[pairs.positions >= 0]
    order = pairs.positions[pairs.positions >= 0]
    error = np.sqrt((1.0 / p - 1.0) / len(found))
    assert np.all(np.abs(np.mean(found, axis=0)[order] - 1.0) < 4.5 * error)


def test_likelihood_ratio_detects_marked_text(tmp_path) -> None:
    """Better than the order alone, and even with half of the text replaced."""
    host = FakeHost(400)
    bound = bind(host, tmp_path, host)
    prompts = [PROMPT, " the", " water and light of the day", " of the sea"]
    settings = {
        "scheme": bound,
        "seeds": range(4),
        "decoding": Decoding(max_new_tokens=100, min_new_tokens=100),
    }
    texts = [g.text for g in host.generate(prompts, **settings)]
    ratio = score_texts(bound, texts, prompts=prompts)
    order = score_texts(bound, texts, prompts=prompts, test="order")
    assert all(d.p_value < 1e-8 and d.test == "llr" for d in ratio)
    assert np.mean([d.z for d in ratio]) > np.mean([d.z for d in order])
    other = host.generate(prompts, **{**settings, "scheme": None})
    mixed = [
        text[: len(text) // 2] + g.text[len(g.text) // 2 :] for text, g in zip(texts, other, strict=True)
    ]
    assert all(d.p_value < 1e-3 for d in score_texts(bound, mixed, prompts=prompts))
    assert all(d.p_value > 1e-3 for d in score_texts(bound, [g.text for g in other], prompts=prompts))


def test_assumed_decoding_matters(tmp_path) -> None:
    """A text written at temperature 0.5 is detected better assuming 0.5 than 1."""
    host = FakeHost(400)
    plain, told = bind(host, tmp_path, host), bind(host, tmp_path, host, temperature=0.5)
    written = host.generate(
        [PROMPT] * 6,
        scheme=plain,
        seeds=range(6),
        decoding=Decoding(max_new_tokens=100, min_new_tokens=100, temperature=0.5),
    )
    texts = [g.text for g in written]
    right, wrong = (score_texts(b, texts, prompts=[PROMPT] * 6) for b in (told, plain))
    assert np.mean([d.z for d in right]) > np.mean([d.z for d in wrong])


def test_score_agrees_with_its_definition(host, tmp_path) -> None:
    """For γ: the upper half of the order doubled, then the mean of e^S over the grid."""
    model = Frozen()
    bound = bind(host, tmp_path, model, grid=4)
    tokenizer = host.info.tokenizer
    (text,), (start,) = tokenizer.encode(tokenizer.decode([range(20, 30)])), tokenizer.encode([PROMPT])
    (logits,) = model.next_logits([PROMPT], [text.ids])
    logits[:, torch.from_numpy(~bound.host.markable)] = -math.inf
    p = logits.double().softmax(1).numpy()
    ids, log_sums = (*start.ids, *text.ids), np.zeros(4)
    for i, token in enumerate(text.ids):
        context = np.array([ids[len(start.ids) + i - 3 : len(start.ids) + i]])
        u = bound.pair_hash.uniforms(np.repeat(context, VOCAB, axis=0), np.arange(VOCAB))
        slot = np.floor(u * 4096)
        upto = p[i][slot <= slot[token]].sum()
        factor = 2.0 * np.clip((upto - 0.5) / p[i][slot == slot[token]].sum(), 0.0, 1.0)
        with np.errstate(divide="ignore"):
            log_sums += np.log(np.arange(4) / 4 + (1.0 - np.arange(4) / 4) * factor)
    (found,) = bound.evidence_of([text], [start], "llr")
    assert len(found) == 10
    assert found.log_mean == pytest.approx(math.log(np.exp(log_sums).mean()), rel=1e-3)
    assert bound.test(found, test="llr").p_value == pytest.approx(min(1.0, math.exp(-found.log_mean)))


def test_host_runs_once_per_batch_and_not_for_the_order_test(host, tmp_path) -> None:
    model = Frozen()
    bound = bind(host, tmp_path, model)
    score_texts(bound, [words(host, 20), words(host, 30)], test="order")
    assert model.calls == 0
    batch = score_texts(bound, [words(host, 20), words(host, 30)])
    assert model.calls == 1
    assert batch[0] == score_text(bound, words(host, 20))


def test_detection_without_a_host_names_the_remedy(host, tmp_path) -> None:
    bound = bind(host, tmp_path, None)
    with pytest.raises(ConfigError, match="test='order'"):
        score_text(bound, words(host, 20))
    assert score_text(bound, words(host, 20), test="order").p_value <= 1.0


def test_repeated_context_counts_once(host, tmp_path) -> None:
    found = score_text(bind(host, tmp_path, Frozen(), repeats="keep"), words(host, 30))
    assert found.effective_length < 27


def test_stored_detector_opens_its_host(tmp_path) -> None:
    model, tokenizer = tiny_model(VOCAB)
    model.save_pretrained(tmp_path / "host")
    tokenizer.save_pretrained(tmp_path / "host")
    scheme = dewmark.load_scheme(Key(bytes(32)), host=str(tmp_path / "host"), scheme="unbiased")
    text = scheme.host.tokenizer.decode([list(range(10, 40))])[0]
    dewmark.Detector(scheme).save(tmp_path / "detector")
    stored = dewmark.Detector.load(tmp_path / "detector").scheme
    assert score_text(stored, text) == score_text(scheme, text)


def test_texts_without_evidence_are_ranked_too() -> None:
    """Most unmarked texts have a mean ratio below 1 and p = 1; z still orders them."""
    log_means = [-30.0, -2.0, -0.1, 0.0, 0.1, math.log(2.0), 0.8, 3.0, 40.0, 900.0]
    found = [ratio_z(value) for value in log_means]
    assert found == sorted(set(found))
    assert ratio_z(math.log(2.0)) == 0.0
    assert ratio_z(-math.log(0.01)) == pytest.approx(2.3263, abs=1e-4)
