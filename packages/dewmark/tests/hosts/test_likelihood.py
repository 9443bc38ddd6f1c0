"""Logits and likelihoods of given texts; branches packed behind their text score what each scores alone."""

from __future__ import annotations

import pytest
import torch
import transformers
from tests.hosts.test_architectures import CONFIGS

from dewmark.errors import InputError, NumericalError
from dewmark.hosts.fake import FakeHost, tiny_tokenizer
from dewmark.hosts.transformers import likelihood
from dewmark.hosts.transformers.likelihood import (
    Branch,
    cut_branches,
    packable_length,
    score_branches,
    score_completions,
)
from dewmark.hosts.transformers.model import TransformersHost

TEXT = "the old bridge over the river was on the hill"
PLACES = [0, 3, 4, 8, 14, 14, 14, 23, 33, 45]
LEAVES = [
    "",
    " sea",
    "new town",
    " wind over the",
    " house",
    " sun and rain",
    " river",
    "s",
    " sea",
    " and night",
]
BRANCHES = list(zip(PLACES, LEAVES, strict=True))
PACKED = {"gpt2", "gpt_neox", "gemma3_text", "qwen3"}  # Bloom takes no positions


def rows_of(host, text, branches):
    """Each branch in its own row, split by hand: the places are ends and beginnings of words."""
    root = host.tokenizer.encode_prompts([""], needs_bos=True)[0]
    prompts, completions = [], []
    for at, leaf in branches:
        left = text[:at].rstrip()
        ids = [tokenized.ids for tokenized in host.tokenizer.encode([left, text[len(left) : at] + leaf])]
        prompts.append([*root, *ids[0]])
        completions.append(ids[1])
    return score_completions(host.model, prompts, completions, fill_id=0, vocab_size=host.info.vocab_size)


