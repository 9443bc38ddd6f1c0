from __future__ import annotations

import functools
import itertools
import operator

import numpy as np
import pytest
import torch
from scipy import stats

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, InputError, ModelError, NumericalError, VocabularyError
from dewmark.hosts.fake import FakeHost
from dewmark.hosts.transformers import likelihood

PROMPTS = [
    "the old bridge over the river",
    "the sea",
    "",
    "one old ship was on the water when the wind and rain",
]
SEEDS = [5, 6, 7, 8]
SETTINGS = {"max_new_tokens": 24, "no_repeat_ngram": 3, "temperature": 0.9, "top_p": 0.95, "top_k": 200}


def write(host, prompts=PROMPTS, seeds=SEEDS, *, batch_size=8, on_batch=None, **changes):
    decoding = Decoding(**{**SETTINGS, **changes})
    options = {"decoding": decoding, "batch_size": batch_size, "on_batch": on_batch}
    return host.generate(prompts, scheme=None, seeds=seeds, **options)


def test_batch_equals_single_and_padded_equals_unpadded(host):
    batched = write(host, batch_size=4)
    single = [write(host, [p], [s], batch_size=1)[0] for p, s in zip(PROMPTS, SEEDS, strict=True)]
    assert batched == single
    assert write(host, batch_size=3) == batched


def test_logits_of_a_padded_row_equal_those_of_the_row_alone(host):
    from dewmark.hosts.transformers.decoding_loop import CachedForward, pad_left

    rows = [[4, 41, 44, 45, 4, 43], [4, 60]]
    ids, mask = pad_left(rows, fill_id=0, device=torch.device("cpu"))
    with torch.inference_mode():
        padded = CachedForward(host.model, mask)(ids)
        alone = CachedForward(host.model, None)(torch.tensor(rows[1:]))
    torch.testing.assert_close(padded[1:], alone, rtol=1e-5, atol=1e-5)


def test_cached_steps_equal_one_pass_over_the_whole_text(host):
    from dewmark.hosts.transformers.decoding_loop import CachedForward, pad_left

    ids, mask = pad_left([[4, 41, 44, 45, 9, 43], [4, 60, 70, 9]], fill_id=0, device=torch.device("cpu"))
    with torch.inference_mode():
        forward = CachedForward(host.model, mask)
        forward(ids[:, :4])
        forward(ids[:, :5])
        stepwise = forward(ids)
        whole = CachedForward(host.model, mask)(ids)
    torch.testing.assert_close(stepwise, whole, rtol=1e-4, atol=1e-5)


def test_same_seed_same_text_and_other_seed_other_text(host):
    first, again = write(host), write(host)
    other = write(host, seeds=[s + 100 for s in SEEDS])
    assert first == again
    assert all(a.text != b.text for a, b in zip(first, other, strict=True))


def test_generation_tells_what_it_is(host):
    generation = write(host)[0]
    assert (generation.prompt, generation.seed, generation.scheme) == (PROMPTS[0], 5, "none")
    assert generation.text == host.tokenizer.decode([generation.token_ids])[0]
    assert generation.text.startswith(" ")  # the space before the first word is kept
    assert host.tokenizer.encode([generation.text])[0].ids == generation.token_ids
    assert write(host, max_new_tokens=23)[0].config_hash != generation.config_hash
    assert write(host, seeds=[1, 2, 3, 4])[0].config_hash == generation.config_hash


def test_batches_are_reported_as_they_finish(host):
    seen = []
    done = write(host, batch_size=3, on_batch=lambda batch: seen.append(list(batch)))
    assert [len(batch) for batch in seen] == [3, 1]
    assert functools.reduce(operator.iadd, seen, []) == done


def test_no_ngram_is_repeated(host):
    rows = write(host, max_new_tokens=120, no_repeat_ngram=2, top_k=4, top_p=1.0)
    for prompt, row in zip(PROMPTS, rows, strict=True):
        ids = host.tokenizer.encode_prompts([prompt])[0] + list(row.token_ids)
        pairs = list(itertools.pairwise(ids))[len(ids) - row.tokens - 1 :]
        assert len(set(pairs)) == len(pairs)


