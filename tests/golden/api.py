"""All that the golden record knows of dewmark: the marks in plain words, and thin functions over its API.

When modules move or parameters are renamed, this file is edited and nothing else: neither the sections nor
the record name a module or a parameter as the library spells it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from tests.fakes import BagEncoder
from tests.tiny_artifacts import make_all

from dewmark.core.keys import Key
from dewmark.errors import ConfigError
from dewmark.hosts.decoding import CachedForward, pad_left
from dewmark.hosts.fake import FakeHost
from dewmark.hosts.watermarking import WatermarkingConfig
from dewmark.passages import locate
from dewmark.registry import SCHEMES
from dewmark.rows import Warping
from dewmark.sampling import RandomStreams, race
from dewmark.scheme import BoundScheme
from dewmark.stats.key_test import score_variance
from dewmark.types import Detection
from dewmark.watermark import attribute
from dewmark.workspace import Workspace

Json = Any  # what json.dumps takes
Settings = Mapping[str, object]

VOCABULARY = 400
CPU = torch.device("cpu")

_TOKENS: Settings = {"units": "token"}
_TOKENS_BIAS: Settings = {"units": "token", "sampler": "bias"}

# DEW: what is scored, how it is drawn, how contexts are made.
DEW: dict[str, Settings] = {
    "words gumbel": {},
    "words bias": {"sampler": "bias"},
    "words gumbel, centred at rare words": {"centre": "rare"},
    "words gumbel, mean of the text subtracted": {"centred": True},
    "words gumbel, contexts of two": {"k": 2},
    "words gumbel, orthogonal projections": {"projection": "orthogonal"},
    "words gumbel, all randomness keyed": {"alpha": 1.0},
    "words bias, linear scores": {"sampler": "bias", "score": "linear"},
    "tokens gumbel, composed white contexts": _TOKENS,
    "tokens gumbel, composed raw contexts": {**_TOKENS, "contexts": "raw"},
    "tokens gumbel, window white contexts": {**_TOKENS, "context": "window"},
    "tokens gumbel, window raw contexts": {**_TOKENS, "context": "window", "contexts": "raw"},
    "tokens bias, composed white contexts": _TOKENS_BIAS,
    "tokens bias, composed raw contexts": {**_TOKENS_BIAS, "contexts": "raw"},
    "tokens bias, window white contexts": {**_TOKENS_BIAS, "context": "window"},
    "tokens bias, window raw contexts (the paper)": {**_TOKENS_BIAS, "context": "window", "contexts": "raw"},
    "tokens bias, strength 4 on 16 candidates": {**_TOKENS_BIAS, "lambda": 4.0, "m": 16},
    "tokens bias, nucleus": {**_TOKENS_BIAS, "nucleus": 0.9},
    "tokens bias, raw token table": {**_TOKENS_BIAS, "token_whitening": False},
    "tokens bias, mean of the text kept": {**_TOKENS_BIAS, "centred": False},
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
    "pasa": ("pasa", {}),
    "semstamp": ("semstamp", {}),
    "simkey": ("simkey", {}),
    "sir": ("sir", {}),
    "sweet": ("sweet", {}),
    "synthid": ("synthid", {}),
    "synthid, three leaves": ("synthid", {"leaves": 3}),
    "ts": ("ts", {}),
    "unbiased": ("unbiased", {}),
    "unbiased, delta reweighting": ("unbiased", {"reweight": "delta"}),
    "unigram": ("unigram", {}),
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
        mock.patch("dewmark.embeddings.encoders.load_encoder", return_value=encoder),
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
    **more: Any,
) -> list[dict[str, Json]]:
    """Texts of exactly ``tokens`` tokens from the host's own loop (the session path)."""
    written = host.generate(
        prompts, scheme=bound, seeds=list(seeds), max_new_tokens=tokens, min_new_tokens=tokens, **more
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
    warping = Warping(temperature=temperature, top_k=top_k, top_p=top_p)
    rows, model = bound.rows(CPU), host.model
    ids = [list(one.ids) for one in host.info.tokenizer.encode(list(prompts))]
    written: list[list[int]] = [[] for _ in ids]
    opened = [
        rows.open(prompt, grows, seed=seed, warping=warping)
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
                    chosen, _ = race(warping(row), noise[i].exponentials(step, row.shape[1]))
                written[i].append(int(chosen))
                padded[i, start + step] = int(chosen)
    return written


def write_by_transformers(
    host: Any, bound: BoundScheme, prompts: Sequence[str], *, seeds: Sequence[int], tokens: int, way: str
) -> list[list[int]]:
    """Ids from the model's own ``generate``: by a logits ``processor``, or by its watermarking ``config``."""
    ids = [list(one.ids) for one in host.info.tokenizer.encode(list(prompts))]
    padded, mask = pad_left(ids, fill_id=0, device=CPU)
    more: dict[str, Any]
    if way == "processor":
        more = {
            "logits_processor": [bound.processor(padded, mask, seeds=list(seeds), temperature=0.9, top_k=150)]
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
