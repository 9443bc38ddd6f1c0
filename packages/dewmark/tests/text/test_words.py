from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from dewmark.text.cleaning import clean
from dewmark.text.words import (
    MAX_FORM,
    SPELLINGS,
    borrowed_rows,
    cut,
    form_of,
    most_words,
    open_tail,
    places_and_forms,
    spelling,
    words,
)

# Letters, digits, marks and joiners of many scripts, dense enough that every rule meets every other.
SPACED = "aZéßñ’'.:,;_-\"  \n19٣۴אבגжЖمر각ʼ·‿\u0301\u200d\u00ad\u05b0\u2060💧🇩½"
UNSPACED = "日本語のカナー々今天是ทุกเช้า๑。、，"


def forms(text: str) -> list[str]:
    return [word.form for word in words(text)]


@settings(max_examples=300)
@given(text=st.text(max_size=60) | st.text(alphabet=SPACED + UNSPACED + "²①⼀한ㄱक्।&#;<b>", max_size=40))
def test_a_text_has_at_most_so_many_words(text) -> None:
    assert most_words(text) >= len(words(text))


@pytest.mark.parametrize("text", ["the old bridge", "старый мост", "옛 다리", "古い橋", "पुराना पुल"])
def test_the_most_words_of_a_text_are_hardly_more(text) -> None:
    assert most_words(text) <= len(words(text)) + 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't panic: l’eau, mother-in-law.", ["don't", "panic", "l'eau", "mother", "in", "law"]),
        ("3.14 1,000 12th U.S. a:b e.g.,", ["3.14", "1,000", "12th", "u.s", "a:b", "e.g"]),
        ("_emphasis_ snake_case __ ... $5 C++", ["emphasis", "snake", "case", "5", "c"]),
        ("so\u00adft wo\u200drd e\u0301te\u0301 \ufb01ne ＷＩＤＥ", ["soft", "word", "été", "fine", "wide"]),
        ("GROSS Groß İzmir ΛΌΓΟΣ", ["gross", "groß", "izmir", "λόγος"]),
        ("צה\"ל ג' שָׁלוֹם", ['צה"ל', "ג'", "שלום"]),
        ("كِتَابٌ ـكـتـاب ٣٫١٤", ["كتاب", "كتاب", "٣٫١٤"]),
        ("ok👨‍👩‍👧🇩🇪 ... ½ →", ["ok"]),
        ("\ufeff\u200b\u202eabc\u202c", ["abc"]),
        ("ລາວ ភាសាខ្មែរ မြန်မာ", ["ລາວ", "ភាសាខ្មែរ", "မြန်မာ"]),
        ("", []),
    ],
)
def test_words_by_unicode_rules(text, expected) -> None:
    assert forms(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("公園は朝から人でいっぱいだ。", "公园 は 朝 から 人 で いっぱい だ"),
        ("新幹線の窓から富士山が見える", "新干线 の 窓 から 富士山 が 见える"),
        ("高铁从北京到广州只要八个小时，我爸爸", "高铁 从 北京 到 广州 只要 八个 小时 我爸 爸"),
        ("ขอเผ็ดน้อยได้ไหมคะ", "ขอ เผ็ด น้อย ได้ ไหม คะ"),
        ("iPhone手机 と ギター12本", "iphone 手机 と ギター 12 本"),
    ],
)
def test_scripts_without_spaces(text, expected) -> None:
    """Fixed forever: a change would invalidate every text marked before."""
    assert forms(text) == expected.split()


@pytest.mark.parametrize(
    ("written", "same"),
    [("繁體中文的電腦", "繁体中文的电脑"), ("ｷﾞﾀｰとｶﾒﾗ", "ギターとカメラ"), ("ＡＢＣ手機", "abc手机")],
)
def test_traditional_and_narrow_characters_have_the_same_words(written, same) -> None:
    assert forms(written) == forms(same)


@settings(max_examples=100)
@given(
    st.text(alphabet="他们在使用计算机的中国のはから東京ที่การa 。", max_size=24),
    st.sampled_from("们机国a 。京"),
)
def test_only_the_last_word_of_a_run_changes_when_text_is_appended(text, more) -> None:
    before, after = forms(text), forms(text + more)
    assert before[:-1] == after[: max(len(before) - 1, 0)]


def test_cuts_fall_together_again_after_an_edit() -> None:
    text = "他们在使用计算机编写程序，这些程序可以帮助人们更好地完成工作和学习"
    for i in range(8):
        assert forms(text[:i] + "国" + text[i:])[-8:] == forms(text)[-8:]


def test_a_spelling_follows_from_those_of_its_parts() -> None:
    for left, right in (("talossa", "nikin"), ("д", "ом"), ("l'", "éternité")):
        (first, _), (second, factor) = spelling(left), spelling(right)
        assert spelling(left + right)[0] == (first * factor + second) % SPELLINGS
    assert spelling("b2")[0] == spelling("a.b")[0] == spelling("")[0] == -1


def test_unlisted_words_borrow_rows_behind_the_first_eighth_of_the_list() -> None:
    """Row i + 1 belongs to form i; a short list lends none. Other rows would be other marks."""
    assert borrowed_rows(np.array([0, 1, 7167, 7168]), 8192).tolist() == [1025, 1026, 8192, 1025]
    assert borrowed_rows(np.array([5]), 4095).tolist() == [0]


