from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import fields
from importlib import resources
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dewmark.storage import save_bundle
from dewmark.text.spelling import Spelling
from dewmark.text.trie import CLOSED, CUT, ENDED, UNKNOWN, Trie, build_trie, load_trie
from dewmark.text.words import SPELLINGS, borrowed_rows, spelling, words
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost

FORMS = ("a", "ab", "a'b", "abé", "bridge", "don't", "don", "the", "of", "u.s", "l'eau")
ROW = {form: row for row, form in enumerate(FORMS, start=1)}
DATA = resources.files("dewmark") / "data"


def push(trie: Trie, state: int, token: int) -> tuple[int, list[int]]:
    """The state after a token, and the rows of the words that it ends: the rule of `dewmark.text.trie`."""
    ended: list[int] = []
    for part in trie.parts[token][trie.parts[token] >= 0].tolist():
        key = state * len(trie.breaks) + part
        place = min(int(np.searchsorted(trie.keys, key)), len(trie.keys) - 1)
        spelled, factor = int(trie.spelled[state]), int(trie.factors[part])
        if trie.keys[place] == key:
            state = int(trie.targets[place])
        elif trie.breaks[part] or spelled == CUT:
            ended += [int(trie.rows[state])] * (state not in (CLOSED, ENDED))
            ended += [int(trie.inner[part])] * bool(trie.inner[part] >= 0)
            state = int(trie.after_break[part])
        elif min(spelled, factor) < 0:
            state = UNKNOWN
        else:
            state = len(trie.rows) - 2 * SPELLINGS + (spelled * factor + int(trie.terms[part])) % SPELLINGS
    return state, ended


def ended(trie: Trie, tokens: list[int]) -> list[int]:
    """The rows of the words that tokens end, followed by the end of the text."""
    state, found = CLOSED, []
    for token in [*tokens, trie.vocab_size - 1]:
        state, rows = push(trie, state, token)
        found += rows
    return found


def merged(rows: list[int]) -> list[int]:
    """Unlisted words in a row count as one: the trie does not follow their insides."""
    return [row for i, row in enumerate(rows) if row or i == 0 or rows[i - 1]]


def spell(trie: Trie, pieces: list[str], *spelled: str) -> list[int]:
    return ended(trie, [pieces.index(piece) for piece in spelled])


PIECES = [
    *("bri", "dge", " bri", " BRI", "Dge", " the", "The", "don", "'t", "’t", "'", ".", " don", "t", "s", "."),
    *(
        " of the",
        ",",
        "1",
        ",000",
        "...",
        " U",
        ".S",
        "S",
        "\ufffd",
        " \ufffd",
        "我",
        " 'the",
        "'the",
        "\n",
        "-",
    ),
    *(" l", "eau", "’eau", " of", "e of", "com", "the", ""),
]


@pytest.mark.parametrize(
    ("spelled", "expected"),
    [
        ((" bri", "dge"), ["bridge"]),
        ((" BRI", "Dge", " the"), ["bridge", "the"]),
        (("bri", "dge", "-", "the"), ["bridge", "the"]),
        (("bri", "dge", "s", " the"), [None, "the"]),
        ((" don", "'t"), ["don't"]),
        ((" don", "’t", "."), ["don't"]),
        ((" don", "'", "t"), ["don't"]),
        ((" don", "'", " the"), ["don", "the"]),
        ((" l", "’eau"), ["l'eau"]),
        ((" l", "'", "eau"), ["l'eau"]),
        ((" U", ".S", "."), ["u.s"]),
        ((" U", ".", "S", ".", " the"), ["u.s", "the"]),
        ((" the", ",", " the"), ["the", "the"]),
        ((" the", "...", "the"), ["the", "the"]),
        ((" the", "1"), [None]),
        (("1", ",000", " the"), [None, "the"]),
        (("1", ".", "1", " the"), [None, "the"]),
        ((" the", ",000"), ["the", None]),
        ((" 'the",), ["the"]),
        (("'", "the"), ["the"]),
        ((" the", ".", "'the"), ["the", "the"]),
        ((" of the", " the"), ["of", "the", "the"]),
        ((" the", "我", " the"), ["the", None, "the"]),
        ((" bri", "\ufffd", "dge", " the"), [None, "the"]),
        ((" the", " \ufffd", " the"), ["the", None, "the"]),
        ((" the", "", "the"), ["the", "the"]),
    ],
)
def test_the_words_that_tokens_end(spelled, expected) -> None:
    trie = build_trie(FORMS, PIECES, special={len(PIECES) - 1})
    assert spell(trie, PIECES, *spelled) == [0 if form is None else ROW[form] for form in expected]


