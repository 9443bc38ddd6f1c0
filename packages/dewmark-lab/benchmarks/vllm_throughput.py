"""Throughput in vLLM without a mark, with ours and with vLLM's own, and how often drafts are accepted.

    python benchmarks/vllm_throughput.py --requests 16 --tokens 64
    python benchmarks/vllm_throughput.py --native                  # vLLM's own Gumbel mark too
    python benchmarks/vllm_throughput.py --drafts 3                # speculative decoding with n-grams

Needs an environment with vLLM (make test-vllm makes one). One engine writes the same prompts with each mark
in turn, round after round, so that other load on the machine affects all of them. Ratios are speeds beside
the batch without a mark in the same round, by the clock and by the CPU seconds of the process, which are
steadier on a busy machine but leave out a GPU's work. All figures are medians over rounds. ``--native`` and
``--drafts`` need vLLM's second model runner, so a GPU. They exclude each other: vLLM's own mark works with
the drafts of a model only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from script_inputs import script_parser

import dewmark
from dewmark.hosts.transformers.model_files import resolve
from dewmark_lab.bench.measures import prompts

COUNTS = {"drafted": "vllm:spec_decode_num_draft_tokens", "accepted": "vllm:spec_decode_num_accepted_tokens"}


def options() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--host", default="smollm2-135m", help="a packaged host or a model folder")
    parser.add_argument("--requests", type=int, default=16, help="concurrent requests")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--native", action="store_true", help="vLLM's own Gumbel mark too")
    parser.add_argument("--drafts", type=int, default=0, help="tokens that n-grams guess per step")
    return parser.parse_args()


def main() -> None:
    given = options()
    with tempfile.TemporaryDirectory() as private:
        key_file = Path(private) / "key"
        dewmark.Key.generate().save(key_file)
        os.environ |= {"DEWMARK_KEY_FILE": str(key_file), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        print(json.dumps(vars(given) | measured(engine(given), given), indent=1), flush=True)


def engine(given: argparse.Namespace) -> Any:  # noqa: ANN401 - vLLM's LLM
    from vllm import LLM

    more: dict[str, object] = {}
    if given.native:
        more["watermark_config"] = {"key": 1234567}
    if given.drafts:
        ngrams = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 3}
        more["speculative_config"] = ngrams | {"num_speculative_tokens": given.drafts}
    return LLM(
        model=resolve(given.host).location,
        dtype=given.dtype,
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=given.requests,
        disable_log_stats=False,
        logits_processors=["dewmark.hosts.engines.vllm:DewLogitsProcessor"],
        **more,
    )


def measured(llm: Any, given: argparse.Namespace) -> dict[str, object]:  # noqa: ANN401
    """Rates, ratios and accepted drafts by mark; the first mark of a round alternates."""
    marks = ["none", "dewmark", *(["vllm"] if given.native else [])]
    for mark in marks:
        write(llm, given, mark, tokens=4, first=0)  # warm-up
    seconds: dict[str, list[tuple[float, float]]] = {mark: [] for mark in marks}
    counts = {mark: dict.fromkeys(COUNTS, 0) for mark in marks}
    for number in range(given.rounds):
        for mark in [*marks[number % len(marks) :], *marks[: number % len(marks)]]:
            before, begin, busy = counters(llm), time.perf_counter(), time.process_time()
            write(llm, given, mark, tokens=given.tokens, first=number * given.requests)
            seconds[mark].append((time.perf_counter() - begin, time.process_time() - busy))
            for name, value in counters(llm).items():
                counts[mark][name] += value - before[name]
    found: dict[str, object] = {}
    for mark in marks:
        rate = given.requests * given.tokens / statistics.median(wall for wall, _ in seconds[mark])
        by_round = np.round(np.array(seconds["none"]) / np.array(seconds[mark]), 3)
        ratio, cpu_ratio = np.median(by_round, axis=0).tolist()
        found[mark] = {
            "tokens_per_s": round(rate, 1),
            "ratio": ratio,
            "cpu_ratio": cpu_ratio,
            "cpu_ratio_by_round": by_round[:, 1].tolist(),
            **counts[mark],
        }
    return found


def write(llm: Any, given: argparse.Namespace, mark: str, *, tokens: int, first: int) -> None:  # noqa: ANN401
    """One batch of requests."""
    from vllm import SamplingParams

    params = [
        SamplingParams(
            max_tokens=tokens,
            ignore_eos=True,
            seed=first + i,
            temperature=given.temperature,
            watermarking=mark == "vllm",
            extra_args={"dewmark": mark == "dewmark"},
        )
        for i in range(given.requests)
    ]
    llm.generate(prompts(given.requests), params, use_tqdm=False)


def counters(llm: Any) -> dict[str, int]:  # noqa: ANN401 - vLLM's LLM
    """Draft tokens so far, and those that were accepted; 0 without speculative decoding."""
    known = {metric.name: metric.value for metric in llm.get_metrics() if metric.name in COUNTS.values()}
    return {name: int(known.get(metric, 0)) for name, metric in COUNTS.items()}


if __name__ == "__main__":
    main()
