"""A tiny host for tests: a randomly initialized two-layer Llama and a real fast tokenizer, built in memory.

Everything runs through the real code paths in milliseconds, offline. There are three tokenizers: ``words``
(one id per word, so that text and ids round-trip exactly), ``sentences`` (the same, but every eighth id is
punctuation that ends a sentence) and ``bytes`` (byte-level BPE with few merges, so that characters outside
ASCII consist of several tokens that share offsets).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any, Literal

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dewmark.errors import ConfigError
from dewmark.hosts.transformers.decoding_loop import CausalLM
from dewmark.hosts.transformers.model import TransformersHost

__all__ = ["FakeHost", "tiny_tokenizer"]

Kind = Literal["words", "sentences", "bytes"]

_SPECIAL = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
_ENGLISH = (
    "the of and to in is was for on that with as by it at from his her they this are be an which were "
    "not have had but or one all out who more when there old new river bridge over under house water "
    "light day night time people city town road tree hill sea ship wind rain sun story book word hand "
    "eye heart"
)
_SPACE = "Ġ"  # how byte-level tokenizers write a space
_HIDDEN = 32
_STOP_EVERY = 8  # of the ids of the ``sentences`` tokenizer, one ends a sentence


def tiny_tokenizer(vocab_size: int = 512, *, kind: Kind = "words") -> PreTrainedTokenizerBase:
    """A fast tokenizer with exactly ``vocab_size`` ids, the first four special."""
    backend = _byte_backend(vocab_size) if kind == "bytes" else _word_backend(vocab_size, kind=kind)
    made = functools.partial(AddedToken, special=True, normalized=False)
    backend.add_special_tokens([*map(made, _SPECIAL.values())])
    return PreTrainedTokenizerFast(tokenizer_object=backend, **_SPECIAL)  # type: ignore[no-untyped-call]


def tiny_model(
    vocab_size: int = 512, *, seed: int = 0, padded_vocab: int = 0, kind: Kind = "words", context: int = 512
) -> tuple[CausalLM, PreTrainedTokenizerBase]:
    """A Llama with two layers and width 32, and its tokenizer.

    ``padded_vocab`` is how many ids the model has that the tokenizer does not know. The weights are large
    enough for the next token to depend on the context (logits have a standard deviation of about 1.7).
    """
    config = LlamaConfig(
        vocab_size=vocab_size + padded_vocab,
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.3,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: CausalLM = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    return model.eval(), tiny_tokenizer(vocab_size, kind=kind)


class FakeHost(TransformersHost):
    """The tiny model (`tiny_model`, with its options) as a host."""

    def __init__(self, vocab_size: int = 512, **shape: Any) -> None:  # noqa: ANN401 - as `tiny_model`
        super().__init__(*tiny_model(vocab_size, **shape))


def _word_backend(vocab_size: int, *, kind: Kind) -> Backend:
    spaced = (_SPACE + word for word in _words())
    pieces = _with_stops(spaced) if kind == "sentences" else spaced
    words = [*_SPECIAL.values(), *itertools.islice(pieces, vocab_size - len(_SPECIAL))]
    if not len(_SPECIAL) < vocab_size == len(words):
        raise ConfigError(f"a tiny vocabulary of words has 5 to {len(words)} ids, got {vocab_size}")
    vocab = {word: i for i, word in enumerate(words)}
    backend = Backend(models.WordLevel(vocab=vocab, unk_token=_SPECIAL["unk_token"]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    return backend


def _byte_backend(vocab_size: int) -> Backend:
    vocab = {
        token: i for i, token in enumerate([*_SPECIAL.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())])
    }
    merges: list[tuple[str, str]] = []
    least = len(vocab)
    for word in _words():
        if len(vocab) >= vocab_size:
            break
        for pieces in itertools.pairwise(itertools.accumulate(_SPACE + word)):
            if len(vocab) < vocab_size and pieces[1] not in vocab:
                merges.append((pieces[0], pieces[1][-1]))
                vocab[pieces[1]] = len(vocab)
    if len(vocab) != vocab_size:
        raise ConfigError(f"a tiny byte-level vocabulary has {least} to {len(vocab)} ids, got {vocab_size}")
    backend = Backend(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _with_stops(words: Iterator[str]) -> Iterator[str]:
    """Words, and after every seven of them another run of punctuation that ends a sentence."""
    stops = ("".join(run) for length in itertools.count(1) for run in itertools.product(".!?", repeat=length))
    while True:
        yield from itertools.islice(words, _STOP_EVERY - 1)
        yield next(stops)


def _words() -> Iterator[str]:
    """English words, then pronounceable made-up ones, all different."""
    english = _ENGLISH.split()
    yield from english
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    for length in (2, 3):
        for parts in itertools.product(syllables, repeat=length):
            word = "".join(parts)
            if word not in english:
                yield word
