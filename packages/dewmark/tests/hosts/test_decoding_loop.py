"""The decoding loop: padding, the cache, sampling, the end of texts, n-gram blocking."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.dew.drafts import STRETCH as DRAFT_STRETCH
from dewmark.dew.scheme import DEW
from dewmark.errors import ConfigError, InputError, ModelError, NumericalError
from dewmark.hosts.transformers.decoding_loop import NGrams, block_repeats
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost

PROMPTS = ["the old bridge over the river", "the sea", "", "one old ship was on the water when wind and rain"]
SEEDS = [5, 6, 7, 8]
SETTINGS = {"max_new_tokens": 24, "no_repeat_ngram": 3, "temperature": 0.9, "top_p": 0.95, "top_k": 200}


def write(host, prompts=PROMPTS, seeds=SEEDS, *, batch_size=8, on_batch=None, **changes):
    decoding = Decoding(**{**SETTINGS, **changes})
    options = {"decoding": decoding, "batch_size": batch_size, "on_batch": on_batch}
    return host.generate(prompts, scheme=None, seeds=seeds, **options)


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


def test_any_end_of_text_id_ends_its_row_only():
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


def test_the_loop_ends_when_all_rows_have_ended(host, force, monkeypatch):
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


def test_nan_logits_raise_one_clear_error():
    host = FakeHost()
    with torch.no_grad():
        host.model.lm_head.weight[5] = float("nan")
    with pytest.raises(NumericalError, match="float32") as error:
        host.generate(["the"], scheme=None, seeds=[1], decoding=Decoding(max_new_tokens=40))
    assert "\n" not in str(error.value)


def test_special_tokens_are_omitted(host, force):
    decoding = Decoding(max_new_tokens=5)
    (row,) = host.generate(["the"], scheme=force(host.info, 3), seeds=[1], decoding=decoding)
    assert (row.text, row.token_ids) == ("", ())


def test_prompts_that_do_not_fit_are_rejected():
    host = FakeHost(context=32)
    with pytest.raises(InputError, match="context of 32"):
        host.generate(["the " * 30], scheme=None, seeds=[1], decoding=Decoding(max_new_tokens=8))
    assert (
        host.generate(["the " * 20], scheme=None, seeds=[1], decoding=Decoding(max_new_tokens=8))[0].tokens
        <= 8
    )
    with pytest.raises(InputError, match="context of 32"):
        host.log_likelihood(["the"], [" the" * 40])


def test_models_without_a_cache_are_rejected(host, monkeypatch):
    forward = type(host.model).forward

    def without_cache(self, **inputs):
        return forward(self, **{**inputs, "use_cache": False})

    monkeypatch.setattr(type(host.model), "forward", without_cache)
    with pytest.raises(ModelError, match="key-value cache"):
        host.generate(["the"], scheme=None, seeds=[1], decoding=Decoding(max_new_tokens=2))


def test_no_text_ends_before_min_new_tokens():
    host = FakeHost(64)
    host.model.generation_config.eos_token_id = list(range(2, 40))  # most tokens end a text
    free = write(host, ["the"] * 20, range(20), max_new_tokens=12)
    held = write(host, ["the"] * 20, range(20), max_new_tokens=12, min_new_tokens=6)
    assert min(row.tokens for row in free) < 6
    assert min(row.tokens for row in held) == 6  # of 20 texts about 12 end where they may


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_ngram_blocking_equals_transformers(n):
    rng = np.random.default_rng(n)
    rows = rng.integers(0, 5, size=(3, 6))  # five ids only, so that n-grams repeat all the time
    reference = NoRepeatNGramLogitsProcessor(n)
    texts = [NGrams(n, row) for row in rows.tolist()]
    blocked = 0
    for _ in range(60):
        scores = torch.zeros(3, 5)
        expected = reference(torch.from_numpy(rows), scores.clone())
        actual = scores.clone()
        block_repeats(actual, texts)
        assert torch.equal(actual, expected)
        blocked += int(torch.isinf(actual).sum())
        new = rng.integers(0, 5, size=3)
        rows = np.concatenate([rows, new[:, None]], axis=1)
        for text, token in zip(texts, new.tolist(), strict=True):
            text.append(token)
    assert blocked > 0


def test_ngram_blocking_of_prompts_shorter_than_n_and_ids_beyond_the_logits():
    scores = torch.zeros(2, 5)
    block_repeats(scores, [NGrams(2, [1]), NGrams(2, [8, 9, 8])])
    assert torch.isfinite(scores).all()  # row 0 has no bigram yet, row 1 forbids id 9, which has no logit


class TestDrafts:
    def marked(self, host, tmp_path, prompts=PROMPTS, seeds=SEEDS, **changes):
        bound = DEW(m=8).bind(Key(bytes(32)), host.info, Workspace(cache=tmp_path))
        options = {"max_new_tokens": 60, "top_k": 40, **changes}
        return bound, host.generate(prompts, scheme=bound, seeds=seeds, decoding=Decoding(**options))

    def test_text_does_not_depend_on_the_batch(self, host, bag_encoder, tmp_path):
        _, batched = self.marked(host, tmp_path, drafts=3, no_repeat_ngram=3)
        for prompt, seed, text in zip(PROMPTS, SEEDS, batched, strict=True):
            assert self.marked(host, tmp_path, [prompt], [seed], drafts=3, no_repeat_ngram=3)[1] == [text]

    def test_drafts_continue_what_was_kept(self, host, bag_encoder, tmp_path):
        """Each token is one of the likeliest after the text that was returned; one of them may end it."""
        _, texts = self.marked(host, tmp_path, drafts=3, top_k=2)
        logits = host.next_logits(PROMPTS, [list(text.token_ids) for text in texts])
        for text, rows in zip(texts, logits, strict=True):
            allowed = rows.masked_fill(~torch.tensor(host.info.markable), -torch.inf).topk(3, dim=1).indices
            assert (allowed == torch.tensor(text.token_ids)[:, None]).any(dim=1).all()

    def test_each_draft_blocks_its_own_n_grams(self, host, bag_encoder, tmp_path, monkeypatch):
        """Drafts that continue one text have equal tables, and each grows by itself."""
        tables = []

        def blocked(scores, ngrams):
            tables.append(len({id(each) for each in ngrams}) == len(ngrams))
            block_repeats(scores, ngrams)

        monkeypatch.setattr("dewmark.hosts.transformers.decoding_loop.block_repeats", blocked)
        self.marked(host, tmp_path, drafts=3, no_repeat_ngram=2)
        assert len(tables) > DRAFT_STRETCH
        assert all(tables)

    def test_scheme_that_cannot_choose_says_so(self, host, force):
        with pytest.raises(ConfigError, match="cannot choose between drafts"):
            host.generate(["the"], scheme=force(host.info, 2), seeds=[1], decoding=Decoding(drafts=2))