def test_letters_after_a_sign_are_another_word() -> None:
    """`words` finds one word, "the.com", which is not listed; the trie has reported "the" by then."""
    trie = build_trie(FORMS, PIECES, special=set())
    the, dot, com = (PIECES.index(piece) for piece in (" the", ".", "com"))
    state, _ = push(trie, CLOSED, the)
    assert trie.rows[state] == ROW["the"]
    state, rows = push(trie, state, dot)
    assert (state, rows) == (ENDED, [ROW["the"]])
    assert push(trie, state, com) == (UNKNOWN, [])
    assert not trie.opens[ENDED]


def test_a_token_with_letters_before_its_break_leads_to_unknown() -> None:
    trie = build_trie(FORMS, [*PIECES, " th"], special=set())
    state, _ = push(trie, CLOSED, len(PIECES))
    assert push(trie, state, PIECES.index("e of")) == (UNKNOWN, [])


_LETTERS = ("a", "b", "A", "é")
_VOCABULARY = [
    *_LETTERS,
    *map("".join, product(_LETTERS, repeat=2)),
    *(f"{sign}{letter}" for sign in "'’." for letter in _LETTERS),
    *(f" {letter}" for letter in _LETTERS),
    *(" ", ", ", ". ", "'-", "...", " 1-", " don", "’t", " 'a", "--b", ""),
]


@pytest.fixture(scope="module")
def letters() -> Trie:
    return build_trie(FORMS, _VOCABULARY, special={len(_VOCABULARY) - 1})


@given(st.lists(st.integers(0, len(_VOCABULARY) - 2), max_size=24))
@settings(max_examples=150)
def test_the_trie_ends_the_words_of_the_text(letters, tokens) -> None:
    text = "".join(_VOCABULARY[token] for token in tokens)
    expected = [ROW.get(word.form, 0) for word in words(text)]
    assert merged(ended(letters, tokens)) == merged(expected)


# Words that are not listed, in a list that is long enough to lend rows

_MANY = (*FORMS, *(f"{a}{b}{c}q" for a, b, c in product("abcdefghijklmnopqrst", repeat=3)))
_OWN = {form: row for row, form in enumerate(_MANY, start=1)}
_MORE = [*_VOCABULARY, "我", "我们", "们", "国", "中", "中国", " 中国", "，我们", "ที่", "การ", "1"]


def row_of(form: str) -> int:
    """The rule of `Lexicon.rows`."""
    spelled, _ = spelling(form)
    begins = form.isascii() and any(listed.startswith(form) for listed in _MANY)
    if form in _OWN or spelled < 0 or begins:
        return _OWN.get(form, 0)
    return int(borrowed_rows(spelled, len(_MANY)))


@pytest.fixture(scope="module")
def lending() -> Trie:
    return build_trie(_MANY, [*_MORE, ""], special={len(_MORE)})


@given(st.lists(st.sampled_from([i for i, piece in enumerate(_MORE[:-3]) if piece]), max_size=24))
@settings(max_examples=150)
def test_unlisted_words_have_the_rows_that_detection_reads(lending, tokens) -> None:
    text = "".join(_MORE[token] for token in tokens)
    expected = [word.form for word in words(text)]
    # what the trie does not follow: letters after a sign of their own token, and digits beside letters
    odd = any(not form.isalpha() and "'" not in form for form in expected)
    found = ended(lending, tokens)
    if not odd and not any(sign in text for sign in "'’.1"):
        assert found == [row_of(form) for form in expected]


