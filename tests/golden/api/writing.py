"""Every way a text can be written: hosts, rows of engines, transformers, llama.cpp, vLLM; and attacks."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from tests.golden.api.worlds import CPU, MARKS, VOCABULARY, Json, World, secret
from tests.hosts.test_llamacpp import StandIn
from tests.hosts.vllm_stub import (
    BatchUpdate,
    MoveDirectionality,
    SamplingParams,
    engine_config,
    processor_module,
)

from dewmark.attack import load_attack
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.hosts.engines.llamacpp import LlamaCppProcessor
from dewmark.hosts.transformers.decoding_loop import CachedForward, pad_left
from dewmark.hosts.transformers.watermarking_config import WatermarkingConfig
from dewmark.sampling import RandomStreams, race, warp
from dewmark.scheme import BoundScheme
from dewmark.serving_rows import open_rows


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
    rows, model = open_rows(bound, CPU), host.model
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


def likelihoods(host: Any, prompts: Sequence[str], texts: Sequence[str]) -> list[Json]:
    """Sum of log-probabilities and number of tokens of each completion."""
    return [[total, count] for total, count in host.log_likelihood(list(prompts), list(texts))]


def attacked(name: str, texts: Sequence[str], seeds: Sequence[int], **settings: object) -> list[str]:
    """Texts after an attack that needs no model."""
    return load_attack(name, **settings).apply(list(texts), seeds=list(seeds))


def write_in_llama_cpp(host: Any, bound: BoundScheme, prompt: str, *, seed: int, tokens: int) -> list[int]:
    """Ids from the processor for llama.cpp, on a stand-in that calls it as llama-cpp-python does."""
    llama = StandIn(host)
    mark = LlamaCppProcessor(bound, llama, seed=seed, decoding=Decoding(temperature=0.9, top_k=150))
    return llama.write(prompt, tokens, mark, greedy=bound.needs.final_distribution, seed=seed)


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
