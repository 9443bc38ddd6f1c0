"""What marking costs inside vLLM, and whether every request gets its own verdict.

    python benchmarks/vllm_throughput.py --set units=token --set sampler=bias
    python benchmarks/vllm_throughput.py --verdicts 200 --tokens 100

Run it where vLLM is installed (make test-vllm makes such an environment). One engine with the processor
loaded writes marked and unmarked batches in turn, so whatever else the machine does meets both. Beside the
rates it tells the same ratio in processor seconds of the process that runs the model (Linux): where other
work goes on that is the steadier number. With ``--verdicts N`` N marked and N unmarked requests share one
batch, and a detector that knows nothing of the engine scores their texts.
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

from common import openings

import dewmark
from dewmark.config import parse_settings
from dewmark.hosts.transformers.model_files import resolve

Engine = Any  # vLLM's LLM


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="smollm2-135m", help="a packaged host or a model folder")
    parser.add_argument("--scheme", default="dew")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the scheme"
    )
    parser.add_argument("--requests", type=int, default=64, help="at the same time")
    parser.add_argument("--tokens", type=int, default=24, help="of each text")
    parser.add_argument("--rounds", type=int, default=2, help="of one marked and one unmarked batch")
    parser.add_argument("--verdicts", type=int, default=0, help="score so many marked and unmarked texts")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path, help="append the result to this file, one JSON line a run")
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
    llm.llm_engine.engine_core.shutdown()  # left to the garbage collector it was seen to wait for ever


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
    """Prompts, texts and seconds of one batch of requests, marked where asked for."""
    from vllm import SamplingParams

    prompts = openings(len(marked))
    params = [
        SamplingParams(max_tokens=tokens, ignore_eos=True, seed=first + i, extra_args={"dewmark": bool(on)})
        for i, on in enumerate(marked)
    ]
    begin = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return prompts, [output.outputs[0].text for output in outputs], time.perf_counter() - begin


def throughput(llm: Engine, given: argparse.Namespace) -> dict[str, object]:
    """Tokens per second of marked and unmarked batches that take turns, the first to begin alternating."""
    for on in (False, True):
        write(llm, [on] * given.requests, 4, 0)  # both ways are warm
    seconds: dict[bool, list[float]] = {True: [], False: []}
    busy: dict[bool, list[float]] = {True: [], False: []}
    for number in range(given.rounds):
        for on in (number % 2 == 1, number % 2 == 0):
            before = processor_seconds()
            seconds[on].append(write(llm, [on] * given.requests, given.tokens, number)[2])
            after = processor_seconds()
            busy[on].append(max(after[one] - before.get(one, 0.0) for one in after))
    rate = {on: given.requests * given.tokens / statistics.median(seconds[on]) for on in seconds}
    return {
        "marked_tokens_per_s": round(rate[True], 1),
        "unmarked_tokens_per_s": round(rate[False], 1),
        **ratios("ratio", seconds),
        **ratios("processor_ratio", busy),
    }


def ratios(name: str, seconds: dict[bool, list[float]]) -> dict[str, object]:
    """Speed with the mark over speed without it: the median over rounds, and each of them."""
    found = [plain / mark for mark, plain in zip(seconds[True], seconds[False], strict=True)]
    return {name: round(statistics.median(found), 3), f"{name}_by_round": [round(one, 3) for one in found]}


def processor_seconds() -> dict[int, float]:
    """Seconds of a processor that this process and each one it started has used, from /proc."""
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
    """How many marked and unmarked texts of one mixed batch have p < 0.001."""
    marked = [i % 2 == 0 for i in range(2 * given.verdicts)]
    prompts, texts, seconds = write(llm, marked, given.tokens, given.first_seed)
    bound = dewmark.load_scheme(given.scheme, key=dewmark.Key.load(key_file), host=given.host, **settings)
    found = bound.detect_batch(texts, prompts=prompts, fpr=0.001)
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
