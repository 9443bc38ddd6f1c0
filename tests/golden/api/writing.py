"""The two ways in which schemes mark texts: the session of a host, and the rows of engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tests.golden.api.worlds import CPU, VOCABULARY, Json

from dewmark.decoding import Decoding
from dewmark.hosts.transformers.decoding_loop import CachedForward, pad_left
from dewmark.sampling import RandomStreams, race, warp
from dewmark.scheme import BoundScheme


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
                if bound.needs.final_distribution:
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


def _seeded_logits(ids: Sequence[int]) -> torch.Tensor:
    """A stand-in for a host: logits (1, vocab) that depend on the last two ids; no special id wins."""
    seed = ids[-1] * 1000 + (ids[-2] if len(ids) > 1 else 0)
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2.0
    logits[:, :4] = -float("inf")
    return logits
