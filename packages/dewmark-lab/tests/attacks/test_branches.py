"""Branches packed behind their text score what each scores alone."""

from __future__ import annotations

import functools

import pytest
import torch
import transformers
from tests.hosts.test_architectures import CONFIGS

from dewmark.errors import InputError, NumericalError
from dewmark.hosts.fake import FakeHost, tiny_tokenizer
from dewmark.hosts.transformers.likelihood import score_completions
from dewmark.hosts.transformers.model import TransformersHost
from dewmark_lab.attacks.rewriting import branches as branches_module
from dewmark_lab.attacks.rewriting.branches import (
    Branch,
    BranchScorer,
    cut_branches,
    packable_length,
    score_branches,
)

scorer = functools.cache(BranchScorer)
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
    assert scorer(host).packable >= 0  # tried before anything is counted
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
        assert (scorer(host).packable > 0) == (name in PACKED)
        (scores,) = scorer(host).scores([TEXT], [BRANCHES])
        assert scores == pytest.approx(rows_of(host, TEXT, BRANCHES), abs=1e-4)
        assert scores[0] == 0.0  # nothing was added
        assert len({round(score, 3) for score in scores}) > 8  # the model does look at what stands before

    @pytest.mark.parametrize("kind", ["words", "bytes"])
    def test_many_texts(self, kind):
        host = FakeHost(kind=kind)
        texts = [TEXT, "the sea", TEXT.upper(), "", "water and light of the day"]
        branches = [BRANCHES, [(7, " wind"), (0, "a")], BRANCHES[::-1], [(0, "the sun")], []]
        scores = scorer(host).scores(texts, branches)
        for text, leaves, found in zip(texts, branches, scores, strict=True):
            assert scorer(host).scores([text], [leaves])[0] == pytest.approx(found, abs=1e-4)
            if kind == "words" and leaves:
                assert found == pytest.approx(rows_of(host, text, leaves), abs=1e-4)

    def test_rows_are_limited_by_size_and_batches_by_memory(self, monkeypatch):
        host = FakeHost()
        (whole,) = scorer(host).scores([TEXT], [BRANCHES])
        shapes = mask_shapes(host)
        assert scorer(host).scores([TEXT] * 3, [BRANCHES] * 3)[2] == pytest.approx(whole, abs=1e-4)
        # three texts in one batch, of 11 tokens each and those of its branches but their last
        assert shapes == [(3, 1, 24, 24)]
        shapes.clear()
        monkeypatch.setattr(branches_module, "ROW_TOKENS", 16)
        monkeypatch.setitem(branches_module._PAIRS_AT_ONCE, "cpu", 2 * 16 * 16)
        monkeypatch.setitem(branches_module._SUMMED_AT_ONCE, "cpu", 512 * 5)
        assert scorer(host).scores([TEXT] * 3, [BRANCHES] * 3)[2] == pytest.approx(whole, abs=1e-4)
        assert len(shapes) > 2
        assert all(n * width * width <= 2 * 16 * 16 or n == 1 for n, _, width, _ in shapes)
        assert all(width <= 24 for _, _, width, _ in shapes)  # twice the trunk's 11, in eights


class TestPackable:
    def test_packing_ends_at_the_attention_window(self):
        host = architecture("gemma3_text", sliding_window=12)
        assert scorer(host).packable == 12
        shapes = mask_shapes(host)
        (scores,) = scorer(host).scores([TEXT], [BRANCHES])
        assert scores == pytest.approx(rows_of(host, TEXT, BRANCHES), abs=1e-4)
        assert {len(shape) for shape in shapes} == {2, 4}  # only what goes past the window is in rows
        assert (
            BranchScorer(architecture("gemma3_text")).packable == 0
        )  # a window of 6 is too short to try anything

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

        monkeypatch.setattr(branches_module, "packed_sums", refuse)
        (scores,) = scorer(host).scores([TEXT], [BRANCHES])
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
        (scores,) = scorer(host).scores([text], [[(at, " wind rain") for at in places]])
        assert all(score < 0 for score in scores)

    def test_rejections(self):
        host = FakeHost(context=16)
        with pytest.raises(InputError, match="1 texts but branches of 2"):
            scorer(host).scores(["the"], [[], []])
        with pytest.raises(InputError, match="text 0 has 3 characters, no branch can start at 4"):
            scorer(host).scores(["the"], [[(4, "x")]])
        with pytest.raises(InputError, match="context of 16"):
            scorer(host).scores(["the"], [[(3, " sea" * 16)]])

    def test_nan_of_a_branch_is_reported(self):
        host = FakeHost()
        assert scorer(host).packable
        with torch.no_grad():
            host.model.model.norm.weight.fill_(float("nan"))
        with pytest.raises(NumericalError, match="NaN in torch.float32"):
            score_branches(host.model, [[1, 5]], [Branch(0, 2, [6])], fill_id=0, vocab_size=512, packable=99)
