"""All that the golden record knows of dewmark: the marks in plain words, and thin functions over its API.

When modules move or parameters are renamed, this file is edited and nothing else: neither the sections nor
the record name a module or a parameter as the library spells it.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import hashlib
import io
import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from tests.fakes import BagEncoder, tiny_lexicon
from tests.hosts.test_llamacpp import StandIn
from tests.hosts.vllm_stub import (
    BatchUpdate,
    MoveDirectionality,
    SamplingParams,
    engine_config,
    processor_module,
)
from tests.lab.evaluation.synthetic import scored as synthetic_scores
from tests.tiny_artifacts import make_all

from dewmark.attacks import load_attack
from dewmark.cli.app import main as command_line
from dewmark.core.keys import Key
from dewmark.core.prf import PairHash
from dewmark.core.projections import draw_projections, projection_dim
from dewmark.decoding import Decoding
from dewmark.detector import Detector
from dewmark.errors import ConfigError
from dewmark.hosts import load_host
from dewmark.hosts.engines.llamacpp import LlamaCppProcessor
from dewmark.hosts.fake import FakeHost, tiny_model
from dewmark.hosts.transformers.decoding_loop import CachedForward, pad_left
from dewmark.hosts.transformers.watermarking_config import WatermarkingConfig
from dewmark.lab.evaluation.protocol import evaluate
from dewmark.lab.evaluation.results import read_scores
from dewmark.passages import locate
from dewmark.registry import SCHEMES
from dewmark.sampling import RandomStreams, race, warp
from dewmark.scheme import BoundScheme
from dewmark.stats.audit import audit
from dewmark.stats.calibration import Calibration
from dewmark.stats.key_test import score_variance
from dewmark.stats.multiple_testing import benjamini_hochberg, holm, sidak
from dewmark.stats.power import choose_cuts, measure_power
from dewmark.stats.retention import pair_retentions, summarise
from dewmark.storage import load_bundle
from dewmark.text.languages import guess_language
from dewmark.text.words import words
from dewmark.types import Detection
from dewmark.watermark import attribute, load_scheme
from dewmark.workspace import Workspace

Json = Any  # what json.dumps takes
Settings = Mapping[str, object]

VOCABULARY = 400
CPU = torch.device("cpu")

_WORDS: Settings = {"vocabulary": "open"}
_TOKENS: Settings = {"units": "token"}
_TOKENS_BIAS: Settings = {"units": "token", "sampler": "bias"}

# DEW: what is scored, how it is drawn, how contexts are made.
DEW: dict[str, Settings] = {
    "lexicon (the default)": {},
    "lexicon, a bias": {"sampler": "bias"},
    "lexicon, keyed sampling alone": {"lambda": 0.0, "decorrelate": 0},
    "lexicon, spelling beside meaning": {"form_share": 0.25},
    "words gumbel": _WORDS,
    "words bias": {**_WORDS, "sampler": "bias"},
    "words gumbel, centred at rare words": {**_WORDS, "word_centre": "rare"},
    "words gumbel, mean of the text kept": {**_WORDS, "subtract_text_mean": False},
    "words gumbel, every occurrence, not flattened": {**_WORDS, "count_once": False, "flatten": None},
    "words gumbel, contexts of two": {**_WORDS, "k": 2},
    "words gumbel, orthogonal projections": {**_WORDS, "projection": "orthogonal"},
    "words gumbel, all randomness keyed": {**_WORDS, "alpha": 1.0},
    "words bias, linear scores": {**_WORDS, "sampler": "bias", "score": "linear"},
    "tokens gumbel, composed white contexts": _TOKENS,
    "tokens gumbel, composed raw contexts": {**_TOKENS, "whiten_contexts": False},
    "tokens gumbel, window white contexts": {**_TOKENS, "context_encoding": "window"},
    "tokens gumbel, window raw contexts": {**_TOKENS, "context_encoding": "window", "whiten_contexts": False},
    "tokens bias, composed white contexts": _TOKENS_BIAS,
    "tokens bias, composed raw contexts": {**_TOKENS_BIAS, "whiten_contexts": False},
    "tokens bias, window white contexts": {**_TOKENS_BIAS, "context_encoding": "window"},
    "tokens bias, window raw contexts (the paper)": {
        **_TOKENS_BIAS,
        "context_encoding": "window",
        "whiten_contexts": False,
    },
    "tokens bias, strength 4 on 16 candidates": {**_TOKENS_BIAS, "lambda": 4.0, "m": 16},
    "tokens bias, nucleus": {**_TOKENS_BIAS, "nucleus": 0.9},
    "tokens bias, raw token table": {**_TOKENS_BIAS, "whiten_tokens": False},
    "tokens bias, mean of the text kept": {**_TOKENS_BIAS, "subtract_text_mean": False},
    "tokens bias, token meaning only": {**_TOKENS_BIAS, "mode": "token_only"},
    "tokens bias, context meaning only": {**_TOKENS_BIAS, "mode": "context_only"},
    "tokens bias, no meaning": {**_TOKENS_BIAS, "mode": "neither"},
    "tokens gumbel, orthogonal projections": {**_TOKENS, "projection": "orthogonal"},
    "tokens gumbel, keyed where contexts recur": {**_TOKENS, "fresh_on_repeat": False},
    "tokens gumbel, tanh scores": {**_TOKENS, "score": "tanh"},
}

# The other schemes, each as it comes, and the variants that go other ways through the code.
BASELINES: dict[str, tuple[str, Settings]] = {
    "atw": ("atw", {"delta": 0.7}),
    "dipmark": ("dipmark", {}),
    "dipmark, repeated contexts skipped": ("dipmark", {"repeats": "skip"}),
    "ewd": ("ewd", {}),
    "exp": ("exp", {}),
    "exp, repeated contexts kept": ("exp", {"repeats": "keep"}),
    "kgw": ("kgw", {}),
    "kgw, smallest hash": ("kgw", {"hashing": "min"}),
    "kgw, self-hash": ("kgw", {"hashing": "self"}),
    "kgw, three tokens of context": ("kgw", {"prefix": 3}),
    "ksemstamp": ("ksemstamp", {}),
    "morphmark": ("morphmark", {}),
    "morphmark, linear": ("morphmark", {"form": "linear"}),
    "mpac": ("mpac", {"message": 45000}),
    "pasa": ("pasa", {}),
    "pmark": ("pmark", {}),
    "semstamp": ("semstamp", {}),
    "simkey": ("simkey", {}),
    "sir": ("sir", {}),
    "sweet": ("sweet", {}),
    "synthid": ("synthid", {}),
    "synthid, three leaves": ("synthid", {"leaves": 3}),
    "transformers-kgw": ("transformers-kgw", {}),
    "transformers-synthid": ("transformers-synthid", {}),
    "ts": ("ts", {}),
    "unbiased": ("unbiased", {}),
    "unbiased, delta reweighting": ("unbiased", {"reweight": "delta"}),
    "unigram": ("unigram", {}),
    "vllm-dual-key-gumbel": ("vllm-dual-key-gumbel", {}),
    "vllm-gumbel": ("vllm-gumbel", {}),
    "vllm-sbw": ("vllm-sbw", {}),
    "waterpool": ("waterpool", {}),
    "xsir": ("xsir", {}),
}

MARKS: dict[str, tuple[str, Settings]] = {name: ("dew", settings) for name, settings in DEW.items()}
MARKS |= BASELINES

TESTS = {"key": "key", "simulated keys": "monte-carlo", "the paper's normal": "gaussian", "beta": "beta"}
"""DEW's tests by our names."""


