"""The data that the checks of a scheme share: a tiny host, many keys, marked and unmarked texts.

Everything is created when a check first asks for it, and kept. Boundary: nothing is checked here.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.detect import score_texts
from dewmark.scheme import BoundScheme, Scheme, for_languages
from dewmark.workspace import Workspace
from dewmark_lab.testing.fake_host import FakeHost, Kind

if TYPE_CHECKING:
    import torch

VOCABULARY = 400
TEXTS = 16
DECODING = Decoding(temperature=0.8, top_k=100, top_p=0.95)  # of processors

Processor = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]


class Trial:
    """One scheme under test.

    ``tokens`` is the length of the texts, ``keys`` the number of random keys for p-values and evidence.
    ``cache`` is the scheme's cache folder, by default a temporary one.
    """

    def __init__(
        self, scheme: Scheme, *, tokens: int = 200, keys: int = 200, cache: Path | None = None
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory() if cache is None else None
        self.folder = Path(self._temporary.name) if self._temporary is not None else Path(str(cache))
        self.scheme, self.tokens = scheme, tokens
        self.host = host_for(scheme)
        model = CachedModel(self.host)
        self.workspace = Workspace(
            cache=self.folder, find_host=lambda name: self.host.info, open_host=lambda name: model
        )
        self.secret = _secret("the right key")
        self._keys = keys

    def close(self) -> None:
        """Delete the temporary folder, which otherwise goes with the object."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def bind(self, secret: bytes) -> BoundScheme:
        """The scheme bound to a key of these 32 bytes."""
        bound = self.scheme.bind(Key(secret), self.host.info, self.workspace)
        # the tiny host's words belong to no language
        return for_languages(bound, dataclasses.replace(bound.languages, every=True))

    @functools.cached_property
    def bound(self) -> BoundScheme:
        """The scheme bound to the key that marks."""
        return self.bind(self.secret)

    @functools.cached_property
    def others(self) -> list[BoundScheme]:
        """The scheme bound to many other keys."""
        return [self.bind(_secret(f"wrong key {i}")) for i in range(self._keys)]

    @property
    def prompts(self) -> list[str]:
        """Prompts of different lengths."""
        return _prompts(self.host)

    @functools.cached_property
    def marked(self) -> list[str]:
        """Texts that the host wrote with the mark."""
        return self.write(self.prompts, self.bound)

    @functools.cached_property
    def nulls(self) -> dict[str, list[str]]:
        """Unmarked texts by kind; careless p-values fail on the repetitive ones."""
        decode = self.host.info.tokenizer.decode
        drawn, times = functools.partial(_random_ids, self.host, random.Random(1)), self.tokens // 40 + 1
        return {
            "the host's own text": _unmarked(self.host, self.tokens),
            "random tokens": decode([drawn(self.tokens) for _ in range(TEXTS)]),
            "repetitive text": decode([drawn(40) * times for _ in range(TEXTS)]),
        }

    @functools.cached_property
    def p_values(self) -> dict[str, list[float]]:
        """The p-values of each kind of text under other keys, one per key: they are independent."""
        kinds = {**self.nulls, "text marked with another key": self.marked}
        found: dict[str, list[float]] = {kind: [] for kind in kinds}
        for i, bound in enumerate(self.others):
            detections = score_texts(bound, [texts[i % TEXTS] for texts in kinds.values()])
            for kind, detection in zip(kinds, detections, strict=True):
                found[kind].append(detection.p_value)
        return found

    def write(
        self, prompts: Sequence[str], scheme: BoundScheme, *, tokens: int | None = None, first_seed: int = 0
    ) -> list[str]:
        """Marked completions, row i with seed ``first_seed`` + i."""
        return _write(self.host, prompts, scheme, tokens or self.tokens, first_seed)

    def steps(
        self, rows: Sequence[int], *, processor: bool = False, mask: bool = False, device: str = "cpu"
    ) -> torch.Tensor:
        """Probabilities (steps, rows, vocab) after marking, for some prompts while they grow.

        The prompts are padded on the left to one length. Each row's logits and next tokens depend on the row
        alone, so its probabilities must not depend on the other rows. The tokens repeat.
        """
        import torch

        pad = self.host.info.tokenizer.pad_id
        prompts = [list(t.ids) for t in self.host.info.tokenizer.encode([self.prompts[row] for row in rows])]
        width = max(map(len, prompts))
        ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts], device=device)
        real = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        seeds = [100 + row for row in rows]
        given = real if mask else None
        mark: Processor
        if processor:
            mark = self.bound.processor(ids, given, seeds=seeds, decoding=DECODING)
        else:
            mark = self.bound.session(ids, given, seeds=seeds)
        sources = [torch.Generator().manual_seed(row) for row in rows]
        growth = [_random_ids(self.host, random.Random(row), 4) * 3 for row in rows]
        found = []
        for step in range(len(growth[0])):
            logits = torch.stack([2.0 * torch.randn(VOCABULARY, generator=source) for source in sources])
            marked = mark(ids, logits.to(device))
            found.append(marked.float().softmax(dim=-1).cpu())
            ids = torch.cat((ids, torch.tensor([[row[step]] for row in growth], device=device)), dim=1)
        return torch.stack(found)


class CachedModel:
    """The host as detectors run it; each text is run once for all keys."""

    def __init__(self, host: FakeHost) -> None:
        self._host = host
        self._seen: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}

    def next_logits(
        self, prompts: Sequence[str], completions: Sequence[Sequence[int]]
    ) -> Iterator[torch.Tensor]:
        """The logits (L, vocab) of each completion of L ids."""
        asked = [(prompt, tuple(ids)) for prompt, ids in zip(prompts, completions, strict=True)]
        new = [each for each in dict.fromkeys(asked) if each not in self._seen]
        found = self._host.next_logits([prompt for prompt, _ in new], [ids for _, ids in new])
        self._seen.update(zip(new, found, strict=True))
        return (self._seen[each].clone() for each in asked)


@functools.cache
def tiny_host(kind: Kind = "words") -> FakeHost:
    """A small host, one of each kind for all trials in a process."""
    return FakeHost(VOCABULARY, kind=kind)


def host_for(scheme: Scheme) -> FakeHost:
    """A host that writes what the scheme can mark: sentences or just words."""
    return tiny_host("sentences") if scheme.needs.drafts else tiny_host()


@functools.cache
def _prompts(host: FakeHost) -> list[str]:
    rng = random.Random(0)
    return host.info.tokenizer.decode([_random_ids(host, rng, 1 + i % 9) for i in range(TEXTS)])


@functools.cache
def _unmarked(host: FakeHost, tokens: int) -> list[str]:
    return _write(host, _prompts(host), None, tokens, 1000)


def _write(
    host: FakeHost, prompts: Sequence[str], scheme: BoundScheme | None, tokens: int, first_seed: int
) -> list[str]:
    seeds = range(first_seed, first_seed + len(prompts))
    decoding = Decoding(max_new_tokens=tokens, min_new_tokens=tokens)
    written = host.generate(prompts, scheme=scheme, seeds=seeds, decoding=decoding, batch_size=TEXTS)
    return [generation.text for generation in written]


def _random_ids(host: FakeHost, rng: random.Random, count: int) -> list[int]:
    return rng.choices(np.flatnonzero(host.info.markable).tolist(), k=count)


def _secret(name: str) -> bytes:
    return hashlib.sha256(f"dewmark.testing: {name}".encode()).digest()
