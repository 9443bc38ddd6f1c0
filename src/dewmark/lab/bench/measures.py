"""What marking costs: one step of a session, and decoding with the mark over decoding without it.

- step: a session's call on random logits of the host's vocabulary, while rows of random tokens grow;
- decoding: the host writes texts of a fixed length, all prompts in one batch; the base is no mark.

A scheme that chooses between drafts of sentences has no step, and is timed by decoding alone.

What detection costs: per text of a fixed length, and against the length and the size of the vocabulary.

The base is what every detector of a host's tokens must do anyway: tokenising the text.

The measures of ``dewmark bench``: which works are timed, and the rows that come of it.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from dewmark.hosts.transformers.model import TransformersHost
from dewmark.lab.bench.markllm import PEERS, Peer, generate, installed
from dewmark.lab.bench.subjects import RANDOM, SHAPES, bind, configuration, plain_texts, prompts, random_host
from dewmark.lab.bench.timing import Cost, Work, seconds, time_works
from dewmark.scheme import BoundScheme
from dewmark.workspace import Progress, Tokenizer, silent

__all__ = [
    "NONE",
    "PEER",
    "TOKENISING",
    "Measured",
    "against_lengths",
    "against_vocabulary",
    "base_rows",
    "bench_detection",
    "bench_generation",
    "decoding_works",
    "detection_works",
    "length_works",
    "step_works",
]

NONE, PEER = "none", "markllm "

_PROMPT = 20

Mark = Callable[[torch.Tensor, torch.Tensor], object]


def step_works(
    host: TransformersHost,
    schemes: Mapping[str, BoundScheme],
    peers: Mapping[str, Peer],
    *,
    batch: int,
    steps: int,
) -> dict[str, Work]:
    """Seconds of one marking step for ``batch`` rows."""
    device, width, size = host.model.device, host.info.vocab_size, host.tokenizer.size
    logits = 3.0 * torch.randn(2, batch, width, generator=torch.Generator().manual_seed(0)).to(device)

    def run(start: Callable[[torch.Tensor], Mark], number: int) -> float:
        random = torch.Generator().manual_seed(number)
        ids = torch.randint(5, min(width, size), (batch, _PROMPT + steps), generator=random).to(device)
        mark, total = start(ids[:, :_PROMPT]), 0.0
        for step in range(steps):
            scores = logits[step % 2].clone()  # some processors work in place
            total += seconds(functools.partial(mark, ids[:, : _PROMPT + step], scores), device)
        return total / steps

    def session(bound: BoundScheme, ids: torch.Tensor) -> Mark:
        return bound.session(ids, seeds=range(batch))

    works: dict[str, Work] = {
        name: functools.partial(run, functools.partial(session, bound))
        for name, bound in schemes.items()
        if not bound.needs.drafts
    }
    for name, peer in peers.items():
        if peer.batches or batch == 1:
            works[PEER + name] = functools.partial(run, functools.partial(_step_of, peer))
    return works


def _step_of(peer: Peer, ids: torch.Tensor) -> Mark:
    return peer.step()


def decoding_works(
    host: TransformersHost,
    schemes: Mapping[str, BoundScheme],
    peers: Mapping[str, Peer],
    *,
    batch: int,
    tokens: int,
) -> dict[str, Work]:
    """Seconds per token of a batch of texts; no mark is the row `NONE`, and for peers their own."""
    length: dict[str, Any] = {"max_new_tokens": tokens, "min_new_tokens": tokens, "batch_size": batch}

    def ours(bound: BoundScheme | None, number: int) -> float:
        texts = prompts(batch, first=batch * number)
        write = functools.partial(host.generate, texts, scheme=bound, seeds=range(batch), **length)
        return seconds(write, host.model.device) / tokens

    def theirs(write: Callable[[list[str], int], object], number: int) -> float:
        texts = prompts(batch, first=batch * number)
        return seconds(functools.partial(write, texts, tokens), host.model.device) / tokens

    works: dict[str, Work] = {NONE: functools.partial(ours, None)}
    works |= {name: functools.partial(ours, bound) for name, bound in schemes.items()}
    if peers:
        works[PEER + NONE] = functools.partial(theirs, functools.partial(generate, host))
    for name, peer in peers.items():
        if peer.batches or batch == 1:
            works[PEER + name] = functools.partial(theirs, peer.generate)
    return works


def base_rows(works: Mapping[str, Work]) -> dict[str, str]:
    """For each row of decoding the row without a mark that it is compared with."""
    return {name: PEER + NONE if name.startswith(PEER) else NONE for name in works}


TOKENISING, PEER_DETECTING = "tokenising", "markllm "

_CPU = torch.device("cpu")


def detection_works(
    tokenizer: Tokenizer,
    schemes: Mapping[str, BoundScheme],
    peers: Mapping[str, Peer],
    *,
    texts: int,
    tokens: int,
    together: bool,
    device: torch.device = _CPU,
) -> dict[str, Work]:
    """Seconds per text, one by one or all ``together`` in one batch; peers have no batches."""
    pool = functools.lru_cache(maxsize=1)(
        lambda number: plain_texts(tokenizer, texts, tokens=tokens, seed=2 * number + together)
    )

    def batch(detect: Callable[[Sequence[str]], object], number: int) -> float:
        return seconds(functools.partial(detect, pool(number)), device) / texts

    def in_turn(detect: Callable[[str], object], number: int) -> float:
        return batch(lambda many: [detect(text) for text in many], number)

    works: dict[str, Work] = {}
    if together:
        works[TOKENISING] = functools.partial(batch, lambda many: tokenizer.encode(list(many)))
        works |= {name: functools.partial(batch, bound.detect_batch) for name, bound in schemes.items()}
        return works
    works[TOKENISING] = functools.partial(in_turn, lambda text: tokenizer.encode([text]))
    works |= {name: functools.partial(in_turn, bound.detect) for name, bound in schemes.items()}
    return works | {
        PEER_DETECTING + name: functools.partial(in_turn, peer.detect) for name, peer in peers.items()
    }


def length_works(
    tokenizer: Tokenizer, schemes: Mapping[str, BoundScheme], *, tokens: int, device: torch.device = _CPU
) -> dict[str, Work]:
    """Seconds to detect one text of so many tokens."""

    def run(detect: Callable[[str], object], number: int) -> float:
        text = plain_texts(tokenizer, 1, tokens=tokens, seed=number)[0]
        return seconds(functools.partial(detect, text), device)

    return {name: functools.partial(run, bound.detect) for name, bound in schemes.items()}


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
