"""What detection costs: per text of a fixed length, and against the length and the size of the vocabulary.

The base is what every detector of a host's tokens must do anyway: tokenising the text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch

from dewmark.bench.peers import Peer
from dewmark.bench.texts import plain_texts
from dewmark.bench.timing import Work, seconds
from dewmark.scheme import BoundScheme
from dewmark.workspace import Tokenizer

__all__ = ["PEER", "TOKENISING", "detection_works", "length_works"]

TOKENISING, PEER = "tokenising", "markllm "
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
    return works | {PEER + name: functools.partial(in_turn, peer.detect) for name, peer in peers.items()}


def length_works(
    tokenizer: Tokenizer, schemes: Mapping[str, BoundScheme], *, tokens: int, device: torch.device = _CPU
) -> dict[str, Work]:
    """Seconds to detect one text of so many tokens."""

    def run(detect: Callable[[str], object], number: int) -> float:
        text = plain_texts(tokenizer, 1, tokens=tokens, seed=number)[0]
        return seconds(functools.partial(detect, text), device)

    return {name: functools.partial(run, bound.detect) for name, bound in schemes.items()}