def secret(number: int) -> bytes:
    """The 32 bytes of one of the record's keys."""
    return hashlib.sha256(f"the golden record, key {number}".encode()).digest()


def uncovered() -> list[str]:
    """Registered schemes that no mark of the record uses."""
    return sorted(set(SCHEMES) - {scheme for scheme, _ in MARKS.values()})


class World:
    """The tiny hosts, an encoder without a model, tiny artifacts, and a folder for what is derived."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @functools.cached_property
    def artifacts(self) -> Path:
        """The artifacts of learned schemes, made for the tiny host and encoder."""
        make_all(self.folder / "artifacts")
        return self.folder / "artifacts"

    def host(self, mark: str) -> FakeHost:
        """The host that writes for a mark: words, or whole sentences for schemes that choose between them."""
        return _host("sentences" if SCHEMES[MARKS[mark][0]]().needs.drafts else "words")

    def bind(self, mark: str, key: int = 0) -> BoundScheme:
        """A mark with one of the record's keys."""
        scheme, settings = MARKS[mark]
        host = self.host(mark)
        chosen = SCHEMES[scheme]().with_settings(dict(settings))
        return chosen.bind(Key(secret(key)), host.info, self.workspace(host))

    def workspace(self, host: FakeHost) -> Workspace:
        """Where schemes keep what they derive, and how they find the host."""
        return Workspace(
            cache=self.folder / "cache", find_host=lambda name: host.info, open_host=lambda name: host
        )


