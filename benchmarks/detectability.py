"""How often a marked text is found, at what quality, clean and after words were deleted, on real models.

    python benchmarks/detectability.py --out results/ --config raw: whiten_contexts=false --config white:

For every configuration (``--config NAME: SETTING=VALUE …``) and key, the package's openings are continued
under the key, and once without a mark. Everything is scored by the key test on the completion alone. The
report (JSON and a table) gives the share with p < 0.01 and p < 1e-4, the mean z, the same after deletion of
words and for the first 50 tokens, the share of unmarked completions with p < 0.01 after the same treatment,
and for quality the median perplexity under the host itself and distinct n-grams. A run that was stopped goes
on with the configurations that are missing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import openings, quality, with_configs

import dewmark
from dewmark.decoding import Decoding
from dewmark.hosts.base import Host
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
    prompts = openings(args.texts)
    sampling = {
        "decoding": Decoding(max_new_tokens=args.tokens, min_new_tokens=args.tokens, no_repeat_ngram=4),
        "batch_size": args.batch_size,
    }
    unmarked = _written(out / "unmarked", host, prompts, None, sampling)
    _report(out / "unmarked", {"config": "unmarked", **quality(host, prompts, unmarked)})
    for name, settings in args.config:
        for number in range(args.keys):
            path = out / f"{name}-{number}"
            if path.with_suffix(".json").exists():
                continue
            key = dewmark.Key(hashlib.sha256(f"detectability-{number}".encode()).digest())
            scheme = dewmark.load_scheme("dew", key=key, host=host.info, **settings)
            started = time.perf_counter()
            marked = _written(path, host, prompts, scheme, sampling)
            row: dict[str, Any] = {"config": name, "key": number, "seconds": time.perf_counter() - started}
            row |= {"settings": {k: str(v) for k, v in settings.items()}, **quality(host, prompts, marked)}
            for attack, change in ATTACKS.items():
                row[attack] = shares(scheme, change(marked, host.info.tokenizer)) | {
                    "unmarked": shares(scheme, change(unmarked, host.info.tokenizer))["p<0.01"]
                }
            _report(path, row)
    _table(out)


def shares(scheme: BoundScheme, texts: Sequence[str]) -> dict[str, float]:
    """How often a text is found, and how clearly."""
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
    path: Path, host: Host, prompts: Texts, scheme: BoundScheme | None, sampling: dict[str, Any]
) -> Texts:
    """Completions from the file, or written now and kept."""
    kept = path.with_suffix(".jsonl")
    if kept.exists():
        return [json.loads(line)["text"] for line in kept.read_text(encoding="utf-8").splitlines()]
    made = host.generate(prompts, scheme=scheme, seeds=list(range(len(prompts))), **sampling)
    append_jsonl(kept, [{"prompt": g.prompt, "text": g.text, "tokens": g.tokens} for g in made])
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", required=True)
    return with_configs(parser)


if __name__ == "__main__":
    main()
