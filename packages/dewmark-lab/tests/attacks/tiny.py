"""Tiny stand-ins for what attacks use: a WordNet, a masked language model, a T5 and two translators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from dewmark.decoding import Decoding
from dewmark.errors import ModelError
from dewmark.hosts.base import Host
from dewmark.scheme import BoundScheme
from dewmark_lab.attacks.translation import machine_translation
from dewmark_lab.testing.fake_host import tiny_tokenizer

LEMMAS = {
    "noun": ["city", "dwelling", "firm", "foot", "home", "house", "metropolis", "river", "walk"],
    "verb": ["go", "house", "run", "shelter", "stroll", "walk"],
    "adj": ["aged", "lone", "old"],
    "adv": ["slowly"],
}
EXCEPTIONS = {"noun": "feet foot\n", "verb": "ran run\n"}
LICENCE = "  1 A licence stands here, indented by two spaces.  \n  2 It has two lines.  \n"
WORDS = (
    *("the", "of", "and", "old", "house", "home", "walk", "river", "city"),
    *("is", "was", "over", "new", "people", "water", "light"),
)

PROMPTS = [f"the {word}" for word in ("sea", "hill", "town", "river")] * 5


def texts_of(
    host: Host, scheme: BoundScheme | None, number: int, *, seed: int, tokens: int = 80
) -> list[str]:
    """Texts of a host, marked by a scheme or not, with seeds from ``seed`` on."""
    made = host.generate(
        (PROMPTS * number)[:number],
        scheme=scheme,
        seeds=range(seed, seed + number),
        decoding=Decoding(max_new_tokens=tokens, min_new_tokens=tokens),
        batch_size=number,
    )
    return [one.text for one in made]


def tiny_wordnet(folder: Path) -> Path:
    """A database of a dozen words in WordNet's format."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, lemmas in LEMMAS.items():
        lines = [f"{lemma} {part[0]} 1 1 @ 1 0 00000000  \n" for lemma in lemmas]
        (folder / f"index.{part}").write_text(LICENCE + "".join(lines), encoding="utf-8")
        (folder / f"{part}.exc").write_text(EXCEPTIONS.get(part, ""), encoding="utf-8")
    return folder


def tiny_bert(folder: Path) -> Path:
    """A BERT of two layers with random weights and a WordPiece tokenizer, in a folder for transformers."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"abcdefghijklmnopqrstuvwxyz.,!?", "##s"]
    vocabulary = {piece: i for i, piece in enumerate([*pieces, *(f"##{c}" for c in "abcdefghijklmnop")])}
    backend = Backend(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=300, initializer_range=0.3,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertForMaskedLM(config).save_pretrained(folder)
    return folder


def tiny_t5(folder: Path) -> Path:
    """A T5 of one layer with random weights."""
    config = T5Config(
        vocab_size=512, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=4, pad_token_id=0,
        eos_token_id=2, decoder_start_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        T5ForConditionalGeneration(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def fake_neural(monkeypatch: pytest.MonkeyPatch) -> None:
    """A translator that reverses the words and prepends its direction."""

    class Translator:
        def __init__(self, source: str, target: str, device: str) -> None:
            self.direction = source + target

        def translate(self, texts: Sequence[str], *, on_progress: Callable[[int, int], None]) -> list[str]:
            assert all(text.strip() for text in texts)
            on_progress(len(texts), len(texts))
            return [" ".join([self.direction, *reversed(text.split())]) for text in texts]

    monkeypatch.setattr(machine_translation, "fetch", lambda name, **_: Path(name))
    monkeypatch.setattr(machine_translation, "_translator", Translator)


def no_neural(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the translator is not installed and that there is no network."""

    def refuse(name: str, **_: object) -> Path:
        raise ModelError(f"cannot download {name}: set DEWMARK_WHEELS")

    monkeypatch.setattr(machine_translation, "fetch", refuse)
