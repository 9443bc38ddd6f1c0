"""The WordNet reader, on a hand-made database of a dozen synsets."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.attacks.tiny import tiny_wordnet

from dewmark.attacks.rewriting.wordnet import WordNet
from dewmark.errors import ModelError


@pytest.fixture(scope="module")
def lexicon(tmp_path_factory: pytest.TempPathFactory) -> WordNet:
    return WordNet.open(str(tiny_wordnet(tmp_path_factory.mktemp("wordnet"))))


@pytest.mark.parametrize(
    "word", ["house", "House", "HOUSES", "cities", "walked", "walking", "older", "ran", "feet"]
)
def test_words_and_their_forms_have_entries(lexicon: WordNet, word: str):
    assert lexicon.has_entry(word)


@pytest.mark.parametrize("word", ["the", "hous", "s", "", "1", "gloss", "firms!", "licence", "ed"])
def test_others_have_none(lexicon: WordNet, word: str):
    assert not lexicon.has_entry(word)
    assert lexicon.synonyms(word) == []


@pytest.mark.parametrize(
    ("word", "synonyms"),
    [
        ("house", ["home", "dwelling", "shelter"]),  # senses in order; the name Firm is none
        ("houses", ["homes", "dwellings", "shelters"]),
        ("cities", ["metropolises"]),
        ("metropolis", ["city"]),
        ("walked", ["strolled"]),
        ("sheltering", ["housing"]),
        ("older", ["ageder"]),  # a regular ending, right or not
        ("ran", []),  # an irregular form of "go" is not to be guessed
        ("river", []),  # its one synonym has two words
        ("lone", ["solitary"]),  # the data file says lone(a)
        ("slowly", ["tardily"]),
    ],
)
def test_synonyms_have_the_word_s_form(lexicon: WordNet, word: str, synonyms: list[str]):
    assert lexicon.synonyms(word) == synonyms


def test_a_missing_database_says_how_to_get_it(tmp_path: Path):
    with pytest.raises(ModelError, match="apt-get install wordnet-base"):
        WordNet.open(str(tmp_path))


def test_the_usual_variable_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WNSEARCHDIR", str(tiny_wordnet(tmp_path)))
    assert WordNet.open().has_entry("house")


def test_the_identity_is_the_database_s(lexicon: WordNet, tmp_path: Path):
    copy = tiny_wordnet(tmp_path)
    assert WordNet.open(str(copy)).identity == lexicon.identity
    with (copy / "index.adv").open("a", encoding="utf-8") as stream:
        stream.write("soon r 1 1 @ 1 0 00000000  \n")
    assert WordNet.open(str(copy)).identity != lexicon.identity