@functools.cache
def _host(kind: str) -> FakeHost:
    return FakeHost(VOCABULARY, kind=kind)


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """The fake world, with every way to a real model closed."""
    made = World(folder)
    encoder = BagEncoder()
    with (
        mock.patch("dewmark.encoders._loaded", {}),
        mock.patch("dewmark.encoders._create", return_value=encoder),
        mock.patch("dewmark.scheme.encoder_languages", return_value=encoder.languages),
        mock.patch("dewmark.encoders.lexicon.lexicon_folder", return_value=tiny_lexicon()),
        mock.patch("dewmark.artifacts.shipped", return_value=made.artifacts),
        mock.patch.dict("os.environ", {"DEWMARK_CACHE": str(folder / "cache")}),
    ):
        yield made


def in_sentences(bound: BoundScheme) -> bool:
    """Whether the scheme chooses between whole sentences, so that it has no sessions and no rows."""
    return bound.needs.drafts


def write(
    host: Any,
    bound: BoundScheme | None,
    prompts: Sequence[str],
    *,
    seeds: Sequence[int],
    tokens: int,
    batch_size: int = 8,
    **more: Any,
) -> list[dict[str, Json]]:
    """Texts of exactly ``tokens`` tokens from the host's own loop (the session path)."""
    decoding = Decoding(max_new_tokens=tokens, min_new_tokens=tokens, **more)
    written = host.generate(
        prompts, scheme=bound, seeds=list(seeds), decoding=decoding, batch_size=batch_size
    )
    return [
        {
            "ids": list(one.token_ids),
            "text": one.text,
            **({} if one.drafts is None else {"drafts": list(one.drafts.to_dict().values())}),
        }
        for one in written
    ]


