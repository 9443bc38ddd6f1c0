"""DEW configurations compared by detectability and quality (docs/statistics.md, docs/results/beyond.md).

    python benchmarks/detectability.py --out results/ --config raw: whiten_contexts=false --config white:

For every configuration (``--config NAME: SETTING=VALUE …``) and key, the host continues the package's
openings under the key, and once without a mark. The key test scores the completions alone. The report (JSON
and a table) gives the share with p < 0.01 and p < 1e-4 and the mean z; the same after words were deleted and
for the first 50 tokens; the share of unmarked completions with p < 0.01 after the same treatment; median
perplexity under the host and distinct n-grams. An interrupted run resumes with the missing configurations.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from script_inputs import named_key, parse_with_configs, quality, script_parser

import dewmark
from dewmark.decoding import Decoding
from dewmark.hosts.base import Host
from dewmark.lab.bench.workloads import prompts
from dewmark.scheme import BoundScheme
from dewmark.storage import append_jsonl
from dewmark.workspace import Tokenizer

Texts = list[str]
Attack = Callable[[Sequence[str], Tokenizer], Texts]


def main() -> None:
    """Run the benchmark."""
    args = _arguments()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    host = dewmark.load_host(args.host, device=args.device, dtype=args.dtype)
    openings = prompts(args.texts)
    sampling = {
        "decoding": Decoding(max_new_tokens=args.tokens, min_new_tokens=args.tokens, no_repeat_ngram=4),
        "batch_size": args.batch_size,
    }
    unmarked = _written(out / "unmarked", host, openings, None, sampling)
    _report(out / "unmarked", {"config": "unmarked", **quality(host, openings, unmarked)})
    for name, settings in args.config:
        for number in range(args.keys):
            path = out / f"{name}-{number}"
            if path.with_suffix(".json").exists():
                continue
            key = named_key(f"detectability-{number}")
            scheme = dewmark.load_scheme("dew", key=key, host=host.info, **settings)
            started = time.perf_counter()
            marked = _written(path, host, openings, scheme, sampling)
            row: dict[str, Any] = {"config": name, "key": number, "seconds": time.perf_counter() - started}
            row |= {"settings": {k: str(v) for k, v in settings.items()}, **quality(host, openings, marked)}
            for attack, change in ATTACKS.items():
                row[attack] = shares(scheme, change(marked, host.info.tokenizer)) | {
                    "unmarked": shares(scheme, change(unmarked, host.info.tokenizer))["p<0.01"]
                }
            _report(path, row)
    _table(out)


def shares(scheme: BoundScheme, texts: Sequence[str]) -> dict[str, float]:
    """The share of texts found, and their mean z."""
    found = scheme.detect_batch([text if text.strip() else "." for text in texts])
    p, z = np.array([d.p_value for d in found]), np.array([d.z for d in found])
    return {"p<0.01": float(np.mean(p < 0.01)), "p<1e-4": float(np.mean(p < 1e-4)), "z": float(z.mean())}


def _delete(share: float) -> Attack:
    def change(texts: Sequence[str], _: Tokenizer) -> Texts:
        rng = np.random.default_rng(0)
        return [" ".join(word for word in text.split(" ") if rng.random() >= share) for text in texts]

    return change


def _first_50(texts: Sequence[str], tokenizer: Tokenizer) -> Texts:
    return [cut.text[: cut.offsets[:50][-1][1]] for cut in tokenizer.encode(texts)]


ATTACKS: dict[str, Attack] = {
    "clean": lambda texts, _: list(texts),
    "delete_10": _delete(0.1),
    "delete_30": _delete(0.3),
    "delete_50": _delete(0.5),
    "first_50": _first_50,
}


def _written(
    path: Path, host: Host, openings: Texts, scheme: BoundScheme | None, sampling: dict[str, Any]
) -> Texts:
    """Completions from the file, or written now and saved."""
    file = path.with_suffix(".jsonl")
    if file.exists():
        return [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines()]
    made = host.generate(openings, scheme=scheme, seeds=range(len(openings)), **sampling)
    append_jsonl(file, [{"prompt": g.prompt, "text": g.text, "tokens": g.tokens} for g in made])
    return [g.text for g in made]


def _report(path: Path, row: dict[str, Any]) -> None:
    path.with_suffix(".json").write_text(json.dumps(row) + "\n", encoding="utf-8")
    print(json.dumps(row), flush=True)


def _table(out: Path) -> None:
    """Print the mean over keys of every configuration."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*.json"))]
    plain = next(row for row in rows if row["config"] == "unmarked")
    print("| config | perplexity | distinct-2/-3 | z |", " | ".join(ATTACKS), "| p<1e-4 | unmarked p<0.01 |")
    print("| --- " * (6 + len(ATTACKS)) + "|")
    print(f"| unmarked | {plain['perplexity']:.1f} | {plain['distinct_2']:.3f} / {plain['distinct_3']:.3f} |")
    for name in dict.fromkeys(row["config"] for row in rows if row["config"] != "unmarked"):
        mine = [row for row in rows if row["config"] == name]

        def mean(*path: str, of: list[dict[str, Any]] = mine) -> float:
            values = of
            for step in path:
                values = [value[step] for value in values]
            return float(np.mean(values))

        found = " | ".join(f"{mean(attack, 'p<0.01'):.3f}" for attack in ATTACKS)
        wrong = "/".join(f"{mean(attack, 'unmarked'):.3f}" for attack in ATTACKS)
        print(
            f"| {name} | {mean('perplexity'):.1f} | {mean('distinct_2'):.3f} / {mean('distinct_3'):.3f} | "
            f"{mean('clean', 'z'):.2f} | {found} | {mean('clean', 'p<1e-4'):.3f} | {wrong} |"
        )


def _arguments() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", required=True)
    return parse_with_configs(parser)


if __name__ == "__main__":
    main()