def architecture(name, attention="sdpa", **changes):
    torch.manual_seed(0)
    config = CONFIGS[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return TransformersHost(model, tiny_tokenizer(96))


def mask_shapes(host):
    """A list that collects the shape of the mask of every forward pass."""
    shapes = []
    assert host._packable >= 0  # tried before anything is counted
    host.model.register_forward_pre_hook(
        lambda model, args, inputs: shapes.append(tuple(inputs["attention_mask"].shape)), with_kwargs=True
    )
    return shapes


class TestEqualsRows:
    @pytest.mark.parametrize(
        ("name", "attention"),
        [(name, kind) for name in CONFIGS for kind in ("sdpa", "eager") if (name, kind) != ("bloom", "sdpa")],
    )
    def test_every_architecture(self, name, attention):
        host = architecture(name, attention, sliding_window=64)
        assert (host._packable > 0) == (name in PACKED)
        (scores,) = host.branch_log_likelihood([TEXT], [BRANCHES])
        assert scores == pytest.approx(rows_of(host, TEXT, BRANCHES), abs=1e-4)
        assert scores[0] == 0.0  # nothing was added
        assert len({round(score, 3) for score in scores}) > 8  # the model does look at what stands before

    @pytest.mark.parametrize("kind", ["words", "bytes"])
    def test_many_texts(self, kind):
        host = FakeHost(kind=kind)
        texts = [TEXT, "the sea", TEXT.upper(), "", "water and light of the day"]
        branches = [BRANCHES, [(7, " wind"), (0, "a")], BRANCHES[::-1], [(0, "the sun")], []]
        scores = host.branch_log_likelihood(texts, branches)
        for text, leaves, found in zip(texts, branches, scores, strict=True):
            assert host.branch_log_likelihood([text], [leaves])[0] == pytest.approx(found, abs=1e-4)
            if kind == "words" and leaves:
                assert found == pytest.approx(rows_of(host, text, leaves), abs=1e-4)

    def test_rows_are_limited_by_size_and_batches_by_memory(self, monkeypatch):
        host = FakeHost()
        (whole,) = host.branch_log_likelihood([TEXT], [BRANCHES])
        shapes = mask_shapes(host)
        assert host.branch_log_likelihood([TEXT] * 3, [BRANCHES] * 3)[2] == pytest.approx(whole, abs=1e-4)
        # three texts in one batch, of 11 tokens each and those of its branches but their last
        assert shapes == [(3, 1, 24, 24)]
        shapes.clear()
        monkeypatch.setattr(likelihood, "_ROW_TOKENS", 16)
        monkeypatch.setitem(likelihood._PAIRS_AT_ONCE, "cpu", 2 * 16 * 16)
        monkeypatch.setitem(likelihood._SUMMED_AT_ONCE, "cpu", 512 * 5)
        assert host.branch_log_likelihood([TEXT] * 3, [BRANCHES] * 3)[2] == pytest.approx(whole, abs=1e-4)
        assert len(shapes) > 2
        assert all(n * width * width <= 2 * 16 * 16 or n == 1 for n, _, width, _ in shapes)
        assert all(width <= 24 for _, _, width, _ in shapes)  # twice the trunk's 11, in eights


class TestPackable:
    def test_packing_ends_at_the_attention_window(self):
        host = architecture("gemma3_text", sliding_window=12)
        assert host._packable == 12
        shapes = mask_shapes(host)
        (scores,) = host.branch_log_likelihood([TEXT], [BRANCHES])
        assert scores == pytest.approx(rows_of(host, TEXT, BRANCHES), abs=1e-4)
        assert {len(shape) for shape in shapes} == {2, 4}  # only what goes past the window is in rows
        assert architecture("gemma3_text")._packable == 0  # a window of 6 is too short to try anything

    def test_a_model_that_lets_branches_see_each_other_is_detected(self, monkeypatch):
        host = FakeHost()
        settings = {"fill_id": 0, "vocab_size": 512}
        assert packable_length(host.model, **settings) > 512
        forward = host.model.forward

        def causal(self, input_ids, position_ids=None, attention_mask=None, logits_to_keep=0, **kwargs):
            mask = None if attention_mask.ndim == 4 else attention_mask
            return forward(input_ids=input_ids, position_ids=position_ids, attention_mask=mask,
                           logits_to_keep=logits_to_keep)  # fmt: skip

        monkeypatch.setattr(type(host.model), "forward", causal)
        assert packable_length(host.model, **settings) == 0

    def test_a_model_that_rejects_the_mask(self, monkeypatch):
        host = FakeHost()

        def refuse(*args, **kwargs):
            raise ValueError("attention_mask must be 2D")

        monkeypatch.setattr(likelihood, "_packed_sums", refuse)
        (scores,) = host.branch_log_likelihood([TEXT], [BRANCHES])
        assert scores == pytest.approx(rows_of(host, TEXT, BRANCHES), abs=1e-4)


class TestCut:
    def test_a_branch_begins_where_the_kept_tokens_end(self):
        tokenizer = FakeHost(kind="bytes").tokenizer
        text = "the naïve house"
        (ids,) = (tokenized.ids for tokenized in tokenizer.encode([text]))
        (trunk,), cut = cut_branches(
            tokenizer, [text], [[(4, "x"), (6, "x"), (12, "x")]], root=[1], context=None
        )
        assert trunk == [1, *ids]
        before = [tokenizer.decode([trunk[1 : branch.kept]])[0] for branch in cut]
        leaves = [tokenizer.decode([list(branch.ids)])[0] for branch in cut]
        assert list(zip(before, leaves, strict=True)) == [
            ("the", " x"),
            ("the na", "x"),
            ("the naïve", " hox"),  # a token that straddles is the branch's
        ]

    def test_long_texts_start_later(self):
        host = FakeHost(context=16)
        text = " the sea" * 20
        places = list(range(0, len(text) + 1, 4))
        trunks, cut = cut_branches(
            host.tokenizer, [text], [[(at, " wind rain") for at in places]], root=[1], context=16
        )
        whole = [1, *host.tokenizer.encode([text])[0].ids]
        assert len(trunks) > 2
        for at, branch in zip(places, cut, strict=True):
            assert branch.kept + len(branch.ids) <= 16
            kept = trunks[branch.trunk][1 : branch.kept]
            assert tuple(kept) == tuple(whole[at // 4 + 1 - len(kept) : at // 4 + 1])
            assert len(kept) >= min(at // 4, 5)  # half of the context, less the branch and the beginning
        (scores,) = host.branch_log_likelihood([text], [[(at, " wind rain") for at in places]])
        assert all(score < 0 for score in scores)

    def test_rejections(self):
        host = FakeHost(context=16)
        with pytest.raises(InputError, match="1 texts but branches of 2"):
            host.branch_log_likelihood(["the"], [[], []])
        with pytest.raises(InputError, match="text 0 has 3 characters, no branch can start at 4"):
            host.branch_log_likelihood(["the"], [[(4, "x")]])
        with pytest.raises(InputError, match="context of 16"):
            host.branch_log_likelihood(["the"], [[(3, " sea" * 16)]])

    def test_nan_of_a_branch_is_reported(self):
        host = FakeHost()
        assert host._packable
        with torch.no_grad():
            host.model.model.norm.weight.fill_(float("nan"))
        with pytest.raises(NumericalError, match="NaN for text 0"):
            score_branches(host.model, [[1, 5]], [Branch(0, 2, [6])], fill_id=0, vocab_size=512, packable=99)


PROMPTS = ["the old bridge", "the", "", "water and light of the day"]


TEXTS = [" over the river", "", " sea wind rain sun", " the city the town the road"]


def completions(host):
    return [tokenized.ids for tokenized in host.tokenizer.encode(TEXTS)]


def test_logits_of_a_row_equal_those_of_the_row_alone(host):
    for prompt, ids, logits in zip(
        PROMPTS, completions(host), host.next_logits(PROMPTS, completions(host)), strict=True
    ):
        assert logits.shape == (len(ids), host.info.vocab_size)
        assert logits.dtype == torch.float32
        start = host.tokenizer.encode_prompts([prompt])[0]
        with torch.inference_mode():
            expected = host.model(torch.tensor([[*start, *ids]])).logits[0, len(start) - 1 : -1]
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_batches_are_limited_and_change_nothing(host, monkeypatch):
    expected = list(host.next_logits(PROMPTS, completions(host)))
    shapes = []
    forward = type(host.model).forward

    def counted(self, **inputs):
        shapes.append(tuple(inputs["input_ids"].shape))
        return forward(self, **inputs)

    monkeypatch.setattr(type(host.model), "forward", counted)
    monkeypatch.setattr("dewmark.hosts.transformers.likelihood._TOKENS_AT_ONCE", {"cpu": 20})
    rows = host.next_logits(PROMPTS, completions(host))
    assert shapes == []  # nothing runs before it is asked for
    for row, other in zip(rows, expected, strict=True):
        torch.testing.assert_close(row, other, atol=1e-4, rtol=0)
    assert len(shapes) > 1
    assert all(rows * length <= 20 or rows == 1 for rows, length in shapes)


def test_the_likelihood_agrees_with_the_logits(host):
    sums = host.log_likelihood(PROMPTS, TEXTS)
    for (total, count), ids, logits in zip(
        sums, completions(host), host.next_logits(PROMPTS, completions(host)), strict=True
    ):
        picked = logits.log_softmax(-1)[range(len(ids)), list(ids)]
        assert (total, count) == (pytest.approx(float(picked.sum()), abs=1e-4), len(ids))


def test_logits_may_be_modified_in_place(host):
    for logits in host.next_logits(["the"], [[5, 6]]):
        logits.mul_(2.0)


def test_bad_rows_are_rejected_before_anything_runs():
    host = FakeHost(context=32)
    with pytest.raises(InputError, match="context of 32"):
        host.next_logits(["the"], [[5] * 40])
    with pytest.raises(InputError, match="1 prompts but 2 texts"):
        host.next_logits(["the"], [[5], [6]])
    with pytest.raises(InputError, match="token 9999"):
        host.next_logits(["the"], [[9999]])


def test_nan_raises_one_clear_error():
    host = FakeHost()
    with torch.no_grad():
        host.model.lm_head.weight[5] = float("nan")
    with pytest.raises(NumericalError, match="text 0.*float32"):
        list(host.next_logits(["the"], [[7, 8]]))


def test_log_likelihood_counts_only_the_completion(host):
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
    texts = [*TEXTS[:3], " the old ship was on the water when the wind and rain"]
    expected = host.log_likelihood(PROMPTS, texts)
    monkeypatch.setitem(likelihood._LOGITS_AT_ONCE, "cpu", 512 * 30)
    monkeypatch.setitem(likelihood._TOKENS_AT_ONCE, "cpu", 60)
    monkeypatch.setitem(likelihood._SUMMED_AT_ONCE, "cpu", 512 * 5)
    for (a, n), (b, m) in zip(host.log_likelihood(PROMPTS, texts), expected, strict=True):
        assert n == m
        assert a == pytest.approx(b, abs=1e-3)
