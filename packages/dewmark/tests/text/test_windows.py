"""Windows: ids by word equal those of the whole text, and rows of windows equal those of their texts."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from tests.fakes import unpacked
from tests.tiny_use import TinyTokenizer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from dewmark.encoders.use import USEWordTokenizer
from dewmark.errors import InputError
from dewmark.hosts.transformers.tokenizer import Pieces
from dewmark.testing.trial import tiny_host
from dewmark.text import windows as module
from dewmark.text.windows import (
    FastWordTokenizer,
    fast_word_tokenizer,
    ids_and_mask,
    pack_ids,
    pad_rows,
    window_tokenizer,
)

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz0123456789.,'!?-é中文"]
PIECES += [f"##{piece}" for piece in PIECES[4:]] + ["river", "##bridge", "the", "stone", "##s"]
WORDS = [
    *("the river stone's 3.14 bridge riverbridges don't École", "été THE", "中文河", "a\tb", "line\nbreak"),
    *("a\x1cb", "\u0301combining", "e\u0301", "\u200djoin", "x\u00a0y", "\u3000", "[SEP]", "[MASK]", ""),
    *("unknownword" * 8, "🙂", "🏳️‍🌈", "−", "ﬁne", "½"),
]


def bert():
    """Like those of BERT, MiniLM and MPNet."""
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(["[SEP]", "[CLS]"])
    return tokenizer


def xlm():
    """Like those of XLM-R and the multilingual encoders based on it."""
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
@pytest.mark.parametrize("preloaded", [True, False])
def test_ids_equal_the_tokenizer_s(made, longest, preloaded, monkeypatch):
    monkeypatch.setattr(module, "_CACHED_WORDS", 64)  # so that the cache is cleared now and then
    backend = made()
    words = FastWordTokenizer(backend, max_length=longest)
    assert words.special is not None
    if preloaded:
        words.preload([f" {word}" for word in WORDS])
    backend.enable_truncation(longest)
    for seed in range(3):
        given = texts(seed)
        assert [unpacked(row) for row in words.rows(given)] == [
            found.ids for found in backend.encode_batch(given)
        ]


def test_known_words_are_not_tokenized_again(monkeypatch):
    words = FastWordTokenizer(bert(), max_length=128)
    first = words.rows(["the river", "stone bridge"])
    monkeypatch.setattr(words, "_plain", None)  # would fail if used
    monkeypatch.setattr(words, "_truncated", None)
    assert words.rows(["the river", "stone bridge"]) == first


def test_preloaded_words_are_never_tokenized_again(monkeypatch):
    monkeypatch.setattr(module, "_CACHED_WORDS", 2)
    words = FastWordTokenizer(bert(), max_length=128)
    first = words.rows([" the river", "stone's"])
    words.preload([" the", " river", "stone's"])
    for word in "abcdefg":
        words.rows([word])
    monkeypatch.setattr(words, "_plain", None)  # would fail if used
    monkeypatch.setattr(words, "_truncated", None)
    assert words.rows([" the river", "stone's"]) == first
    assert len(words._words) <= 5 + 2


def test_other_tokenizers_get_the_whole_text():
    backend = bert()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel()  # a space belongs to the word after it
    words = FastWordTokenizer(backend, max_length=9)
    assert words.special is None
    backend.enable_truncation(9)
    given = texts(0)
    assert [unpacked(row) for row in words.rows(given)] == [
        found.ids for found in backend.encode_batch(given)
    ]


def test_a_token_with_a_space_in_it_needs_the_whole_text():
    backend = bert()
    backend.add_tokens(["the river"])
    assert FastWordTokenizer(backend, max_length=9).special is None


def test_a_slow_tokenizer_has_no_word_tokenizer():
    assert fast_word_tokenizer(object(), 128) is None


SPELLED = [
    *(" the", " river", " stone", "bridge", "s", "'s", " École", "été", " 3", ".", "14", ",", " unknownword"),
    *("中", " 文", "\n", "\n\n", " a\tb", " x\u00a0y", "  ", " ", "   the", "[SEP]", " [SEP]", "[MASK]", ""),
    *("\u0301", " \u0301combining", "e\u0301", "\u200djoin", " 🙂", " " + "long" * 20, "THE", " ﬁne", "½"),
]
PARTIAL = ["é".encode()[:1], "é".encode()[1:], b" " + "中".encode()[:2]]  # parts of characters
TOKENIZERS = {
    "bert": lambda: FastWordTokenizer(bert(), max_length=128),
    "xlm": lambda: FastWordTokenizer(xlm(), max_length=128),
    "short": lambda: FastWordTokenizer(bert(), max_length=6),
    "use": lambda: USEWordTokenizer(TinyTokenizer()),
}


def host(*, joined=True):
    """A host tokenizer whose ids are pieces of text, the last few of them parts of characters."""
    spelled = [*(piece.encode() for piece in SPELLED), *PARTIAL]

    def decode(batch):
        known = [[i for i in ids if i < len(spelled)] for ids in batch]
        return [b"".join(map(spelled.__getitem__, ids)).decode("utf-8", "replace") for ids in known]

    pieces = Pieces(decode).of_all(len(spelled)) if joined else None
    return SimpleNamespace(size=len(spelled), pieces=pieces, decode=decode)


def windows(size, *, seed, k=3, count=40):
    chance = random.Random(seed)
    return [tuple(chance.choices(range(-1, size), k=k)) for _ in range(count)]


def by_texts(words, tokenizer, given, prefix=""):
    """The rows of windows, one text at a time."""
    texts = tokenizer.decode([[i for i in window if i >= 0] for window in given])
    return [unpacked(words.rows([prefix + text])[0]) for text in texts]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("prefix", ["", "the river: ", "sto"])
@pytest.mark.parametrize("joined", [True, False])
def test_rows_of_windows_equal_those_of_their_texts(kind, prefix, joined):
    tokenizer, words = host(joined=joined), TOKENIZERS[kind]()
    rows = window_tokenizer(words, tokenizer, prefix=prefix)
    for seed in range(20):
        size = len(SPELLED) - 10 if seed < 15 else tokenizer.size + (seed > 17)
        given = windows(size, seed=seed, k=1 + seed % 4)
        assert [unpacked(row) for row in rows(given)] == by_texts(
            TOKENIZERS[kind](), tokenizer, given, prefix
        )


def test_rows_with_a_byte_level_tokenizer():
    tokenizer = tiny_host().info.tokenizer
    rows = window_tokenizer(FastWordTokenizer(bert(), max_length=128), tokenizer)
    given = windows(tokenizer.size, seed=4)
    assert [unpacked(row) for row in rows(given)] == by_texts(
        FastWordTokenizer(bert(), max_length=128), tokenizer, given
    )


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_many_texts_equal_single_ones(kind):
    words, texts = TOKENIZERS[kind](), ["", " the river", "stone ", "", "a  b", "the\u0301 \u0301", "x" * 300]
    assert words.rows(texts) == [words.rows([text])[0] for text in texts]
    assert words.rows([]) == []


@pytest.mark.parametrize("kind", ["bert", "use"])
@pytest.mark.parametrize("text", ["\ud800", "a \ud800 b", "a\ud801b"])
def test_lone_surrogates_are_rejected(kind, text):
    with pytest.raises(InputError, match="lone surrogate"):
        TOKENIZERS[kind]().rows(["the river", text])


@pytest.mark.parametrize("kind", ["bert", "use"])
def test_windows_of_known_words_need_no_decoding(kind, monkeypatch):
    tokenizer = host()
    rows = window_tokenizer(TOKENIZERS[kind](), tokenizer)
    given = [(0, 1, 2), (1, 3, 4), (-1, -1, 0), (0, 4, 2)]  # 3 and 4 continue a word
    expected = rows(given)
    monkeypatch.setattr(rows, "_host", None)  # would fail if used
    assert rows(given) == expected


def test_pack_ids():
    ids = [0, 5, 250_001, 2**31 - 1]
    assert unpacked(pack_ids(ids)) == ids
    assert pack_ids([7]) + pack_ids([8, 9]) == pack_ids([7, 8, 9])


def test_pad_rows_and_mask():
    found = pad_rows([pack_ids([5]), pack_ids([6, 7, 8]), b""], multiple=4)
    assert found.dtype == torch.int32
    assert found.tolist() == [[5, -1, -1, -1], [6, 7, 8, -1], [-1, -1, -1, -1]]
    assert pad_rows([pack_ids([5]), pack_ids([6, 7])]).tolist() == [[5, -1], [6, 7]]
    ids, mask = ids_and_mask(found, fill=9)
    assert ids.dtype == mask.dtype == torch.int64
    assert ids.is_contiguous()
    assert mask.is_contiguous()  # kernels read them row by row
    assert ids.tolist() == [[5, 9, 9, 9], [6, 7, 8, 9], [9, 9, 9, 9]]
    assert mask.tolist() == [[1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]


def test_a_batch_has_its_own_memory():
    row = pack_ids([5, 6])
    pad_rows([row])[0, 0] = 9
    assert unpacked(row) == [5, 6]
