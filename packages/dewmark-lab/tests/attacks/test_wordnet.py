"""The WordNet reader, on a hand-made database of a dozen synsets."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.attacks.tiny import tiny_wordnet

from dewmark.errors import ModelError
from dewmark_lab.attacks.rewriting.wordnet import WordNet


@pytest.fixture(scope="module")
def lexicon(tmp_path_factory: pytest.TempPathFactory) -> WordNet:
    return WordNet.open(str(tiny_wordnet(tmp_path_factory.mktemp("wordnet"))))


@pytest.mark.parametrize(
    "word", ["house", "House", "HOUSES", "cities", "walked", "walking", "older", "ran", "feet"]
)
def test_words_and_their_inflections_have_entries(lexicon: WordNet, word: str):
    assert lexicon.has_entry(word)


@pytest.mark.parametrize("word", ["the", "hous", "s", "", "1", "gloss", "firms!", "licence", "ed"])
def test_other_words_have_no_entry(lexicon: WordNet, word: str):
    assert not lexicon.has_entry(word)


def test_missing_database_names_the_remedy(tmp_path: Path):
    with pytest.raises(ModelError, match="apt-get install wordnet-base"):
        WordNet.open(str(tmp_path))


def test_environment_variable_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WNSEARCHDIR", str(tiny_wordnet(tmp_path)))
    assert WordNet.open().has_entry("house")


def test_identity_follows_the_database(lexicon: WordNet, tmp_path: Path):
    copy = tiny_wordnet(tmp_path)
    assert WordNet.open(str(copy)).identity == lexicon.identity
    with (copy / "index.adv").open("a", encoding="utf-8") as stream:
        stream.write("soon r 1 1 @ 1 0 00000000  \n")
    assert WordNet.open(str(copy)).identity != lexicon.identity
