"""How often a marked text is found, and an unmarked one accused, on real models.

    python benchmarks/detectability.py --texts 200 --keys 3 --out results/

For every context kind and key: ``--texts`` openings are continued with DEW under the key, and once without a
mark; all are scored by the key test, completion only, without the prompt. The report (JSON and a table) gives
the share with p < 0.01, mean z, effective length, and the median perplexity under the host itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from importlib import resources
from pathlib import Path

import numpy as np

import dewmark
from dewmark.hosts.base import Host
from dewmark.storage import append_jsonl
from dewmark.types import Detection, Generation


def main() -> None:
    """Run the benchmark."""
    args = _arguments()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    host = dewmark.load_host(args.host, device=args.device, dtype=args.dtype)
    prompts = _openings(args.texts)
    length = {"max_new_tokens": args.tokens, "min_new_tokens": args.tokens}
    sampling = {**length, "no_repeat_ngram": 4, "batch_size": args.batch_size}
    seeds = list(range(len(prompts)))

    started = time.perf_counter()
    unmarked = host.generate(prompts, scheme=None, seeds=seeds, **sampling)
    print(f"unmarked: {time.perf_counter() - started:.1f} s")
    _save(out, "unmarked", unmarked)
    report = [{"texts": "unmarked", "median_perplexity": _perplexity(host, unmarked)}]
    for context in args.contexts:
        for number in range(args.keys):
            key = dewmark.Key(hashlib.sha256(f"detectability-{number}".encode()).digest())
            scheme = dewmark.load_scheme("dew", key=key, host=host.info, context=context, **dict(args.set))
            started = time.perf_counter()
            marked = host.generate(prompts, scheme=scheme, seeds=seeds, **sampling)
            seconds = time.perf_counter() - started
            _save(out, f"{context}-{number}", marked)
            row = {
                "texts": "marked",
                "context": context,
                "key": key.fingerprint,
                "seconds": round(seconds, 1),
            }
            row |= _summary(scheme.detect_batch([g.text for g in marked]))
            row["median_perplexity"] = _perplexity(host, marked)
            null = _summary(scheme.detect_batch([g.text for g in unmarked if g.text.strip()]))
            row["unmarked_share"], row["unmarked_mean_z"] = null["share"], null["mean_z"]
            report.append(row)
            print(json.dumps(row))
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"unmarked median perplexity {report[0]['median_perplexity']}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--contexts", nargs="+", default=["composed", "window"])
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--set", nargs="*", default=[], type=lambda text: tuple(text.split("=", 1)))
    parser.add_argument("--out", required=True)
    return parser.parse_args()


def _openings(count: int) -> list[str]:
    """The first ``count`` openings of the package, over and over if there are fewer."""
    lines = (resources.files("dewmark") / "data" / "openings.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    return (prompts * math.ceil(count / len(prompts)))[:count]


def _save(out: Path, name: str, texts: list[Generation]) -> None:
    path = out / f"{name}.jsonl"
    path.unlink(missing_ok=True)
    append_jsonl(path, [{"prompt": g.prompt, "text": g.text, "tokens": g.tokens} for g in texts])


def _summary(detections: list[Detection]) -> dict[str, float]:
    return {
        "count": len(detections),
        "share": float(np.mean([d.p_value < 0.01 for d in detections])),
        "mean_z": round(float(np.mean([d.z for d in detections])), 3),
        "effective_share": round(
            float(np.mean([d.effective_length / max(d.tokens_scored, 1) for d in detections])), 3
        ),
    }


def _perplexity(host: Host, texts: list[Generation]) -> float:
    kept = [g for g in texts if g.text.strip()]
    pairs = host.log_likelihood([g.prompt for g in kept], [g.text for g in kept])
    return round(float(np.median([math.exp(-total / count) for total, count in pairs])), 2)


if __name__ == "__main__":
    main()
