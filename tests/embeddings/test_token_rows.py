"""Rows of windows and of many texts at once are those of the texts one by one."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from tests.embeddings.test_cutting import bert, xlm
from tests.fakes import unpacked
from tests.tiny_use import TinyTokenizer

from dewmark.encoders.use import WordPieces
from dewmark.encoders.window_ids import Cutter, token_rows
from dewmark.errors import InputError
from dewmark.hosts.transformers.tokenizer import Pieces
from dewmark.testing.trial import tiny_host

PIECES = [
    *(" the", " river", " stone", "bridge", "s", "'s", " École", "été", " 3", ".", "14", ",", " unknownword"),
    *("中", " 文", "\n", "\n\n", " a\tb", " x\u00a0y", "  ", " ", "   the", "[SEP]", " [SEP]", "[MASK]", ""),
    *("\u0301", " \u0301combining", "e\u0301", "\u200djoin", " 🙂", " " + "long" * 20, "THE", " ﬁne", "½"),
]
HALVES = ["é".encode()[:1], "é".encode()[1:], b" " + "中".encode()[:2]]  # of characters
CUTTERS = {
    "bert": lambda: Cutter(bert(), longest=128),
    "xlm": lambda: Cutter(xlm(), longest=128),
    "short": lambda: Cutter(bert(), longest=6),
    "use": lambda: WordPieces(TinyTokenizer()),
}


def host(*, joined=True):
    """A tokenizer whose ids are pieces of text, the last few of them halves of characters."""
    spelled = [*(piece.encode() for piece in PIECES), *HALVES]

    def decode(batch):
        known = [[i for i in ids if i < len(spelled)] for ids in batch]
        return [b"".join(map(spelled.__getitem__, ids)).decode("utf-8", "replace") for ids in known]

    pieces = Pieces(decode).of_all(len(spelled)) if joined else None
    return SimpleNamespace(size=len(spelled), pieces=pieces, decode=decode)


def windows(size, *, seed, k=3, count=40):
    chance = random.Random(seed)
    return [tuple(chance.choices(range(-1, size), k=k)) for _ in range(count)]


def by_texts(cutter, tokenizer, given, prefix=""):
    """The rows of windows, one text after another."""
    texts = tokenizer.decode([[i for i in window if i >= 0] for window in given])
    return [unpacked(cutter.rows([prefix + text])[0]) for text in texts]


@pytest.mark.parametrize("kind", CUTTERS)
@pytest.mark.parametrize("prefix", ["", "the river: ", "sto"])
@pytest.mark.parametrize("joined", [True, False])
def test_rows_are_those_of_the_texts(kind, prefix, joined):
    tokenizer, cutter = host(joined=joined), CUTTERS[kind]()
    rows = token_rows(cutter, tokenizer, prefix=prefix)
    for seed in range(20):
        size = len(PIECES) - 10 if seed < 15 else tokenizer.size + (seed > 17)
        given = windows(size, seed=seed, k=1 + seed % 4)
        assert [unpacked(row) for row in rows(given)] == by_texts(CUTTERS[kind](), tokenizer, given, prefix)


def test_rows_of_a_real_kind_of_tokenizer():
    tokenizer = tiny_host().info.tokenizer
    rows = token_rows(Cutter(bert(), longest=128), tokenizer)
    given = windows(tokenizer.size, seed=4)
    assert [unpacked(row) for row in rows(given)] == by_texts(Cutter(bert(), longest=128), tokenizer, given)


@pytest.mark.parametrize("kind", CUTTERS)
def test_many_texts_are_the_single_ones(kind):
    cutter, texts = CUTTERS[kind](), ["", " the river", "stone ", "", "a  b", "the\u0301 \u0301", "x" * 300]
    assert cutter.rows(texts) == [cutter.rows([text])[0] for text in texts]
    assert cutter.rows([]) == []


@pytest.mark.parametrize("kind", ["bert", "use"])
@pytest.mark.parametrize("text", ["\ud800", "a \ud800 b", "a\ud801b"])
def test_half_of_a_surrogate_pair_is_refused(kind, text):
    with pytest.raises(InputError, match="lone surrogate"):
        CUTTERS[kind]().rows(["the river", text])


@pytest.mark.parametrize("kind", ["bert", "use"])
def test_no_text_is_made_of_windows_whose_words_are_known(kind, monkeypatch):
    tokenizer = host()
    rows = token_rows(CUTTERS[kind](), tokenizer)
    given = [(0, 1, 2), (1, 3, 4), (-1, -1, 0), (0, 4, 2)]  # 3 and 4 continue a word
    expected = rows(given)
    monkeypatch.setattr(rows, "_tokenizer", None)  # would fail if asked
    assert rows(given) == expected