def test_a_word_without_spaces_ends_where_no_unit_goes_on(lending) -> None:
    def spelled(*pieces: str) -> list[int]:
        return ended(lending, [_MORE.index(piece) for piece in pieces])

    assert spelled("我", "们", "中国") == [row_of("我们"), row_of("中国")]
    assert spelled("中", "国", "a", "b", " 中国") == [row_of("中国"), row_of("ab"), row_of("中国")]
    assert spelled("，我们", "中", "ที่", "การ") == [row_of("我们"), row_of("中"), row_of("ที่"), row_of("การ")]
    assert spelled("é", "é", "AA") == [row_of("ééaa")] != [0]


def test_units_end_inside_of_tokens_and_characters_come_in_parts() -> None:
    pieces = ["中", "国中", "\ufffd", "\ufffd", " \ufffd", "国", ""]
    trie = build_trie(_MANY, pieces, special={6}, split={(2, 3): "國", (4, 3): "国"})
    assert ended(trie, [0, 1, 5]) == [row_of("中国"), row_of("中国")]
    assert ended(trie, [0, 2, 3, 0, 4, 3]) == [row_of("中国"), row_of("中"), row_of("国")]
    assert ended(trie, [2, 3, 1]) == [row_of("国"), row_of("国"), row_of("中")]
    (listed,) = np.flatnonzero(trie.keys == push(trie, CLOSED, 0)[0] * len(trie.breaks) + 1)
    assert trie.rows[trie.targets[listed]] == row_of("中国")  # as a candidate it extends 中


def test_letters_in_parts_and_marks_in_tokens_of_their_own_stay_in_their_words() -> None:
    pieces = ["한", "\ufffd", "\ufffd", " 한\ufffd", " ", "يا", "ً", "Ω", "त", "े", "한글", " 한", ""]
    forms = ["한", "한글", "يا", "ωω", "ते"]
    split = {(1, 2): "글", (3, 2): "글", (2, 1): "Ω"}
    trie = build_trie(forms, pieces, special={12}, split=split)
    row = {form: i for i, form in enumerate(forms, start=1)}
    assert ended(trie, [0, 1, 2, 4, 3, 2, 4, 10]) == [row["한글"]] * 3
    assert ended(trie, [5, 6, 4, 8, 9]) == [row["يا"], row["ते"]]
    assert ended(trie, [4, 7, 2, 1]) == [row["ωω"]]
    assert ended(trie, [0, 1, 4, 0]) == [row["한"]] * 2  # a letter that no token ends


def texts(*names: str) -> list[str]:
    files = [file for name in names for file in sorted((DATA / name).iterdir(), key=lambda file: file.name)]
    return [file.read_text(encoding="utf-8") for file in files if file.name.endswith(".txt")]


def test_real_texts_token_by_token() -> None:
    host = FakeHost(400, kind="bytes", padded_vocab=7).info
    special = min(host.tokenizer.special_ids)
    found = texts("registers")
    distinct = sorted({word.form for text in found for word in words(text)})
    forms = [form for i, form in enumerate(distinct) if i % 2 and not any(map(str.isdigit, form))]
    forms = sorted({*forms, *(form for form in distinct if "'" in form)})
    row = {form: i for i, form in enumerate(forms, start=1)}
    spelling = Spelling(host.tokenizer, host.vocab_size)
    trie = build_trie(forms, spelling.pieces, special=host.tokenizer.special_ids)
    for text in found:
        if text.isascii():
            (tokens,) = host.tokenizer.encode([text])
            state, rows = CLOSED, []
            for token in [*tokens.ids, special]:
                state, more = push(trie, state, token)
                rows += more
            assert merged(rows) == merged([row.get(word.form, 0) for word in words(text)])


