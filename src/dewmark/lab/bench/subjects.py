"""What is compared: each scheme as the paper's comparison configures it.

Unigram, EXP, SWEET, EWD, SimKey, WaterPool and PASA are not in the paper's table of configurations: they keep
their own defaults. So do TS and ATW, whose strengths come with their artifacts.

Hosts to time: any that dewmark loads, or one with random weights in the shape of a known model.

What a step costs depends on shapes, not on what the weights are, so a model that cannot be had here is timed
as ``random:llama-3.2-3b``. Its tokenizer is byte-level, with as many pieces as the shape's vocabulary.

Prompts to continue and texts to detect, as many as are asked for.

The package's own texts would last for a hundred texts, and a benchmark's texts must not repeat: what a
detector remembers of one would serve the next. So texts are random walks along pairs of neighbouring words of
the package's English: words as frequent as they are, in ever new windows.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dewmark.config import cache_dir, parse_settings
from dewmark.core.keys import Key
from dewmark.encoders.word_vectors import register_texts
from dewmark.errors import ModelError
from dewmark.hosts import host_info
from dewmark.hosts.fake import tiny_tokenizer
from dewmark.hosts.transformers.description import info_from_model
from dewmark.hosts.transformers.model import TransformersHost, load_host
from dewmark.models.devices import torch_device, torch_dtype
from dewmark.registry import SCHEMES, unknown_name
from dewmark.scheme import BoundScheme
from dewmark.workspace import Progress, Tokenizer, Workspace

__all__ = [
    "CONFIGURATIONS",
    "RANDOM",
    "SHAPES",
    "bind",
    "chosen",
    "configuration",
    "open_host",
    "plain_texts",
    "prompts",
    "random_host",
]

CONFIGURATIONS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "dew": ("dew", {}),
    "dew-bias": ("dew", {"units": "token", "sampler": "bias"}),
    "dew-gumbel": ("dew", {"units": "token", "sampler": "gumbel", "alpha": 0.25}),
    "dew-window": ("dew", {"units": "token", "sampler": "bias", "context_encoding": "window"}),
    "kgw": ("kgw", {"prefix": 3, "gamma": 0.5, "delta": 2.0, "hashing": "left"}),
    "kgw-self": ("kgw", {"prefix": 4, "gamma": 0.5, "delta": 2.0, "hashing": "self"}),
    "unigram": ("unigram", {}),
    "sweet": ("sweet", {}),
    "ewd": ("ewd", {}),
    "morphmark": ("morphmark", {"form": "exponential", "k": 1.3, "p0": 0.15, "gamma": 0.5, "prefix": 1}),
    "exp": ("exp", {}),
    "synthid": ("synthid", {"depth": 30, "leaves": 2, "prefix": 3, "history": 1024}),
    "unbiased": ("unbiased", {"reweight": "gamma", "grid": 10, "prefix": 3, "repeats": "skip"}),
    "dipmark": ("dipmark", {"alpha": 0.45, "gamma": 0.5, "prefix": 3, "repeats": "keep"}),
    "semstamp": ("semstamp", {"dimensions": 3, "gamma": 0.25, "margin": 0.01, "tries": 100}),
    "ksemstamp": ("ksemstamp", {"gamma": 0.25, "margin": 0.035, "tries": 100}),
    "ts": ("ts", {}),
    "atw": ("atw", {}),
    "simkey": ("simkey", {}),
    "waterpool": ("waterpool", {}),
    "pasa": ("pasa", {}),
    "sir": ("sir", {"delta": 1.0, "chunk": 10}),
    "xsir": ("xsir", {"delta": 1.0, "chunk": 10}),
    "dew-paper": (
        "dew",
        {"units": "token", "sampler": "bias", "context_encoding": "window", "whiten_contexts": False},
    ),
}


def chosen(names: Sequence[str] | None) -> list[str]:
    """The configurations asked for, or all of them."""
    for name in names or ():
        configuration(name)
    return list(names or CONFIGURATIONS)


def configuration(name: str) -> tuple[str, dict[str, object]]:
    """Scheme and settings of a configuration; ``NAME:field=value,field=value`` changes some of them."""
    known, _, changes = name.partition(":")
    if known not in CONFIGURATIONS:
        raise unknown_name("configuration", known, CONFIGURATIONS)
    scheme, settings = CONFIGURATIONS[known]
    return scheme, {**settings, **parse_settings([part for part in changes.split(",") if part])}


def bind(name: str, host: TransformersHost, *, number: int = 0, cache: Path | None = None) -> BoundScheme:
    """A configuration with the ``number``-th key of the benchmarks; detection shares the host in memory."""
    scheme, settings = configuration(name)
    key = Key(hashlib.sha256(f"benchmark-{number}".encode()).digest())
    workspace = Workspace(cache=cache or cache_dir(), find_host=host_info, open_host=lambda other: host)
    bound: BoundScheme = SCHEMES[scheme]().with_settings(settings).bind(key, host.info, workspace)
    return bound


RANDOM = "random:"

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.2-3b": {
        "vocab_size": 128_256,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
    },
    "llama-3.2-1b": {
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "smollm2-135m": {
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "tiny": {
        "vocab_size": 1024,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}


def open_host(
    name: str, *, device: str = "auto", dtype: str = "auto", progress: Progress | None = None
) -> TransformersHost:
    """A host by its name, or ``random:SHAPE``."""
    if not name.startswith(RANDOM):
        return load_host(name, device=device, dtype=dtype, progress=progress)
    shape = name.removeprefix(RANDOM)
    if shape not in SHAPES:
        raise unknown_name("shape", shape, SHAPES)
    target = torch_device(device)
    return random_host(SHAPES[shape], name=name, device=target, dtype=torch_dtype(dtype, target))


def random_host(
    shape: dict[str, Any], *, name: str, device: torch.device, dtype: torch.dtype
) -> TransformersHost:
    """A Llama of this shape whose weights are random."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **shape, max_position_embeddings=8192, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.random.fork_rng(devices=[]), device:
            torch.manual_seed(0)
            model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    except torch.OutOfMemoryError:
        raise ModelError(f"a model of this shape does not fit into the memory of {device}") from None
    finally:
        torch.set_default_dtype(before)
    tokenizer = tiny_tokenizer(shape["vocab_size"], kind="bytes")
    info = dataclasses.replace(info_from_model(model, tokenizer), name=name)
    return TransformersHost(model, tokenizer, info=info)


