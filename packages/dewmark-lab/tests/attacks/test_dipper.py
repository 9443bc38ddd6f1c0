"""DIPPER's control codes, chunks and context, on a tiny T5 with random weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, ModelError
from dewmark_lab.attacks.rewriting.dipper import Dipper, chunks, prompt
from dewmark_lab.seq2seq import Seq2Seq, load_seq2seq
from dewmark_lab.testing.fake_host import tiny_tokenizer

TEXT = "The river is old.  The bridge is new.\nThe sea is over the hill. The sun was out. It was night"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("t5")
    config = T5Config(
        vocab_size=512,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        initializer_factor=3.0,  # states must depend on the context, to reveal errors in the cache
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = T5ForConditionalGeneration(config)
        model.lm_head.weight.data *= 0.1  # and logits must leave room for sampling
    model.save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def attack(folder: Path) -> Dipper:
    return Dipper(model=str(folder), tokenizer=None, max_new_tokens=6, device="cpu", batch_size=3)


class TestPrompts:
    def test_codes_are_100_minus_the_diversity(self):
        assert prompt("A b.", ld=60, od=0, context="") == "lexical = 40, order = 100 <sent> A b. </sent>"

    def test_chunks_are_three_sentences_with_single_spaces(self):
        assert chunks(TEXT, interval=3) == [
            "The river is old. The bridge is new. The sea is over the hill.",
            "The sun was out. It was night",
        ]
        assert len(chunks(TEXT, interval=1)) == 5
        assert chunks("12 34", interval=3) == ["12 34"]

    @pytest.mark.parametrize("wrong", [{"ld": 50}, {"od": 120}, {"ld": -20}])
    def test_invalid_settings_are_rejected(self, wrong: dict[str, float]):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Dipper(**wrong)


class TestRewriting:
    def test_each_chunk_sees_the_output_so_far(self, attack: Dipper, monkeypatch):
        seen: list[tuple[str, int, int]] = []
        write = Seq2Seq.write

        def watched(self, inputs, *, seeds, decoding, first_step):
            seen.extend((text, seed, first_step) for text, seed in zip(inputs, seeds, strict=True))
            return write(self, inputs, seeds=seeds, decoding=decoding, first_step=first_step)

        monkeypatch.setattr(Seq2Seq, "write", watched)
        short = "The sun is new."
        made = attack.apply([TEXT, short], seeds=[7, 8])
        first, second = chunks(TEXT, interval=3)
        head = "lexical = 40, order = 100"
        assert seen[:2] == [
            (f"{head} <sent> {first} </sent>", 7, 0),
            (f"{head} <sent> {short} </sent>", 8, 0),
        ]
        begun = load(attack).write([seen[0][0]], seeds=[7], decoding=DECODING, first_step=0)[0]
        assert begun
        assert seen[2] == (f"{head} {begun} <sent> {second} </sent>", 7, 6)
        assert made[0].startswith(begun)


class TestSeq2Seq:
    def test_greedy_decoding_agrees_with_transformers(self, attack: Dipper):
        model = load(attack)
        decoding = Decoding(max_new_tokens=10, temperature=0.0)
        inputs = ["the river is old", "the sea over the hill and the sun"]
        ours = model.write(inputs, seeds=[0, 0], decoding=decoding)
        encoded = model.tokenizer(inputs, return_tensors="pt", padding=True)
        encoded.pop("token_type_ids", None)
        theirs = model.model.generate(**encoded, do_sample=False, num_beams=1, max_new_tokens=10)
        expected = model.tokenizer.batch_decode(theirs, skip_special_tokens=True)
        assert ours == [text.strip() for text in expected]

    def test_later_steps_draw_different_numbers(self, attack: Dipper):
        model = load(attack)
        steps = (0, 6, 0)
        made = [model.write(["the sea"], seeds=[3], decoding=DECODING, first_step=step) for step in steps]
        assert made[0] == made[2] != made[1]

    def test_other_kinds_of_models_are_rejected(self, tmp_path: Path):
        from dewmark_lab.testing.fake_host import FakeHost

        FakeHost().model.save_pretrained(tmp_path)
        tiny_tokenizer().save_pretrained(tmp_path)
        with pytest.raises(ModelError, match="cannot load the host"):
            load_seq2seq(str(tmp_path), device="cpu")


DECODING = Decoding(max_new_tokens=6, temperature=1.0, top_p=0.75)


def load(attack: Dipper) -> Seq2Seq:
    return load_seq2seq(attack.model, device="cpu")
