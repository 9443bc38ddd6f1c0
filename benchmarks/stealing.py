"""Watermark stealing on real models: who can be forged or scrubbed, and from how many texts.

    python benchmarks/stealing.py --out results/ --human en.jsonl:300:500 --device cuda --jobs 8

Every victim (a configuration of `dewmark.lab.bench`) continues the package's openings; the attacker gets
those
texts, as many unmarked ones of the same host, and openings of its own. By counts it forges and scrubs every
victim; by embeddings it forges DEW from 50, 100, 200 … texts and scrubs it. The victim's own detector judges
at p < 0.01 and at the threshold that 1% of the human texts exceed. Cells run in ``--jobs`` processes, each
with a host of its own; a run that was stopped goes on where it was: what is done is read from ``--out``.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from common import openings, read_texts

import dewmark
from dewmark.attacks.stealing.forging import fixed_length, generate_texts
from dewmark.attacks.stealing.judging import Judge
from dewmark.attacks.stealing.steal import SIZES, StealSettings, forgery_curve, steal
from dewmark.hosts.base import Host
from dewmark.lab.bench.configurations import bind
from dewmark.scheme import BoundScheme
from dewmark.storage import atomic_write

VICTIMS = (
    "dew",
    "dew-paper",
    "dew-gumbel",
    "dew-bias",
    "dew-bias:whiten_contexts=false",
    "synthid",
    "kgw",
    "kgw:prefix=1",
    "unigram",
)
BASE = "base"
FORGED_OPENINGS = 100  # the last ones, which no victim continues
CHUNK = 250
SLOW = {"dew-paper": 0.5}  # it runs its encoder on every window: a smaller share of the texts


def main() -> None:
    """Run the benchmark."""
    args = _arguments()
    Path(args.out).mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // args.jobs)))
    started = time.perf_counter()
    corpora = [
        (name, start) for name in (BASE, *args.victims) for start in range(0, _size(name, args), CHUNK)
    ]
    cells = [(name, kind) for kind in CELLS for name in args.victims if kind in _kinds(name)]
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for _ in pool.map(functools.partial(_write, args), corpora):
            pass
        print(f"corpora: {time.perf_counter() - started:.0f} s", flush=True)
        rows = list(pool.map(functools.partial(_cell, args), cells))
    print(f"all: {time.perf_counter() - started:.0f} s\n", flush=True)
    _tables(args.victims, dict(zip(cells, rows, strict=True)))


@functools.cache
def _host(name: str, device: str, dtype: str) -> Host:
    return dewmark.load_host(name, device=device, dtype=dtype)


@functools.cache
def _victim(name: str, host: Host) -> BoundScheme | None:
    return None if name == BASE else bind(name, host)


def _size(name: str, args: argparse.Namespace) -> int:
    return int(args.texts * SLOW.get(name, 1.0))


def _write(args: argparse.Namespace, task: tuple[str, int]) -> list[str]:
    """One chunk of a corpus, written or read from its file."""
    name, start = task
    host = _host(args.host, args.device, args.dtype)
    end = min(start + CHUNK, _size(name, args))
    prompts = _openings(first=True)
    first = 10_000_000 if name == BASE else 0
    made = generate_texts(
        host,
        _victim(name, host),
        [prompts[i % len(prompts)] for i in range(start, end)],
        seeds=range(first + start, first + end),
        decoding=fixed_length(args.tokens),
        batch_size=CHUNK,
        resume_dir=Path(args.out) / "corpora",
    )
    return [row.text for row in made]


def _corpus(args: argparse.Namespace, name: str) -> list[str]:
    return [text for start in range(0, _size(name, args), CHUNK) for text in _write(args, (name, start))]


def _openings(*, first: bool) -> list[str]:
    """The victims' openings, or the attacker's."""
    known = list(dict.fromkeys(openings(10_000)))
    return known[:-FORGED_OPENINGS] if first else known[-FORGED_OPENINGS:]


CELLS = ("curve", "curve-host", "embedding-scrub", "counts-spoof", "counts-scrub")


def _kinds(name: str) -> tuple[str, ...]:
    """The attacks on a victim: those that know DEW for DEW, one that asks the host for its tokens only."""
    if not name.startswith("dew"):
        return CELLS[3:]
    return CELLS if name.startswith("dew-") else tuple(kind for kind in CELLS if kind != "curve-host")


def _cell(args: argparse.Namespace, task: tuple[str, str]) -> list[dict[str, Any]]:
    """One attack on one victim, from its file or made now."""
    name, kind = task
    asked = {
        "victim": name,
        "kind": kind,
        "version": dewmark.__version__,
        **{key: getattr(args, key) for key in ("host", "texts", "tokens", "forged", "strength", "human")},
    }
    path = Path(args.out) / "cells" / f"{name.replace(':', '-')}-{kind}.json"
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["asked"] == json.loads(json.dumps(asked)):
            return list(found["rows"])
    started = time.perf_counter()
    rows = _attack(args, name, kind)
    seconds = round(time.perf_counter() - started, 1)
    with atomic_write(path) as stream:
        stream.write(
            (json.dumps({"asked": asked, "seconds": seconds, "rows": rows}, indent=1) + "\n").encode()
        )
    print(f"{name} {kind}: {seconds:.0f} s", flush=True)
    return rows


def _attack(args: argparse.Namespace, name: str, kind: str) -> list[dict[str, Any]]:
    host = _host(args.host, args.device, args.dtype)
    victim = _victim(name, host)
    assert victim is not None
    marked, base = _corpus(args, name), _corpus(args, BASE)[: _size(name, args)]
    humans = read_texts(args.human, args.tokens)
    judge, keep = Judge.of(victim, humans), Path(args.out) / "written"
    method, _, mode = kind.partition("-")
    common = {"texts": args.forged, "tokens": args.tokens, "batch_size": args.forged}
    if method == "curve":
        expectation = "host" if mode == "host" else "base"
        settings = StealSettings(method="embedding", expectation=expectation, **common)
        sizes = [size for size in ((200,) if mode else SIZES) if size < len(marked)] + [len(marked)]
        points = forgery_curve(
            victim,
            host,
            marked,
            base,
            humans,
            prompts=_openings(first=False),
            settings=settings,
            sizes=sizes,
            judge=judge,
            resume_dir=keep,
        )
        return [point.to_dict() for point in points]
    strength = args.strength if method == "counts" else None
    settings = StealSettings(method=method, mode=mode, strength=strength, **common)
    prompts, targets = _openings(first=False), []
    if mode == "scrub":
        all_prompts = _openings(first=True)
        held = range(len(marked) - args.forged, len(marked))
        prompts = [all_prompts[i % len(all_prompts)] for i in held]
        marked, targets = marked[: held.start], marked[held.start :]
    result = steal(
        victim,
        host,
        marked,
        base,
        humans,
        settings=settings,
        prompts=prompts,
        targets=targets,
        judge=judge,
        resume_dir=keep,
    )
    return [result.to_dict()]


def _tables(victims: Sequence[str], rows: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    print("Forged by counts: share with p < 0.01 / above the threshold of 1% of the human texts")
    _line(["victim", "texts", "genuine", "human", "forged", "strength 0", "perplexity"], heading=True)
    for name in victims:
        (row,) = rows[name, "counts-spoof"]
        _line([name, row["observed"], *_shares(row)])
    print("\nForged by embeddings, from how many texts, less what was expected by base texts or by the host")
    _line(
        ["victim", "less", "texts", "correlation", "p < 0.01", "above human 1%", "mean z", "perplexity"],
        heading=True,
    )
    for name in victims:
        for kind, less in (("curve", "base texts"), ("curve-host", "host's candidates")):
            for point in rows.get((name, kind), ()):
                cells = [point[cell] for cell in ("cosine", "found", "above", "mean_z", "perplexity")]
                _line([name, less, point["texts"], *(f"{cell:.2f}" for cell in cells)])
    print("\nScrubbed: share with p < 0.01")
    _line(
        ["victim", "learned by", "genuine", "rewritten, strength 0", "scrubbed", "kept", "perplexity"],
        heading=True,
    )
    for name in victims:
        for method in ("counts", "embedding"):
            for row in rows.get((name, f"{method}-scrub"), ()):
                kept = f"{row['control_kept']:.2f} → {row['kept']:.2f}"
                perplexity = f"{row['control_perplexity']:.1f} → {row['perplexity']:.1f}"
                shares = [f"{row[kind]:.2f}" for kind in ("genuine_found", "control_found", "found")]
                _line([name, method, *shares, kept, perplexity])


def _shares(row: dict[str, Any]) -> list[str]:
    both = [f"{row[kind + 'found']:.2f} / {row[kind + 'above']:.2f}" for kind in ("genuine_", "", "control_")]
    perplexity = f"{row['control_perplexity']:.1f} → {row['perplexity']:.1f}"
    return [both[0], f"{row['human_found']:.3f}", both[1], both[2], perplexity]


def _line(cells: Sequence[object], *, heading: bool = False) -> None:
    print("|", " | ".join(map(str, cells)), "|")
    if heading:
        print("| --- " * len(cells) + "|")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--victims", nargs="*", default=list(VICTIMS), metavar="NAME")
    parser.add_argument("--texts", type=int, default=1000, help="marked texts per victim, and base texts")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--forged", type=int, default=100, help="texts that the attacker writes per cell")
    parser.add_argument("--strength", type=float, default=6.5, help="of the attack by counts")
    parser.add_argument("--human", required=True, metavar="FILE[:FIRST:LAST]")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    if args.forged >= min(_size(name, args) for name in args.victims):
        parser.error("--forged must be smaller than the number of marked texts")
    if not read_texts(args.human, args.tokens):
        parser.error(f"--human {args.human} holds no text of 30 words within {5 * args.tokens} characters")
    if args.forged > FORGED_OPENINGS:
        parser.error(f"--forged must not exceed {FORGED_OPENINGS}")
    return args


if __name__ == "__main__":
    main()