def test_spellings_rarely_collide() -> None:
    """Of n words in P places, n(n − 1) / 2P pairs are expected to collide; the margin is 5 sigma."""
    letters = "".join(map(chr, range(0x430, 0x450)))
    found = [spelling(a + b + c)[0] for a in "abcdefghij" for b in letters for c in letters]
    pairs = sum(count * (count - 1) // 2 for count in Counter(found).values())
    expected = len(found) * (len(found) - 1) / 2 / SPELLINGS
    assert abs(pairs - expected) < 5 * expected**0.5


@settings(max_examples=150)
@given(st.text(alphabet="aZéß’'.:,;·_-\"  \n19ªİ–…", max_size=40))
def test_plain_latin_text_has_the_words_of_any_text(text: str) -> None:
    """Its forms are found by a pattern of their own, which does not say where they are."""
    places, found = places_and_forms(text)
    assert found == [each.form for each in cut(clean(text).text)]
    assert len(places) == len(list(places)) == len(found)


def spans_by_the_rules(text: str) -> list[tuple[int, int]]:
    """UAX 29, rules WB5 to WB12 as they are written: is there a break between two characters?"""
    classes = [next((name for name in CLASSES if regex.match(rf"\p{{WB={name}}}", c)), "Other") for c in text]
    # WB4: marks belong to the character before them, but not to a line break or to nothing
    units = [
        i
        for i, (name, before) in enumerate(zip(classes, ["LF", *classes], strict=False))
        if name not in MARKS or before == "LF"
    ]
    kinds = ["", "", *(classes[i] for i in units), "", ""]
    bounds = [*units, len(text)]
    spans, start = [], 0
    for n in range(1, len(units) + 1):
        two_before, before, after, two_after = kinds[n : n + 4]
        joined = (
            (before in LETTERS and after in LETTERS)  # WB5
            or (before in LETTERS and after in MID_LETTERS and two_after in LETTERS)  # WB6
            or (two_before in LETTERS and before in MID_LETTERS and after in LETTERS)  # WB7
            or (before == "Hebrew_Letter" and after == "Single_Quote")  # WB7a
            or (before == two_after == "Hebrew_Letter" and after == "Double_Quote")  # WB7b
            or (two_before == after == "Hebrew_Letter" and before == "Double_Quote")  # WB7c
            or (before in (*LETTERS, "Numeric") and after == "Numeric")  # WB8, WB9
            or (before == "Numeric" and after in LETTERS)  # WB10
            or (two_before == after == "Numeric" and before in MID_DIGITS)  # WB11
            or (before == two_after == "Numeric" and after in MID_DIGITS)  # WB12
        )
        if not joined:
            spans.append((bounds[start], bounds[n]))
            start = n
    return spans


MARKS = ("Extend", "Format", "ZWJ")
LETTERS = ("ALetter", "Hebrew_Letter")
MID_LETTERS = ("MidLetter", "MidNumLet", "Single_Quote")
MID_DIGITS = ("MidNum", "MidNumLet", "Single_Quote")
CLASSES = {*MARKS, *LETTERS, *MID_LETTERS, *MID_DIGITS, "Numeric", "ExtendNumLet", "Double_Quote", "LF"}


@given(st.text(alphabet=SPACED, max_size=30))
@settings(max_examples=200)
def test_spaced_scripts_follow_uax_29(text) -> None:
    carries = regex.compile(r"[\p{L}\p{Nd}]")
    expected = [
        (start, end)
        for start, end in spans_by_the_rules(text)
        if carries.search(text, start, end) and form_of(text[start:end])
    ]
    assert [(word.start, word.end) for word in cut(text)] == expected


@given(st.text(alphabet=SPACED + UNSPACED, max_size=60))
@settings(max_examples=150)
def test_offsets_and_forms(text) -> None:
    end = 0
    for word in cut(text):
        assert end <= word.start < word.end
        end = word.end
        assert form_of(text[word.start : word.end]) == word.form
        assert form_of(word.form) == word.form
        assert word.form.strip()


@given(st.text(alphabet=SPACED + UNSPACED, max_size=40), st.text(alphabet=SPACED + UNSPACED, max_size=10))
@settings(max_examples=200)
def test_nothing_appended_changes_words_before_the_open_tail(text, more) -> None:
    tail = open_tail(text)
    head = text[: len(text) - len(tail)]

    def forms_of(text: str) -> list[str]:
        return [word.form for word in cut(text)]

    assert forms_of(text) == forms_of(head) + forms_of(tail)
    assert forms_of(text + more) == forms_of(head) + forms_of(tail + more)


@pytest.mark.parametrize(
    "unit", ["a", "a.", "1,", "'", "_", "e\u0301", "\u200d", 'א"', "ก", "的", "あ", "the "]
)
def test_long_repetitive_texts(unit) -> None:
    """A quadratic step would take hours."""
    text = unit * (100_000 // len(unit.encode()))
    open_tail(text)
    assert all(len(word.form) <= MAX_FORM for word in words(text))
