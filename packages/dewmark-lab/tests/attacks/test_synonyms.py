"""Word substitution on a tiny BERT with random weights, a tiny WordNet and a tiny host."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.attacks.tiny import WORDS, tiny_bert, tiny_wordnet
from transformers import AutoModelForMaskedLM, AutoTokenizer

from dewmark.errors import ConfigError, ModelError
from dewmark_lab.attacks.base import load_attack
from dewmark_lab.attacks.rewriting.synonyms import MaskedLM, Synonym, WordNet, find_masked_lm
from dewmark_lab.testing.fake_host import tiny_tokenizer

TEXT = (
    '  "The old House," is over the RIVER;\n\nthe walk was new (old city) and the people of the home walked.'
)
KNOWN = ["old", "House", "RIVER", "walk", "old", "city", "home", "walked"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("synonym")
    tiny_wordnet(path / "wordnet")
    tiny_bert(path / "bert")
    return path


@pytest.fixture
def masked(folder: Path) -> Synonym:
    return Synonym(model=str(folder / "bert"), wordnet=str(folder / "wordnet"), device="cpu")


def bare(text: str) -> list[str]:
    return [word.strip('".,;()') for word in text.split()]


class TestMaskedLM:
    def test_gap_gets_the_most_likely_whole_word(self, folder: Path):
        location = str(folder / "bert")
        filler = MaskedLM(find_masked_lm(location), device="cpu")
        tokenizer, model = (
            AutoTokenizer.from_pretrained(location),
            AutoModelForMaskedLM.from_pretrained(location),
        )
        contexts = [("the old", "is new."), ("", "of the city"), ("people walk over the", "")]
        made = filler.fill(contexts, window=64, batch_size=2)
        words = [token for token in tokenizer.get_vocab() if token.isalpha()]  # no subwords
        for (left, right), word in zip(contexts, made, strict=True):
            ids = tokenizer(f"{left} [MASK] {right}", return_tensors="pt")
            with torch.inference_mode():
                logits = model.eval()(**ids).logits[0]
            at = ids["input_ids"][0].tolist().index(tokenizer.mask_token_id)
            assert word == max(words, key=lambda w: logits[at, tokenizer.get_vocab()[w]].item())

    def test_text_outside_the_window_is_ignored(self, folder: Path):
        filler = MaskedLM(find_masked_lm(str(folder / "bert")), device="cpu")
        near = [("old house walk " * 20 + "the river is", "over the city " + "home " * 50)]
        far = [("new people " * 30 + "the river is", "over the city " + "light " * 50)]
        assert filler._rows(near, 6) == filler._rows(far, 6)
        assert filler._rows(near, 12) != filler._rows(far, 12)

    def test_long_texts_fit_into_the_model(self, folder: Path):
        attack = Synonym(model=str(folder / "bert"), wordnet=str(folder / "wordnet"), r=0.01, device="cpu")
        made = attack.apply(["old house " * 500], seeds=[0])[0]
        assert len(made.split()) == 1000

    def test_model_without_mask_token_is_rejected(self, folder: Path, tmp_path: Path):
        tiny_tokenizer().save_pretrained(tmp_path)
        AutoModelForMaskedLM.from_pretrained(folder / "bert").save_pretrained(tmp_path)
        with pytest.raises(ConfigError, match="has no mask token"):
            MaskedLM(find_masked_lm(str(tmp_path)), device="cpu")

    def test_missing_model_names_the_remedy(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("dewmark.hosts.transformers.model_files._hub", _unreachable)
        with pytest.raises(ModelError, match=r"'bert-large-uncased' \(no google-bert/.*\)"):
            find_masked_lm("bert-large-uncased")


def _unreachable(name: str) -> None:
    raise ModelError(f"no {name}: use the packaged host")


class TestSynonym:
    @pytest.mark.parametrize("r", [0.0, 0.1, 0.3, 1.0])
    def test_share_of_words_is_drawn_among_wordnet_entries(self, masked: Synonym, r: float):
        attack = load_attack("synonym", r=r, model=masked.model, wordnet=masked.wordnet, device="cpu")
        old = bare(TEXT)
        wanted = min(round(r * len(old)), len(KNOWN))
        changed = set()
        for text in attack.apply([TEXT] * 12, seeds=range(12)):
            new = bare(text)
            places = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
            assert len(places) <= wanted  # a word may be its own best replacement
            assert all(old[i] in KNOWN for i in places)
            changed |= set(places)
        assert bool(changed) == (r > 0)

    def test_punctuation_spaces_and_capitals_are_kept(self, masked: Synonym):
        attack = load_attack("synonym", r=1.0, model=masked.model, wordnet=masked.wordnet, device="cpu")
        text = attack.apply([TEXT], seeds=[3])[0]
        words = iter(bare(TEXT))
        new = bare(text)
        assert text == "".join(_put(TEXT, words, new))
        assert new[2][0].isupper()  # House
        assert new[2][1:].islower() or len(new[2]) == 1
        assert new[6].isupper()  # RIVER
        assert {word.lower() for word in new} <= set(WORDS) | set("abcdefghijklmnopqrstuvwxyz")


def _put(text: str, old: object, new: list[str]) -> list[str]:
    """The text with its bare words replaced in order."""
    out, at = [], 0
    for word, other in zip(old, new, strict=True):
        start = text.index(word, at)
        out += [text[at:start], other]
        at = start + len(word)
    return [*out, text[at:]]


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
