"""The marks in plain words, and what they are bound to: tiny hosts and artifacts."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tests.fakes import BagEncoder, tiny_lexicon
from tests.tiny_artifacts import make_all

from dewmark.core.keys import Key
from dewmark.registry import SCHEMES
from dewmark.scheme import BoundScheme
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost

Json = Any  # what json.dumps takes
Settings = Mapping[str, object]

VOCABULARY = 400
CPU = torch.device("cpu")

_COMPOSED: Settings = {"context_encoding": "composed", "whiten_contexts": True}
_RAW: Settings = {"context_encoding": "composed"}
_WINDOW: Settings = {"whiten_contexts": True}

# DEW: what is scored, how it is drawn, how contexts are made.
DEW: dict[str, tuple[str, Settings]] = {
    "lexicon (the default)": ("dew", {}),
    "lexicon, strong": ("dew", {"strength": "strong"}),
    "tokens bias, composed white contexts": ("dew-paper", _COMPOSED),
    "tokens bias, composed raw contexts": ("dew-paper", _RAW),
    "tokens bias, window white contexts": ("dew-paper", _WINDOW),
    "tokens bias, window raw contexts (the paper)": ("dew-paper", {}),
    "tokens bias, strength 4 on 16 candidates": ("dew-paper", {**_COMPOSED, "lambda": 4.0, "m": 16}),
    "tokens bias, raw token table": ("dew-paper", {**_COMPOSED, "whiten_tokens": False}),
    "tokens bias, token meaning only": ("dew-paper", {"mode": "token_only"}),
    "tokens bias, context meaning only": ("dew-paper", {**_COMPOSED, "mode": "context_only"}),
    "tokens bias, no meaning": ("dew-paper", {"mode": "neither"}),
}

# The other schemes, each as it comes, and the variants that go other ways through the code.
BASELINES: dict[str, tuple[str, Settings]] = {
    "atw": ("atw", {"delta": 0.7}),
    "dipmark": ("dipmark", {}),
    "dipmark, repeated contexts skipped": ("dipmark", {"repeats": "skip"}),
    "ewd": ("ewd", {}),
    "exp": ("exp", {"prefix": 3}),
    "exp, repeated contexts kept": ("exp", {"prefix": 3, "repeats": "keep"}),
    "kgw": ("kgw", {}),
    "kgw, self-hash": ("kgw", {"hashing": "self"}),
    "kgw, three tokens of context": ("kgw", {"prefix": 3}),
    "ksemstamp": ("ksemstamp", {}),
    "morphmark": ("morphmark", {}),
    "morphmark, linear": ("morphmark", {"form": "linear"}),
    "mpac": ("mpac", {"message": 45000}),
    "pasa": ("pasa", {}),
    "pmark": ("pmark", {}),
    "semstamp": ("semstamp", {}),
    "sglang-gumbel": ("sglang-gumbel", {}),
    "simkey": ("simkey", {}),
    "sir": ("sir", {}),
    "sweet": ("sweet", {}),
    "synthid": ("synthid", {"prefix": 3}),
    "synthid, three leaves": ("synthid", {"prefix": 3, "leaves": 3}),
    "transformers-kgw": ("transformers-kgw", {}),
    "transformers-synthid": ("transformers-synthid", {}),
    "ts": ("ts", {}),
    "unbiased": ("unbiased", {}),
    "unigram": ("unigram", {}),
    "vllm-dual-key-gumbel": ("vllm-dual-key-gumbel", {}),
    "vllm-gumbel": ("vllm-gumbel", {}),
    "vllm-sbw": ("vllm-sbw", {}),
    "waterpool": ("waterpool", {}),
    "xsir": ("xsir", {}),
}

MARKS: dict[str, tuple[str, Settings]] = DEW | BASELINES


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
        mock.patch("dewmark.encoders.loaded", {}),
        mock.patch("dewmark.encoders.create", return_value=encoder),
        mock.patch("dewmark.scheme.encoder_languages", return_value=encoder.languages),
        mock.patch("dewmark.encoders.lexicon.lexicon_folder", return_value=tiny_lexicon()),
        mock.patch("dewmark_lab.artifacts.shipped", return_value=made.artifacts),
        mock.patch.dict("os.environ", {"DEWMARK_CACHE": str(folder / "cache")}),
    ):
        yield made
