"""The measures of ``dewmark bench``: which works are timed, and the rows that come of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from dewmark.bench.configurations import bind, configuration
from dewmark.bench.detecting import TOKENISING, detection_works, length_works
from dewmark.bench.generating import base_rows, decoding_works, step_works
from dewmark.bench.models import RANDOM, SHAPES, random_host
from dewmark.bench.peers import PEERS, Peer, installed
from dewmark.bench.timing import Cost, Work, time_works
from dewmark.hosts.transformers import TransformersHost
from dewmark.scheme import BoundScheme
from dewmark.workspace import Progress, silent

__all__ = ["Measured", "against_lengths", "against_vocabulary", "bench_detection", "bench_generation"]


@dataclass(frozen=True, slots=True)
class Measured:
    """One row (a scheme, no mark, a peer's scheme) of one measure."""

    measure: str
    row: str
    cost: Cost

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"measure": self.measure, "row": self.row, **self.cost.to_dict()}


@contextmanager
def _bound(
    names: Sequence[str], host: TransformersHost, progress: Progress
) -> Iterator[dict[str, BoundScheme]]:
    """The configurations on this host; tables of a random one are worth no place in the cache."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) if host.name.startswith(RANDOM) else None
        schemes: dict[str, BoundScheme] = {}
        for name in names:
            progress("binding schemes", len(schemes), len(names))
            schemes[name] = bind(name, host, cache=cache)
        progress("binding schemes", len(names), len(names))
        yield schemes


def _peers(names: Sequence[str], host: TransformersHost, wanted: bool) -> dict[str, Peer]:
    return {name: Peer(name, host) for name in names if name in PEERS} if wanted and installed() else {}


def bench_generation(
    host: TransformersHost,
    names: Sequence[str],
    *,
    batches: Sequence[int],
    tokens: int,
    steps: int,
    repeats: int,
    peers: bool = True,
    progress: Progress = silent,
) -> Iterator[Measured]:
    """A step, and decoding over no mark, at every batch size; 0 steps or tokens leaves the measure out."""
    theirs = _peers(names, host, peers)
    with _bound(names, host, progress) as schemes:
        for batch in batches:
            if steps:
                works = step_works(host, schemes, theirs, batch=batch, steps=steps)
                yield from _timed(f"step, batch {batch}", works, {}, repeats, progress)
            if tokens:
                works = decoding_works(host, schemes, theirs, batch=batch, tokens=tokens)
                yield from _timed(f"decoding, batch {batch}", works, base_rows(works), repeats, progress)


def bench_detection(
    host: TransformersHost,
    names: Sequence[str],
    *,
    texts: int,
    tokens: int,
    repeats: int,
    peers: bool = True,
    progress: Progress = silent,
) -> Iterator[Measured]:
    """Detection per text, in one batch and one by one (an eighth as many), over tokenising alone."""
    theirs = _peers(names, host, peers)
    with _bound(names, host, progress) as schemes:
        for together, count in ((True, texts), (False, max(texts // 8, 1))):
            works = detection_works(
                host.tokenizer,
                {name: _moved(bound, host.model.device) for name, bound in schemes.items()},
                theirs,
                texts=count,
                tokens=tokens,
                together=together,
                device=host.model.device,
            )
            how = f"a batch of {count}" if together else "one by one"
            yield from _timed(f"detection, {how}", works, dict.fromkeys(works, TOKENISING), repeats, progress)


@runtime_checkable
class _Movable(Protocol):
    """A bound scheme that can take its products to a device."""

    def on(self, device: str) -> BoundScheme:
        """The same scheme, detecting there."""


def _moved(bound: BoundScheme, device: torch.device) -> BoundScheme:
    return bound.on(str(device)) if isinstance(bound, _Movable) else bound


def against_lengths(
    host: TransformersHost,
    names: Sequence[str],
    *,
    lengths: Sequence[int],
    repeats: int,
    progress: Progress = silent,
) -> Iterator[Measured]:
    """Detection of one text by its length."""
    with _bound(names, host, progress) as schemes:
        for tokens in lengths:
            moved = {name: _moved(bound, host.model.device) for name, bound in schemes.items()}
            works = length_works(host.tokenizer, moved, tokens=tokens, device=host.model.device)
            yield from _timed(f"{tokens} tokens", works, {}, repeats, progress)


def against_vocabulary(
    names: Sequence[str],
    *,
    sizes: Sequence[int],
    steps: int,
    repeats: int,
    device: torch.device,
    progress: Progress = silent,
) -> Iterator[Measured]:
    """A step of one text by the size of the vocabulary, on hosts and encoders with random numbers."""
    for size in sizes:
        shape = {**SHAPES["tiny"], "vocab_size": size}
        host = random_host(shape, name=f"{RANDOM}{size}", device=device, dtype=torch.float32)
        own = {_without_encoder(name): name for name in names}
        with _bound(list(own), host, progress) as schemes:
            renamed = {own[changed]: bound for changed, bound in schemes.items()}
            works = step_works(host, renamed, {}, batch=1, steps=steps)
            yield from _timed(f"{size} ids", works, {}, repeats, progress)


def _without_encoder(name: str) -> str:
    """The same configuration with an encoder that costs nothing, so that tables are built at once."""
    scheme, _ = configuration(name)
    if scheme != "dew":
        return name
    return f"{name}{',' if ':' in name else ':'}encoder={RANDOM}512"


def _timed(
    measure: str, works: Mapping[str, Work], base: Mapping[str, str], repeats: int, progress: Progress
) -> Iterator[Measured]:
    if not works:
        return
    costs = time_works(measure, works, repeats=repeats, base=base, progress=progress)
    for row, cost in costs.items():
        yield Measured(measure, row, cost)
