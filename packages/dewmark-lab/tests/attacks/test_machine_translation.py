"""Translation attacks: engines and languages, and which sentences OPUS-MT translates together."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from tests.attacks.tiny import fake_neural, no_neural
from tests.attacks.tiny_bergamot import tiny_bergamot
from transformers import MarianConfig, MarianMTModel

from dewmark.errors import ConfigError, ModelError
from dewmark.models.packaged import PACKAGED
from dewmark_lab.attacks.base import load_attack
from dewmark_lab.attacks.translation import machine_translation, opus
from dewmark_lab.attacks.translation.opus import OpusTranslator
from dewmark_lab.attacks.translation.split_text import batches_of

PAD, END, WORDS = 0, 1, 40
SENTENCES = ["a", "b c", "d e f g h i j", "k l", "m n o p", "q r s t u v w x y z a b", "c", "d e f"]


class Letters:
    """A tokenizer of letters; ids without a letter are written as numbers."""

    pad_token_id = PAD

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [*(2 + ord(letter) - ord("a") for letter in text.split()), END]}

    def batch_decode(self, rows: list[list[int]], *, skip_special_tokens: bool) -> list[str]:
        assert skip_special_tokens
        return [" ".join(str(token) for token in row if token not in (PAD, END)) for row in rows]


@pytest.fixture
def translator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OpusTranslator:
    """A translator of random weights, whose outputs have many lengths."""
    config = MarianConfig(
        vocab_size=WORDS,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        pad_token_id=PAD,
        eos_token_id=END,
        forced_eos_token_id=END,
        decoder_start_token_id=PAD,
        init_std=0.5,
    )
    torch.manual_seed(3)
    model = MarianMTModel(config)

    monkeypatch.setattr(opus, "load", lambda folder: (Letters(), model))
    return OpusTranslator(tmp_path, device=torch.device("cpu"))


def translated(translator: OpusTranslator, sentences: list[str]) -> list[str]:
    return translator.translate(sentences, on_progress=lambda done, total: None)


def test_neighbours_do_not_matter(translator: OpusTranslator):
    together = translated(translator, SENTENCES)
    assert together == [translated(translator, [sentence])[0] for sentence in SENTENCES]
    assert len(set(together)) > 4


def test_a_translation_that_never_ends_is_cut_at_its_own_length(translator: OpusTranslator):
    translator._model.lm_head.weight.data[END] = 0.0
    translator._model.final_logits_bias[0, END] = -1e4
    lengths = [len(text.split()) for text in translated(translator, SENTENCES)]
    # without its beginning and its end
    assert lengths == [int((len(s.split()) + 1) * 2.5) + 8 - 2 for s in SENTENCES]


@pytest.mark.parametrize("most", [1, 3, 1024])
def test_batches_hold_every_sentence_once(most: int):
    lengths = [5, 3, 200, 3, 7, 200, 1, 90, 3, 5]
    found = list(batches_of(lengths, room=65_536, most=most))
    assert sorted(itertools.chain(*found)) == list(range(len(lengths)))
    assert max(map(len, found)) <= most
    ordered = [lengths[place] for place in itertools.chain(*found)]
    assert ordered == sorted(ordered)


def test_batches_of_long_sentences_are_smaller():
    sizes = [len(batch) for batch in batches_of([10] * 2000 + [200] * 700, room=65_536, most=1024)]
    assert sizes == [1024, 976, 327, 327, 46]
    assert list(batches_of([], room=10)) == []


TEXTS = ["one two [three]", " ", "four\nfive é", "six", "sève \0 eight"]
SEEDS = [0] * len(TEXTS)


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_neural(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))


class TestChoice:
    def test_auto_is_the_neural_engine_and_downloads_nothing(self, nothing: None):
        attack = load_attack("translate")
        assert (attack.language, attack.label) == ("pt", "translate-neural-pt")
        package = PACKAGED["bergamot-pt"]
        assert attack.identity() == {
            "name": "translate",
            "engine": "neural",
            "target": "pt",
            "translators": [f"{package.identity} en-pt torch-1"],
        }
        assert package.version in package.identity
        assert load_attack("translate", target="pt").identity() == attack.identity()

    def test_missing_engines_name_the_remedy(self, nothing: None):
        with pytest.raises(ModelError, match="DEWMARK_WHEELS"):
            load_attack("translate").apply(["a"], seeds=[0])

    def test_unsupported_languages_are_rejected(self):
        with pytest.raises(ConfigError, match="target must be one of pt, fr, got 'de'; or set engine=llm"):
            load_attack("translate", target="de")
        with pytest.raises(ConfigError, match="engine must be one of"):
            load_attack("round-trip", engine="llm")


class TestNeural:
    def test_round_trip(self, monkeypatch: pytest.MonkeyPatch):
        fake_neural(monkeypatch)
        assert load_attack("translate").apply(["a b c"], seeds=[0]) == ["enpt c b a"]
        assert load_attack("round-trip").apply(["a b c"], seeds=[0]) == ["pten a b c enpt"]

    def test_packaged_translator(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        models = tmp_path / PACKAGED["bergamot-pt"].entry
        tiny_bergamot(models / "enpt-1")
        tiny_bergamot(models / "pten-2", seed=1)
        monkeypatch.setattr(machine_translation, "fetch", lambda name, **_: tmp_path)
        attack = load_attack("round-trip", device="cpu")
        made = attack.apply(TEXTS, seeds=SEEDS)
        assert made[1] == TEXTS[1]
        assert [attack.apply([text], seeds=[0])[0] for text in TEXTS] == made
        (models / "pten-2").rename(models / "other")
        machine_translation._translator.cache_clear()
        with pytest.raises(ModelError, match="has no single pten"):
            attack.apply(["a"], seeds=[0])
        with pytest.raises(ConfigError, match="unknown device 'gpu7'"):
            load_attack("translate", device="gpu7").apply(["a"], seeds=[0])