def write_as_an_engine(
    host: Any,
    bound: BoundScheme,
    prompts: Sequence[str],
    *,
    seeds: Sequence[int],
    tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> list[list[int]]:
    """Ids of the same texts from the rows that serving engines use, in a batch whose order changes."""
    decoding = Decoding(temperature=temperature, top_k=top_k, top_p=top_p)
    rows, model = bound.rows(CPU), host.model
    ids = [list(one.ids) for one in host.info.tokenizer.encode(list(prompts))]
    written: list[list[int]] = [[] for _ in ids]
    opened = [
        rows.open(prompt, grows, seed=seed, decoding=decoding)
        for prompt, grows, seed in zip(ids, written, seeds, strict=True)
    ]
    noise = [RandomStreams([seed], device=CPU) for seed in seeds]
    special = sorted({*host.info.tokenizer.special_ids, *host.eos_ids})
    padded, mask = pad_left(ids, fill_id=0, extra=tokens, device=CPU)
    start = padded.shape[1] - tokens
    forward = CachedForward(model, mask)
    with torch.inference_mode():
        for step in range(tokens):
            scores = forward(padded[:, : start + step]).float().clone()
            scores[:, special] = -float("inf")
            order = [(i + step) % len(ids) for i in range(len(ids))]
            marked = rows.mark([opened[i] for i in order], scores[order])
            for place, i in enumerate(order):
                row = marked[place : place + 1]
                if bound.needs.final:
                    chosen = row.argmax(dim=-1)
                else:
                    chosen, _ = race(warp(row, decoding), noise[i].exponentials(step, row.shape[1]))
                written[i].append(int(chosen))
                padded[i, start + step] = int(chosen)
    return written


def marked_logits(
    host: Any, bound: BoundScheme, prompts: Sequence[str], *, seeds: Sequence[int]
) -> list[Json]:
    """What a session makes of logits in three steps, row by row: ids finite, the likeliest, and a mean.

    The mean is that of a fixed wave over the vocabulary, under the marked distribution: a change of strength
    moves it, however few tokens it changes.
    """
    ids = [list(one.ids) for one in host.info.tokenizer.encode(list(prompts))]
    padded, mask = pad_left(ids, fill_id=0, extra=3, device=CPU)
    start = padded.shape[1] - 3
    session = bound.session(padded[:, :start], mask[:, :start], seeds=list(seeds))
    wave = torch.cos(torch.arange(VOCABULARY, dtype=torch.float64))
    found = []
    with torch.inference_mode():
        for step in range(3):
            scores = torch.cat([_seeded_logits(row[: start + step].tolist()) for row in padded])
            marked = session(padded[:, : start + step], scores).double()
            means = marked.softmax(dim=-1) @ wave
            likeliest = marked.argmax(dim=-1)
            counts = torch.isfinite(marked).sum(dim=-1)
            found.append(
                {"finite": counts.tolist(), "likeliest": likeliest.tolist(), "means": means.tolist()}
            )
            padded[:, start + step] = torch.tensor([50 + step + 7 * row for row in range(len(ids))])
    return found


def write_by_transformers(
    host: Any, bound: BoundScheme, prompts: Sequence[str], *, seeds: Sequence[int], tokens: int, way: str
) -> list[list[int]]:
    """Ids from the model's own ``generate``: by a logits ``processor``, or by its watermarking ``config``."""
    ids = [list(one.ids) for one in host.info.tokenizer.encode(list(prompts))]
    padded, mask = pad_left(ids, fill_id=0, device=CPU)
    more: dict[str, Any]
    if way == "processor":
        more = {
            "logits_processor": [
                bound.processor(
                    padded, mask, seeds=list(seeds), decoding=Decoding(temperature=0.9, top_k=150)
                )
            ]
        }
    else:
        more = {"watermarking_config": WatermarkingConfig(bound), "temperature": 0.9, "top_k": 150}
    with mock.patch("secrets.randbits", random.Random(0).getrandbits), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        out = host.model.generate(
            input_ids=padded,
            attention_mask=mask,
            do_sample=True,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
            **more,
        )
    return out[:, padded.shape[1] :].tolist()


def detect(
    bound: BoundScheme,
    texts: Sequence[str],
    *,
    prompts: Sequence[str | None] | None = None,
    test: str | None = None,
) -> list[Detection]:
    """Detections of one batch; ``test`` by our name."""
    return bound.detect_batch(list(texts), prompts=prompts, test=None if test is None else TESTS[test])


def numbers_of(found: Detection) -> dict[str, Json]:
    """A detection without its tokens."""
    return {
        "verdict": str(found.verdict.value),
        "p": found.p_value,
        "z": found.z,
        "score": found.score,
        "effective length": found.effective_length,
        "scored": found.tokens_scored,
    }


def tokens_of(found: Detection) -> dict[str, Json]:
    """A detection's token scores, and the places of all tokens as one digest."""
    places = [(token.start, token.end, token.scored) for token in found.tokens]
    return {
        "units": len(found.tokens),
        "places": hashlib.sha256(repr(places).encode()).hexdigest()[:16],
        "scores": [token.score for token in found.tokens if token.scored],
    }


def own_tests(bound: BoundScheme) -> list[str]:
    """The names of a scheme's tests, as the library has them."""
    return list(bound.tests)


def is_simulation(test: str) -> bool:
    """Whether a test of a scheme scores texts under simulated keys."""
    return test == TESTS["simulated keys"]


def detect_by(bound: BoundScheme, text: str, test: str) -> dict[str, Json]:
    """One text under one of the scheme's own tests."""
    return numbers_of(bound.detect(text, test=test))


def many_keys(world: World, mark: str, texts: Sequence[str], keys: Sequence[int]) -> list[dict[str, Json]]:
    """For each text its p-value and z under every key, and the verdict over all of them."""
    scheme, settings = MARKS[mark]
    host = world.host(mark)
    rows = (
        SCHEMES[scheme]()
        .with_settings(dict(settings))
        .detect_keys([Key(secret(key)) for key in keys], list(texts), host.info, world.workspace(host))
    )
    made = [attribute(row, fpr=0.01) for row in rows]
    return [
        {
            "p": one.p_value,
            "best": one.index,
            "verdict": str(one.verdict.value),
            "p of keys": [each.p_value for each in one.detections],
            "z of keys": [each.z for each in one.detections],
            "best tokens": len(one.best.tokens),
        }
        for one in made
    ]


def evidence_of(bound: BoundScheme, texts: Sequence[str]) -> list[dict[str, Json]] | None:
    """Sums over the evidence of texts, or None where a scheme offers none."""
    cut = bound.tokenize(list(texts))
    try:
        found = bound.evidence(cut, bound.tokenize([""] * len(cut)))
    except ConfigError:
        return None
    return [
        {
            "pairs": len(one),
            "length": one.length,
            "total": one.total,
            "variance of one": one.variance,
            "variance of the sum": score_variance(one) if len(one) else 0.0,
            "squares": float(np.sum(np.square(one.scores))),
        }
        for one in found
    ]


def passages(bound: BoundScheme, text: str) -> dict[str, Json]:
    """The marked passages of a mixed text."""
    found = locate(text, bound)
    return {
        "share": found.share,
        "passages": [
            {
                "from": one.start,
                "to": one.end,
                "z": one.z,
                "p": one.p_value,
                "p alone": one.p_alone,
                "effective length": one.effective_length,
                "tokens": one.tokens,
                "share": one.share,
            }
            for one in found.passages
        ],
    }


def plain(value: object) -> Json:
    """Dataclasses, arrays and tuples as plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    return value.item() if isinstance(value, np.generic) else value


def leaves(value: object) -> list[float]:
    """All numbers in a nested value, in their order: what is compared when names may change."""
    if isinstance(value, Mapping):
        return [number for each in value.values() for number in leaves(each)]
    if isinstance(value, (list, tuple)):
        return [number for each in value for number in leaves(each)]
    return [value] if isinstance(value, (bool, int, float)) else []


# Keys, words, statistics


def key_numbers() -> dict[str, Json]:
    """What is drawn from one key: its fingerprint, streams, projections, keyed hashes."""
    key = Key(secret(0))
    pairs = PairHash(key.subkey("golden"), 500)
    contexts = np.arange(12).reshape(6, 2)
    drawn = {
        kind: draw_projections(key, d_T=12, d_C=8, kind=kind, n=projection_dim(12, 8, kind=kind, n=None))
        for kind in ("gaussian", "orthogonal")
    }
    return {
        "fingerprint": key.fingerprint,
        "sub-key": key.subkey("golden").hex(),
        "words": [int(word) for word in key.stream("golden").words(4)],
        "uniforms": key.stream("golden").uniforms(4),
        "normals": key.stream("golden").normals(2, 3),
        "permutation": key.stream("golden").permutation(20),
        "projections": {
            kind: [made.n, *(_array_facts(np.asarray(one)) for one in (made.R_T, made.R_C))]
            for kind, made in drawn.items()
        },
        "keyed hash": [int(word) for word in pairs.words(contexts, np.arange(6))],
    }


def words_of(text: str) -> list[Json]:
    """The words of a text: where they stand, and their forms."""
    return [[word.start, word.end, word.form] for word in words(text)]


def language_of(text: str) -> str:
    """The language that a text is guessed to be in."""
    return guess_language(text)


def audit_numbers(detections: Sequence[Detection], languages: Sequence[str]) -> dict[str, Json]:
    """The audit of unmarked texts: the outcome, and the numbers of all cells."""
    kept = [
        (one, name) for one, name in zip(detections, languages, strict=True) if one.effective_length >= 16
    ]
    found = audit(
        [one.p_value for one, _ in kept],
        languages=[name for _, name in kept],
        lengths=[one.tokens_scored for one, _ in kept],
    )
    return {"outcome": found.outcome.value, "texts": found.texts, "cells": leaves(found.to_dict()["cells"])}


def retention_numbers(bound: BoundScheme, pairs: Sequence[tuple[str, str]]) -> dict[str, Json]:
    """What share of z rewrites keep, pair by pair and in the mean."""
    cut = bound.tokenize([text for pair in pairs for text in pair])
    evidence = bound.evidence(cut, bound.tokenize([""] * len(cut)))
    kept, unrelated = pair_retentions(evidence[::2], evidence[1::2])
    return {"kept": kept, "unrelated": unrelated, "summary": leaves(summarise(kept, unrelated).to_dict())}


def calibration_numbers(
    negatives: Sequence[tuple[Detection, str]], detections: Sequence[Detection], folder: Path
) -> dict[str, Json]:
    """Thresholds and ranks among negatives, before and after the calibration was stored."""
    made = Calibration.from_detections(negatives, config_hash="golden", by="group")
    made.save(folder / "calibration.json")
    again = Calibration.load(folder / "calibration.json")
    return {
        "negatives": {name: np.asarray(z) for name, z in again.groups.items()},
        "too short": again.too_short,
        "thresholds": {name: again.threshold(0.1, group=name) for name in again.groups},
        "pooled thresholds": [again.threshold(rate) for rate in (0.05, 0.1, 0.5)],
        "p": [again.p_value(one.z) for one in detections],
        "p by group": [again.p_value(one.z, group=name) for one in detections for name in again.groups],
        "verdicts": [again.apply(one).verdict.value for one in detections],
    }


def evaluation_numbers() -> list[float]:
    """The protocol on scores of an imaginary run: two schemes, an attack, three seeds, human texts."""
    attacks = {"none": (1.0, 0.0), "shifted": (0.5, 0.3)}
    rows = synthetic_scores({"one": 3.0, "two": 1.0}, attacks, texts=60, human=True)
    return leaves(evaluate(rows).to_dict())


def multiple_numbers(p_values: Sequence[float]) -> dict[str, Json]:
    """Corrections for many tests."""
    return {
        "p by Holm": holm(p_values),
        "p by Benjamini and Hochberg": benjamini_hochberg(p_values),
        "p by Šidák": sidak(p_values),
    }


def power_numbers() -> list[float]:
    """Power by length, from z-scores of imaginary texts."""
    cuts = choose_cuts([50, 100], 120)
    rng = np.random.default_rng(0)
    z = 0.35 * np.sqrt(np.array(cuts)) + rng.normal(size=(12, len(cuts)))
    found = measure_power(z, np.tile(cuts, (12, 1)) * 0.5, cuts, fpr=0.01, least_effective=16.0)
    model = [found.model.slope, found.model.noise, found.model.between]
    rows = [leaves(plain(found.row(length).to_dict())) for length in (50, 100, 400)]
    return [*model, *leaves(rows), *leaves(list(found.shortest.values()))]


def likelihoods(host: Any, prompts: Sequence[str], texts: Sequence[str]) -> list[Json]:
    """Sum of log-probabilities and number of tokens of each completion."""
    return [[total, count] for total, count in host.log_likelihood(list(prompts), list(texts))]


def attacked(name: str, texts: Sequence[str], seeds: Sequence[int], **settings: object) -> list[str]:
    """Texts after an attack that needs no model."""
    return load_attack(name, **settings).apply(list(texts), seeds=list(seeds))


# Engines


def write_in_llama_cpp(host: Any, bound: BoundScheme, prompt: str, *, seed: int, tokens: int) -> list[int]:
    """Ids from the processor for llama.cpp, on a stand-in that calls it as llama-cpp-python does."""
    llama = StandIn(host)
    mark = LlamaCppProcessor(bound, llama, seed=seed, decoding=Decoding(temperature=0.9, top_k=150))
    return llama.write(prompt, tokens, mark, greedy=bound.needs.final, seed=seed)


def write_in_vllm(
    world: World, mark: str, prompts: Sequence[str], *, seeds: Sequence[int], tokens: int
) -> list[list[int]]:
    """Ids from the processor for vLLM: requests come one after the other, two change places, one leaves."""
    import pytest

    scheme, settings = MARKS[mark]
    host, patch, folder = world.host(mark), pytest.MonkeyPatch(), world.folder / "vllm"
    folder.mkdir(exist_ok=True)
    try:
        module = processor_module(patch)
        patch.setattr("dewmark.hosts.engines.markers.host_info", lambda name: host.info)
        with contextlib.suppress(FileExistsError, OSError):
            Key(secret(0)).save(folder / "the.key")
        listed = ", ".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
        (folder / "dewmark.toml").write_text(
            f'scheme = "{scheme}"\ndefault_key = "the"\nsettings = {{ {listed} }}\n[keys]\nthe = "the.key"\n',
            encoding="utf-8",
        )
        patch.setenv("DEWMARK_VLLM_CONFIG", str(folder / "dewmark.toml"))
        module.config_from_environment.__globals__["_load"].cache_clear()
        processor = module.DewLogitsProcessor(engine_config("tiny", VOCABULARY), CPU, False)
        return _served(processor, host, prompts, seeds, tokens)
    finally:
        patch.undo()


def _served(
    processor: Any, host: Any, prompts: Sequence[str], seeds: Sequence[int], tokens: int
) -> list[list[int]]:
    ids = [list(one.ids) for one in host.info.tokenizer.encode(list(prompts))]
    written: list[list[int]] = [[] for _ in ids]
    slots: list[int] = []
    for step in range(tokens + len(ids)):
        added, moved, removed = [], [], []
        if step < len(ids):
            params = SamplingParams(temperature=0.9, top_k=150, seed=seeds[step])
            added = [(len(slots), params, ids[step], written[step])]
            slots.append(step)
        elif step == len(ids) + 3:
            moved = [(0, 1, MoveDirectionality.SWAP)]
            slots[0], slots[1] = slots[1], slots[0]
        elif step == tokens - 2:
            removed = [len(slots) - 1]
            slots.pop()
        changed = added or moved or removed
        processor.update_state(BatchUpdate(len(slots), removed, added, moved) if changed else None)
        logits = torch.cat([_seeded_logits([*ids[i], *written[i]]) for i in slots])
        for i, row in zip(slots, processor.apply(logits), strict=True):
            written[i].append(int(row.argmax()))
    return written


def _seeded_logits(ids: Sequence[int]) -> torch.Tensor:
    """A stand-in for a host: logits (1, vocab) that depend on the last two ids; no special id wins."""
    seed = ids[-1] * 1000 + (ids[-2] if len(ids) > 1 else 0)
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2.0
    logits[:, :4] = -float("inf")
    return logits


# Stored detectors


def export(bound: BoundScheme, folder: Path) -> None:
    """Write a detector into a new folder."""
    Detector(bound).save(folder)


def load(folder: Path) -> BoundScheme:
    """Open an exported detector."""
    return Detector.load(folder).scheme


def needs_its_host(bound: BoundScheme) -> bool:
    """Whether a stored detector must find its host again, which a tiny one in memory cannot be."""
    return bound.needs.host_at_detection


def stored_facts(folder: Path) -> dict[str, Json]:
    """What a detector's folder holds, whatever its files are called: arrays, and values that are no paths."""
    bundle = load_bundle(folder / "state")
    index = json.loads((folder / "detector.json").read_text(encoding="utf-8"))
    arrays = sorted((_array_facts(np.asarray(one)) for one in bundle.arrays.values()), key=json.dumps)
    return {
        "fingerprint": index["key_fingerprint"],
        "host": None if index["host"] is None else [index["host"]["identity"], index["host"]["vocab_size"]],
        "tokenizer": index["tokenizer"],
        "beside the arrays": sorted(value for value in map(str, bundle.meta.values()) if "/" not in value),
        "arrays": arrays,
    }


def _array_facts(array: np.ndarray) -> dict[str, Json]:
    """Type, shape, a digest of the bytes (compared only where numbers must be exact), and sums."""
    values = array.astype(np.float64)
    data = np.ascontiguousarray(array).tobytes()
    return {
        "type": str(array.dtype),
        "shape": list(array.shape),
        "sha256": hashlib.sha256(data).hexdigest(),
        "sum": float(values.sum()),
        "root of squares": math.sqrt(float(np.square(values).sum())),
    }


# Commands and their reports


def tiny_folder(folder: Path) -> Path:
    """A tiny model saved to a folder, which commands load as any host."""
    if not folder.exists():
        model, tokenizer = tiny_model()
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    return folder


def command(*arguments: object) -> str:
    """What a command prints; it must succeed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command_line([str(argument) for argument in arguments])
    if code != 0:
        raise RuntimeError(f"the command {arguments[0]} failed with {code}: {err.getvalue()}")
    return out.getvalue()


def score_columns(path: Path) -> dict[str, Json]:
    """The rows of a file of scores as columns."""
    rows = read_scores(path)
    return {
        "ids": [Path(row.id).name for row in rows],  # a row without an id is named by its file
        "seeds": [row.seed for row in rows],
        "scores": [row.score for row in rows],
        "p": [row.p_value for row in rows],
        "tokens": [row.tokens for row in rows],
        "kept": [row.kept for row in rows],
    }


def csv_numbers(path: Path) -> list[list[float]]:
    """The numbers in each row of a CSV file."""
    number = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
    with path.open(encoding="utf-8", newline="") as stream:
        return [
            [float(found) for cell in row for found in number.findall(cell)] for row in csv.reader(stream)
        ]


EXPERIMENT_MARKS = {
    "the paper's": "dew-paper-2.0",
    "the default": "dew-default",
    "kgw": "kgw",
    "waterpool": "waterpool",
}
"""Rows of the main table, as its recipe calls them."""


def reproduce(folder: Path, out: Path, marks: Sequence[str], *, texts: int, tokens: int) -> None:
    """The main table on a tiny host: two seeds, one attack."""
    host = tiny_folder(folder / "host")
    command(
        *("reproduce", "main", "--host", host, "--judge", host, "--texts", texts, "--seeds", 2),
        *("--keys", "per-seed"),
        *("--tokens", tokens, "--batch-size", texts, "--attacks", "delete-0.3", "--out", out, "-q"),
        *("--schemes", ",".join(EXPERIMENT_MARKS[mark] for mark in marks)),
    )


# Real models


REAL: dict[str, tuple[str, Settings]] = {
    "lexicon (the default)": ("dew", {}),
    "words bias": ("dew", {**_WORDS, "sampler": "bias"}),
    "tokens gumbel, composed white contexts": ("dew", _TOKENS),
    "tokens bias, composed white contexts": ("dew", _TOKENS_BIAS),
    "tokens bias, window raw contexts (the paper)": MARKS["tokens bias, window raw contexts (the paper)"],
    "kgw": ("kgw", {}),
    "synthid": ("synthid", {}),
    "exp": ("exp", {}),
}


@functools.cache
def real_host() -> Any:
    """SmolLM2-135M, fetched on first use."""
    return load_host("smollm2-135m", device="cpu", dtype="float32")


def bind_real(mark: str, key: int = 0) -> BoundScheme:
    """A mark on the real host."""
    scheme, settings = REAL[mark]
    return load_scheme(scheme, key=Key(secret(key)), settings=dict(settings), host="smollm2-135m")
