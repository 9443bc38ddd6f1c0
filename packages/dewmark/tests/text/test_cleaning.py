"""Texts in disguise: the words, their places in the given text, and the time it takes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dewmark.text.cleaning import clean, tokenize_cleaned
from dewmark.text.words import words
from dewmark_lab.testing.fake_host import FakeHost

PROSE = "The old bridge over the river was important to the town, and nobody had repaired it since 1923."
LOOKALIKES = str.maketrans("aceijopsxyABCEHKMOPTX", "асеіјорѕхуАВСЕНКМОРТХ")


def forms(text: str) -> list[str]:
    return [word.form for word in words(text)]


def wrapped(text: str, width: int = 4) -> list[str]:
    found = text.split(" ")
    return [" ".join(found[i : i + width]) for i in range(0, len(found), width)]


DISGUISES = {
    "zero-width spaces": "\u200b".join,
    "zero-width joiners": lambda text: text.replace("r", "r\u200d").replace("e", "\u200ce"),
    "soft hyphens": lambda text: text.replace("o", "o\u00ad"),
    "direction marks": lambda text: "\u202d" + text.replace(" ", "\u200e ") + "\u202c",
    "variation selectors": lambda text: text.replace("t", "t\ufe00"),
    "lines through letters": lambda text: "".join(c + "\u0336" for c in text),
    "HTML tags": lambda text: "<p>" + text.replace("the ", "<b class='x'>the</b> ") + "</p><br/>",
    "HTML tags inside words": lambda text: text.replace("ridg", "<em>ridg</em>"),
    "a page": lambda text: f"<!doctype html><style>p {{ color: red }}</style><body>{text}</body><!-- end -->",
    "entities": lambda text: text.replace(" ", "&nbsp;").replace("i", "&#105;").replace(",", "&#x2c;"),
    "escaped entities": lambda text: text.replace(" ", "&amp;nbsp;"),
    "Markdown": lambda text: "# " + text.replace("old", "**old**").replace("town", "[town](http://a.b/c_d)"),
    "Markdown inside words": lambda text: text.replace("ridg", "**ridg**"),
    "underscores": lambda text: text.replace(" ", "_"),
    "wide spaces": lambda text: text.replace(" ", "\u2003"),
    "Cyrillic look-alikes": lambda text: text.translate(LOOKALIKES),
    "Greek look-alikes": lambda text: text.translate(str.maketrans("aoipvT", "αοιρνΤ")),
    "wide letters": lambda text: "".join(chr(ord(c) + 0xFEE0) if c.isalpha() else c for c in text),
    "mathematical letters": lambda text: "".join(
        chr(ord(c) - ord("a") + 0x1D41A) if c.islower() else c for c in text
    ),
    "circled letters": lambda text: "".join(
        chr(ord(c) - ord("a") + 0x24D0) if c.islower() else c for c in text
    ),
    "small capitals": lambda text: text.translate(str.maketrans("abdehimnort", "ᴀʙᴅᴇʜɪᴍɴᴏʀᴛ")),
    "hyphens at line ends": lambda text: text.replace("important", "impor-\ntant").replace(
        "nobody", "no-\n  body"
    ),
    "line numbers": lambda text: "\n".join(f"{i:3d}  {line}" for i, line in enumerate(wrapped(text), 7)),
    "line numbers with colons": lambda text: "\n".join(
        f"{i}: {line}" for i, line in enumerate(wrapped(text), 1)
    ),
    "line numbers with dots": lambda text: "\n".join(
        f"{i}. {line}" for i, line in enumerate(wrapped(text), 1)
    ),
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_disguise_changes_no_word(disguise: str) -> None:
    text = DISGUISES[disguise](PROSE)
    assert text != PROSE
    assert forms(text) == forms(PROSE)


def test_numbered_lines_that_were_broken_again() -> None:
    text = f"{PROSE}\n\nIt fell in 12 days.\n\n2 men and 3 dogs saw it."
    numbered = "\n".join(f"{i} {line}" for i, line in enumerate(wrapped(text), 1))
    assert forms(numbered) == forms(text)


@pytest.mark.parametrize("disguise", DISGUISES)
def test_places_are_those_in_the_given_text(disguise: str) -> None:
    text = DISGUISES[disguise](PROSE)
    found = words(text)
    assert all(a.end <= b.start for a, b in itertools.pairwise(found))
    assert all(0 <= word.start < word.end <= len(text) for word in found)
    for word in found:  # a word's own characters, cleaned, are the word
        assert forms(text[word.start : word.end]) in ([word.form], forms(word.form)) or "look" in disguise


def test_places_word_by_word() -> None:
    text = "1 an &eacute;l&egrave;ve\n2 of br\u200bid<i>ge</i> buil-\n3 ding"
    found = [(word.form, text[word.start : word.end]) for word in words(text)]
    assert found == [
        ("an", "an"),
        ("élève", "&eacute;l&egrave;ve"),
        ("of", "of"),
        ("bridge", "br\u200bid<i>ge"),
        ("building", "buil-\n3 ding"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Старый мост через реку: the old bridge. Он сказал «good morning» и ушёл.",
        "Η παλιά γέφυρα (the old bridge) είναι κλειστή.",
        "An α-helix of 5 μm, the Яndex logo and a β of 0.3",
        "Map<String, List<Integer>> and a < b, c > d; x && y; R&D; AT&T; f(x)[0](y z)",
        "1. Apples keep well.\n2. Bears sleep in winter.\n3. Cats do as they like.",
        "1914 War\n1915 War\n1916 War",
        "Room 12\n3 beds\n1 window",
        "a well-\nKnown case, 10-\n20 of them, and - \nso on",
        "می‌خواهم 👨‍👩‍👧 ❤️ ok 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
        "ភាសា\u200bខ្មែរ",
        "**Bold** and *italic* and `code` ~~gone~~ 2**3",
        "これは１２３です。",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert clean(text).text == text


def test_disguised_russian_is_russian() -> None:
    russian = "Старый мост через реку был построен давно, и никто его не чинил."
    assert forms(russian.translate(str.maketrans("аеорсух", "aeopcyx"))) == forms(russian)


def test_a_few_mixed_words_do_not_change_foreign_ones() -> None:
    """Three show a disguise: then a word of look-alikes only is in disguise, too."""
    mixed = ["раssword", "ассеss", "mеssаgе"]
    for count, word in ((1, "сор"), (2, "сор"), (3, "cop")):
        assert word in forms(f"The word сор is Russian, and {' '.join(mixed[:count])} is a disguise.")


@given(st.text(alphabet="ab<>/&;#x\n-_*[]()12 \u200b\u00adаоé&nbsp<b>", max_size=60))
@settings(max_examples=150)
def test_places_always_increase_and_cleaning_ends(text: str) -> None:
    cleaned = clean(text)
    spans = [(i, i + 1) for i in range(len(cleaned.text))]
    places = cleaned.original(spans)
    assert all(0 <= start < end <= len(text) for start, end in places)
    assert all(a <= c and b <= d for (a, b), (c, d) in itertools.pairwise(places))
    for i, (start, end) in enumerate(places):
        if cleaned.text[i] == text[start:end]:
            continue
        assert text[start:end] not in ("a", "b", "1", "2")  # such a letter is only ever kept or removed


class TestTokens:
    def test_tokens_of_a_disguised_text_are_those_of_the_text(self) -> None:
        tokenizer = FakeHost().info.tokenizer
        plain = " the old bridge over the river"
        text = plain.replace("bridge", "br\u200bidge").replace("over", "<b>over</b>")
        (made,), (expected,) = tokenize_cleaned(tokenizer, [text]), tokenizer.encode([plain])
        assert made.ids == expected.ids
        assert made.text == text
        pieces = [text[start:end].strip() for start, end in made.offsets]
        assert pieces == ["the", "old", "br\u200bidge", "<b>over", "the", "river"]

    def test_an_ordinary_text_is_tokenized_as_it_is(self) -> None:
        tokenizer = FakeHost().info.tokenizer
        assert tokenize_cleaned(tokenizer, [" the old bridge"]) == tokenizer.encode([" the old bridge"])


UNITS = ("<", "<a ", "<!--", "<script>", "&amp;", "&a", "](", "[x](", "a**", "a_", "a-\n", "1 a\n", "a\u200b")


@pytest.mark.parametrize("unit", [*UNITS, "аa ", "\u200d"])
def test_long_repetitive_texts(unit: str) -> None:
    """A quadratic step would take hours; what remains has nothing left to clean."""
    once = clean(unit * (100_000 // len(unit))).text
    assert clean(once).text == once


@pytest.mark.parametrize("space", "\u00a0\u2003\u2009\u202f\u3000")
def test_a_few_unusual_spaces_change_no_token(space: str) -> None:
    """Half of them, which is too few for `clean`; those that French writes itself stay."""
    tokenizer = FakeHost(300).info.tokenizer
    pieces = PROSE.split(" ")
    text = "".join(piece + (space if i % 2 else " ") for i, piece in enumerate(pieces)).strip()
    ((made,), (expected,)) = tokenize_cleaned(tokenizer, [text]), tokenizer.encode([PROSE])
    assert made.ids == expected.ids
    assert made.offsets == expected.offsets
    french = f"Il dit{space}: «{space}12{space}000 ponts{space}»{space}!"
    assert tokenize_cleaned(tokenizer, [french])[0].ids == tokenizer.encode([french])[0].ids