def test_sampling_follows_the_models_distribution(host):
    count = 3000
    rows = host.generate(
        ["the old bridge"] * count,
        scheme=None,
        seeds=range(count),
        decoding=Decoding(max_new_tokens=1),
        batch_size=1000,
    )
    ids = torch.tensor(host.tokenizer.encode_prompts(["the old bridge"]))
    with torch.inference_mode():
        expected = host.model(ids).logits[0, -1].double().softmax(-1).numpy() * count
    drawn = np.zeros(512)
    for row in rows:
        drawn[row.token_ids[0] if row.token_ids else host.tokenizer.eos_id] += 1
    expected[[0, 1, 3]] = 0  # special tokens are never written
    expected *= count / expected.sum()
    common = expected >= 5
    pooled = [
        [*drawn[common].tolist(), drawn[~common].sum()],
        [*expected[common].tolist(), expected[~common].sum()],
    ]
    assert common.sum() > 50
    assert stats.chisquare(*pooled).pvalue > 0.001


def test_rows_stop_at_end_of_text(host, force):
    ended = host.generate(
        ["the old bridge", "the"],
        scheme=force(host.info, 2),
        seeds=[1, 2],
        decoding=Decoding(max_new_tokens=50),
    )
    assert [(row.text, row.token_ids) for row in ended] == [("", ()), ("", ())]


def test_every_end_of_text_id_of_a_list_counts_and_other_rows_go_on():
    host = FakeHost(seed=3)
    plain = host.generate(
        ["the sea", "the sun"], scheme=None, seeds=[1, 2], decoding=Decoding(max_new_tokens=40)
    )
    stop = next(t for t in plain[0].token_ids[5:] if t not in plain[1].token_ids)
    host.model.generation_config.eos_token_id = [2, stop]
    cut = host.generate(
        ["the sea", "the sun"], scheme=None, seeds=[1, 2], decoding=Decoding(max_new_tokens=40)
    )
    assert cut[0].token_ids == plain[0].token_ids[: plain[0].token_ids.index(stop)]
    assert cut[1].token_ids == plain[1].token_ids


def test_the_loop_ends_when_all_rows_have(host, force, monkeypatch):
    calls = []
    forward = type(host.model).forward
    monkeypatch.setattr(type(host.model), "forward", lambda *a, **k: calls.append(1) or forward(*a, **k))
    host.generate(
        ["the old bridge", "the"],
        scheme=force(host.info, 2),
        seeds=[1, 2],
        decoding=Decoding(max_new_tokens=50),
    )
    assert len(calls) == 1


def test_padded_vocabulary_is_never_sampled():
    host = FakeHost(64, padded_vocab=64)
    assert host.info.vocab_size == 128
    rows = host.generate(
        ["the"] * 40, scheme=None, seeds=range(40), decoding=Decoding(max_new_tokens=30), batch_size=40
    )
    assert max(max(row.token_ids) for row in rows) < 64


def test_sessions_get_prompts_and_mask(host, force):
    scheme = force(host.info, 7)
    rows = host.generate(["the sea", "the"], scheme=scheme, seeds=[1, 2], decoding=Decoding(max_new_tokens=3))
    assert [row.token_ids for row in rows] == [(7, 7, 7), (7, 7, 7)]
    assert rows[0].scheme == "force"
    ids, mask = scheme.opened[0]
    assert ids[1].tolist() == [0, 4]
    assert mask.tolist() == [[1, 1], [0, 1]]


def test_each_batch_has_its_own_session(host, force):
    scheme = force(host.info, -1)
    host.generate(
        ["the sea", "the", "sun"],
        scheme=scheme,
        seeds=[1, 2, 3],
        decoding=Decoding(max_new_tokens=2),
        batch_size=1,
    )
    assert len(scheme.opened) == 3


def test_nan_logits_are_one_clear_error():
    host = FakeHost()
    with torch.no_grad():
        host.model.lm_head.weight[5] = float("nan")
    with pytest.raises(NumericalError, match="float32") as error:
        host.generate(["the"], scheme=None, seeds=[1], decoding=Decoding(max_new_tokens=40))
    assert "\n" not in str(error.value)


def test_special_tokens_are_left_out(host, force):
    row = host.generate(["the"], scheme=force(host.info, 3), seeds=[1], decoding=Decoding(max_new_tokens=5))[
        0
    ]
    assert (row.text, row.token_ids) == ("", ())


def test_log_likelihood_is_that_of_the_completion_only(host):
    prompts, texts = ["the old bridge", "the", ""], [" over the river", "", " sea wind rain sun"]
    scored = host.log_likelihood(prompts, texts)
    for prompt, text, (total, count) in zip(prompts, texts, scored, strict=True):
        start = host.tokenizer.encode_prompts([prompt])[0]
        ids = start + list(host.tokenizer.encode([text])[0].ids)
        with torch.inference_mode():
            log_p = host.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        expected = sum(float(log_p[i - 1, ids[i]]) for i in range(len(start), len(ids)))
        assert count == len(ids) - len(start)
        assert total == pytest.approx(expected, abs=1e-4)