def test_a_trie_is_cached_and_a_damaged_one_is_built_again(tmp_path: Path) -> None:
    host = FakeHost(400, kind="bytes", padded_vocab=7).info
    workspace = Workspace(cache=tmp_path)

    def load(identity: str = "lexicon") -> Trie:
        return load_trie(FORMS, host.tokenizer, host.vocab_size, identity=identity, workspace=workspace)

    first = load()
    (folder,) = (tmp_path / "tries").iterdir()
    assert isinstance(load().keys, np.memmap)
    file = folder / "targets.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")
    again = load()
    for name in ("keys", "targets", "breaks", "after_break", "inner", "rows", "spelled", "factors", "terms"):
        np.testing.assert_array_equal(getattr(again, name), getattr(first, name))
    shutil.rmtree(folder)
    save_bundle(folder, meta={}, arrays={"keys": first.keys})  # of another layout
    np.testing.assert_array_equal(load().targets, first.targets)
    load("another")
    assert len(list((tmp_path / "tries").iterdir())) == 2


def test_a_built_trie_has_the_layout_of_a_loaded_one(monkeypatch, tmp_path: Path) -> None:
    """Kernels read the arrays as they lie in memory; tokens of several words have rows of several parts."""
    host, workspace = FakeHost(400).info, Workspace(cache=tmp_path)
    pieces = [*PIECES, "我们", "我们的话", *[""] * (400 - len(PIECES) - 2)]
    monkeypatch.setattr(
        "dewmark.text.trie.Spelling", lambda *_: SimpleNamespace(pieces=pieces, split=lambda _: {})
    )
    built, loaded = (
        load_trie(FORMS, host.tokenizer, 400, identity="lexicon", workspace=workspace) for _ in range(2)
    )
    assert built.parts.shape[1] == 4
    assert isinstance(loaded.parts, np.memmap)
    arrays = [field.name for field in fields(Trie) if field.name != "vocab_size"]
    layouts = [
        {name: ((array := getattr(trie, name)).dtype, array.shape, array.strides) for name in arrays}
        for trie in (built, loaded)
    ]
    assert layouts[0] == layouts[1]


def test_two_tokenizers_of_one_size_have_tries_of_their_own(tmp_path: Path) -> None:
    """A state of one tokenizer's trie means nothing to another one's tokens."""
    workspace = Workspace(cache=tmp_path)
    hosts = [FakeHost(400, kind=kind).info for kind in ("words", "bytes")]
    words, letters = (
        load_trie(FORMS, host.tokenizer, 400, identity="lexicon", workspace=workspace) for host in hosts
    )
    assert not np.array_equal(words.keys, letters.keys)
    assert len(list((tmp_path / "tries").iterdir())) == 2


@pytest.mark.models
@pytest.mark.parametrize(("host", "languages"), [("smollm2-135m", "en"), ("gemma3-270m", "en de fr ru ar")])
def test_real_tokenizers_end_the_words_of_the_lexicon(host: str, languages: str, tmp_path: Path) -> None:
    from dewmark.encoders.lexicon import load_lexicon
    from dewmark.hosts import host_info

    workspace = Workspace(cache=tmp_path)
    lexicon = load_lexicon(workspace=workspace)
    info = host_info(host)
    identity = lexicon.identity
    trie = load_trie(lexicon.forms, info.tokenizer, info.vocab_size, identity=identity, workspace=workspace)
    assert len(trie.keys) < 5_000_000
    special = min(info.tokenizer.special_ids)
    found = texts("registers")
    found += [(DATA / "ordinary" / f"{name}.txt").read_text(encoding="utf-8") for name in languages.split()]
    for text in found:
        (tokens,) = info.tokenizer.encode([text])
        state, rows = CLOSED, []
        for token in [*tokens.ids, special]:
            state, more = push(trie, state, token)
            rows += more
        wrong = Counter(merged(rows))
        wrong.subtract(merged(lexicon.rows([word.form for word in words(text)]).tolist()))
        # unlisted words may be cut within: "chemist" ends where "'" is a token of its own
        assert sum(map(abs, wrong.values())) <= 3