def prompts(count: int, *, first: int = 0) -> list[str]:
    """``count`` of the package's openings, from the ``first`` on, over and over if there are fewer."""
    lines = (resources.files("dewmark") / "data" / "openings.jsonl").read_text(encoding="utf-8").splitlines()
    known = [json.loads(line)["prompt"] for line in lines]
    return (known * math.ceil((first + count) / len(known)))[first : first + count]


def plain_texts(tokenizer: Tokenizer, count: int, *, tokens: int, seed: int) -> list[str]:
    """``count`` texts of ``tokens`` tokens of this tokenizer (or one or two more); each seed has its own."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        text = _walk(random, tokens)  # a word is one token at least
        rows.append(tokenizer.encode([text])[0].ids[:tokens])
    return tokenizer.decode(rows)


def _walk(random: np.random.Generator, length: int) -> str:
    words, following = _chain()
    at = int(random.integers(len(words)))
    walked = []
    for share in random.random(length):
        walked.append(words[at])
        nexts = following[words[at]]
        at = nexts[int(share * len(nexts))]
    return " ".join(walked)


@functools.cache
def _chain() -> tuple[list[str], dict[str, list[int]]]:
    """All words in their order, and for each word the places that come after it."""
    words = " ".join(register_texts()).split()
    following: dict[str, list[int]] = {}
    for place, word in enumerate(words):
        following.setdefault(word, []).append((place + 1) % len(words))
    return words, following
