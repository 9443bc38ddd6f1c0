"""Ids word by word are those of the whole text, for the tokenizers of the usual sentence encoders."""

from __future__ import annotations

import random

import pytest
from tests.fakes import unpacked
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from dewmark.encoders import window_ids as joining
from dewmark.encoders.window_ids import Cutter, cutter_of

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz0123456789.,'!?-é中文"]
PIECES += [f"##{piece}" for piece in PIECES[4:]] + ["river", "##bridge", "the", "stone", "##s"]
WORDS = [
    *("the river stone's 3.14 bridge riverbridges don't École", "été THE", "中文河", "a\tb", "line\nbreak"),
    *("a\x1cb", "\u0301combining", "e\u0301", "\u200djoin", "x\u00a0y", "\u3000", "[SEP]", "[MASK]", ""),
    *("unknownword" * 8, "🙂", "🏳️‍🌈", "−", "ﬁne", "½"),
]


def bert():
    """As of BERT, MiniLM and MPNet."""
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(["[SEP]", "[CLS]"])
    return tokenizer


def xlm():
    """As of XLM-R, and the multilingual encoders made of it."""
    letters = [piece for piece in PIECES[4:] if not piece.startswith("##")]
    vocabulary = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0)]
    vocabulary += [(piece, -4.0 - i / 100) for i, piece in enumerate(letters)]
    vocabulary += [(f"▁{piece}", -2.0 - i / 100) for i, piece in enumerate(letters)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=3))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def texts(seed):
    chance = random.Random(seed)
    made = ["", " ", "  the  ", " \u0301", "a \u0301b"]
    return made + [" ".join(chance.choices(WORDS, k=chance.randrange(1, 7))) for _ in range(200)]


@pytest.mark.parametrize("made", [bert, xlm])
@pytest.mark.parametrize("longest", [128, 7])
@pytest.mark.parametrize("learned", [True, False])
def test_ids_are_the_tokenizers(made, longest, learned, monkeypatch):
    monkeypatch.setattr(joining, "_LIMIT", 64)  # so that it forgets now and then
    backend = made()
    cutter = Cutter(backend, longest=longest)
    assert cutter.around is not None
    if learned:
        cutter.learn([f" {word}" for word in WORDS])
    backend.enable_truncation(longest)
    for seed in range(3):
        given = texts(seed)
        assert [unpacked(row) for row in cutter.rows(given)] == [
            found.ids for found in backend.encode_batch(given)
        ]


def test_known_words_are_not_cut_again(monkeypatch):
    cutter = Cutter(bert(), longest=128)
    first = cutter.rows(["the river", "stone bridge"])
    monkeypatch.setattr(cutter, "_plain", None)  # would fail if asked
    monkeypatch.setattr(cutter, "_backend", None)
    assert cutter.rows(["the river", "stone bridge"]) == first


def test_learned_words_are_never_cut_again(monkeypatch):
    monkeypatch.setattr(joining, "_LIMIT", 2)
    cutter = Cutter(bert(), longest=128)
    first = cutter.rows([" the river", "stone's"])
    cutter.learn([" the", " river", "stone's"])
    for word in "abcdefg":
        cutter.rows([word])
    monkeypatch.setattr(cutter, "_plain", None)  # would fail if asked
    monkeypatch.setattr(cutter, "_backend", None)
    assert cutter.rows([" the river", "stone's"]) == first
    assert len(cutter._words) <= 5 + 2


def test_other_tokenizers_are_asked_for_the_whole_text():
    backend = bert()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel()  # a space belongs to the word after it
    cutter = Cutter(backend, longest=9)
    assert cutter.around is None
    backend.enable_truncation(9)
    given = texts(0)
    assert [unpacked(row) for row in cutter.rows(given)] == [
        found.ids for found in backend.encode_batch(given)
    ]


def test_a_token_with_a_space_in_it_needs_the_whole_text():
    backend = bert()
    backend.add_tokens(["the river"])
    assert Cutter(backend, longest=9).around is None


def test_a_slow_tokenizer_has_no_cutter():
    assert cutter_of(object(), 128) is None