def test_log_likelihood_in_small_batches_is_the_same(host, monkeypatch):
    texts = [row.text for row in write(host)]
    expected = host.log_likelihood(PROMPTS, texts)
    monkeypatch.setitem(likelihood._LOGITS_AT_ONCE, "cpu", 512 * 30)
    monkeypatch.setitem(likelihood._TOKENS_AT_ONCE, "cpu", 60)
    monkeypatch.setitem(likelihood._SUMMED_AT_ONCE, "cpu", 512 * 5)
    for (a, n), (b, m) in zip(host.log_likelihood(PROMPTS, texts), expected, strict=True):
        assert n == m
        assert a == pytest.approx(b, abs=1e-3)


def test_prompts_that_do_not_fit_are_refused():
    host = FakeHost(context=32)
    with pytest.raises(InputError, match="context of 32"):
        host.generate(["the " * 30], scheme=None, seeds=[1], decoding=Decoding(max_new_tokens=8))
    assert (
        host.generate(["the " * 20], scheme=None, seeds=[1], decoding=Decoding(max_new_tokens=8))[0].tokens
        <= 8
    )
    with pytest.raises(InputError, match="context of 32"):
        host.log_likelihood(["the"], [" the" * 40])


def test_a_scheme_for_another_vocabulary_is_refused(host, force):
    with pytest.raises(VocabularyError, match="another vocabulary"):
        host.generate(
            ["the"], scheme=force(FakeHost(64).info), seeds=[1], decoding=Decoding(max_new_tokens=2)
        )


def test_greedy_is_refused_for_schemes_that_need_sampling(host, force):
    with pytest.raises(ConfigError, match="temperature above 0"):
        host.generate(
            ["the"], scheme=force(host.info), seeds=[1], decoding=Decoding(max_new_tokens=2, temperature=0.0)
        )
    first, second = (write(host, temperature=0.0, seeds=s) for s in (SEEDS, [1, 2, 3, 4]))
    assert [row.text for row in first] == [row.text for row in second]


def test_models_without_a_cache_are_refused(host, monkeypatch):
    forward = type(host.model).forward

    def without_cache(self, **inputs):
        return forward(self, **{**inputs, "use_cache": False})

    monkeypatch.setattr(type(host.model), "forward", without_cache)
    with pytest.raises(ModelError, match="key-value cache"):
        host.generate(["the"], scheme=None, seeds=[1], decoding=Decoding(max_new_tokens=2))


@pytest.mark.parametrize(
    "settings",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": 2.5},
        {"max_new_tokens": True},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"no_repeat_ngram": -2},
    ],
)
def test_decoding_parameters_out_of_range_are_named(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Decoding(**settings)


@pytest.mark.parametrize(
    ("prompts", "seeds", "batch_size", "message"),
    [
        (["the"], [1, 2], 8, "1 prompts but 2 seeds"),
        ("the", [1, 2, 3], 8, "list"),
        ([3], [1], 8, "prompt 0"),
        (["the"], [-1], 8, "seed 0"),
        (["the"], [1], 0, "batch_size"),
        (["\ud800"], [1], 8, "Unicode"),
    ],
)
def test_unusable_rows_are_refused(host, prompts, seeds, batch_size, message):
    with pytest.raises((InputError, ConfigError), match=message):
        host.generate(
            prompts, scheme=None, seeds=seeds, decoding=Decoding(max_new_tokens=1), batch_size=batch_size
        )


def test_no_prompts_no_generations(host):
    assert host.generate([], scheme=None, seeds=[]) == []


def test_no_text_ends_before_its_least_length():
    host = FakeHost(64)
    host.model.generation_config.eos_token_id = list(range(2, 40))  # most tokens end a text
    free = write(host, ["the"] * 20, range(20), max_new_tokens=12)
    held = write(host, ["the"] * 20, range(20), max_new_tokens=12, min_new_tokens=6)
    assert min(row.tokens for row in free) < 6
    assert min(row.tokens for row in held) >= 6
    with pytest.raises(ConfigError, match="min_new_tokens"):
        Decoding(max_new_tokens=3, min_new_tokens=4)
