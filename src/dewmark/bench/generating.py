"""What marking costs: one step of a session, and decoding with the mark over decoding without it.

- step: a session's call on random logits of the host's vocabulary, while rows of random tokens grow;
- decoding: the host writes texts of a fixed length, all prompts in one batch; the base is no mark.

A scheme that chooses between drafts of sentences has no step, and is timed by decoding alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dewmark.bench.peers import Peer, generate
from dewmark.bench.texts import prompts
from dewmark.bench.timing import Work, seconds
from dewmark.hosts.transformers import TransformersHost
from dewmark.scheme import BoundScheme

__all__ = ["NONE", "PEER", "base_rows", "decoding_works", "step_works"]

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
