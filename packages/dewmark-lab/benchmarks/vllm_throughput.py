"""The cost of marking in vLLM, and verdicts on mixed batches of requests (docs/vllm.md).

    python benchmarks/vllm_throughput.py --scheme dew-paper
    python benchmarks/vllm_throughput.py --verdicts 200 --tokens 100

Needs an environment with vLLM (make test-vllm makes one). One engine with the logits processor generates
marked and unmarked batches in turns, so that other load on the machine affects both. The script prints the
ratio of their rates, and the same ratio in CPU seconds of the process that runs the model (Linux), which is
steadier on a busy machine. With ``--verdicts N``, N marked and N unmarked requests share one batch, and an
independent detector scores their texts.
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

from script_inputs import script_parser

import dewmark
from dewmark.config import parse_settings
from dewmark.hosts.transformers.model_files import resolve
from dewmark_lab.bench.measures import prompts

Engine = Any  # vLLM's LLM


def options() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--host", default="smollm2-135m", help="a packaged host or a model folder")
    parser.add_argument("--scheme", default="dew")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the scheme"
    )
    parser.add_argument("--requests", type=int, default=64, help="concurrent requests")
    parser.add_argument("--tokens", type=int, default=24, help="tokens per text")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of one marked and one unmarked batch")
    parser.add_argument(
        "--verdicts", type=int, default=0, help="instead, score N marked and N unmarked texts"
    )
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path, help="append the result to this JSONL file")
    return parser.parse_args()


def main() -> None:
    given = options()
    folder = resolve(given.host).location
    with tempfile.TemporaryDirectory() as private:
        key_file, config = Path(private) / "key", Path(private) / "config.json"
        dewmark.Key.generate().save(key_file)
        settings = parse_settings(given.set)
        values = {
            "scheme": given.scheme,
            "settings": settings,
            "keys": {"bench": str(key_file)},
            "host": given.host,
        }
        config.write_text(json.dumps(values), encoding="utf-8")
        os.environ["DEWMARK_VLLM_CONFIG"] = str(config)
        llm = engine(folder, given)
        result = verdicts(llm, given, key_file, settings) if given.verdicts else throughput(llm, given)
    result = {
        "scheme": given.scheme,
        "settings": settings,
        "requests": given.requests,
        "tokens": given.tokens,
        **result,
    }
    print(json.dumps(result, indent=1), flush=True)
    if given.out:
        with given.out.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(result) + "\n")
    llm.llm_engine.engine_core.shutdown()  # leaving this to the garbage collector can hang


def engine(folder: str, given: argparse.Namespace) -> Engine:
    from vllm import LLM

    return LLM(
        model=folder,
        dtype=given.dtype,
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=given.requests,
        logits_processors=["dewmark.hosts.engines.vllm:DewLogitsProcessor"],
    )


def write(llm: Engine, marked: list[bool], tokens: int, first: int) -> tuple[list[str], list[str], float]:
    """Prompts, texts and seconds of one batch of requests."""
    from vllm import SamplingParams

    texts = prompts(len(marked))
    params = [
        SamplingParams(max_tokens=tokens, ignore_eos=True, seed=first + i, extra_args={"dewmark": bool(on)})
        for i, on in enumerate(marked)
    ]
    begin = time.perf_counter()
    outputs = llm.generate(texts, params, use_tqdm=False)
    return texts, [output.outputs[0].text for output in outputs], time.perf_counter() - begin


def throughput(llm: Engine, given: argparse.Namespace) -> dict[str, object]:
    """Tokens per second of marked and unmarked batches in turns; which goes first alternates."""
    for on in (False, True):
        write(llm, [on] * given.requests, 4, 0)  # warm-up
    seconds: dict[bool, list[float]] = {True: [], False: []}
    busy: dict[bool, list[float]] = {True: [], False: []}
    for number in range(given.rounds):
        for on in (number % 2 == 1, number % 2 == 0):
            before = cpu_seconds()
            seconds[on].append(write(llm, [on] * given.requests, given.tokens, number)[2])
            after = cpu_seconds()
            busy[on].append(max(after[one] - before.get(one, 0.0) for one in after))
    rate = {on: given.requests * given.tokens / statistics.median(seconds[on]) for on in seconds}
    return {
        "marked_tokens_per_s": round(rate[True], 1),
        "unmarked_tokens_per_s": round(rate[False], 1),
        **ratios("ratio", seconds),
        **ratios("cpu_ratio", busy),
    }


def ratios(name: str, seconds: dict[bool, list[float]]) -> dict[str, object]:
    """Speed with the mark over speed without it: the median over rounds, and each round."""
    found = [plain / mark for mark, plain in zip(seconds[True], seconds[False], strict=True)]
    return {name: round(statistics.median(found), 3), f"{name}_by_round": [round(one, 3) for one in found]}


def cpu_seconds() -> dict[int, float]:
    """CPU seconds of this process and of each descendant, from /proc."""
    parents, used, tick = {}, {}, os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = (int(fields[11]) + int(fields[12])) / tick
    family = [os.getpid()]
    for one in family:
        family += [child for child, parent in parents.items() if parent == one]
    return {one: used[one] for one in family}


def verdicts(
    llm: Engine, given: argparse.Namespace, key_file: Path, settings: dict[str, str]
) -> dict[str, object]:
    """The number of marked and unmarked texts of one mixed batch with p < 0.001."""
    marked = [i % 2 == 0 for i in range(2 * given.verdicts)]
    openings, texts, seconds = write(llm, marked, given.tokens, given.first_seed)
    bound = dewmark.load_scheme(
        dewmark.Key.load(key_file), host=given.host, scheme=given.scheme, settings=settings
    )
    found = bound.detect_batch(texts, prompts=openings, fpr=0.001)
    p = {on: sorted(d.p_value for d, m in zip(found, marked, strict=True) if m is on) for on in (True, False)}
    z = [d.z for d, m in zip(found, marked, strict=True) if m]
    return {
        "marked_below_0.001": sum(value < 0.001 for value in p[True]),
        "unmarked_below_0.001": sum(value < 0.001 for value in p[False]),
        "of_each": given.verdicts,
        "largest_marked_p": p[True][-1],
        "smallest_unmarked_p": p[False][0],
        "marked_z_mean_and_sd": [round(statistics.mean(z), 2), round(statistics.stdev(z), 2)],
        "units_scored": round(statistics.mean(d.tokens_scored for d in found), 1),
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    main()
