"""What every scheme costs, in one run: a marking step, real decoding, and detection of 200-token texts.

    python benchmarks/scheme_speed.py --out speed.json

- step: milliseconds of a session for one step, on random logits of the host's vocabulary, batch 1 and 32;
- decoding: time to write texts with the mark over the time without it, at the same batch sizes;
- detection: milliseconds per text of 200 tokens, one by one and in one batch.

All schemes are timed in turn, round after round, so that a busy machine disturbs them alike; each round has
texts and tokens of its own, so that nothing is remembered. The table shows minima and medians over rounds.
Where ``markllm`` is installed (`peers`), its versions of the schemes are timed in the same rounds, with the
same model and texts; its decoding is taken over its own decoding without a mark.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from common import openings
from configurations import CONFIGURATIONS, bind, chosen
from detection_speed import plain_texts
from peers import ABSENT, PEERS, Peer, generate, installed

import dewmark
from dewmark.hosts.transformers import TransformersHost
from dewmark.scheme import BoundScheme

Work = Callable[[int], float]  # does one round of some work, returns its seconds
Mark = Callable[[torch.Tensor, torch.Tensor], object]
NONE, PEER = "none", "markllm "


def main() -> None:
    """Run the benchmark."""
    args = _arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    host = dewmark.load_host(args.host, device=args.device, dtype=args.dtype)
    schemes = {name: bind(name, host) for name in chosen(args.schemes)}
    peers = {name: Peer(name, host) for name in schemes if name in PEERS} if installed() else {}
    report: dict[str, Any] = {name: {} for name in (NONE, *schemes)}
    for name in report.keys() & ABSENT.keys() if peers else ():
        report[name]["markllm"] = ABSENT[name]
    measures = {f"step, batch {n}": _steps(host, schemes, peers, n, args) for n in args.batches}
    if args.tokens:
        measures |= {f"decoding, batch {n}": _decoding(host, schemes, peers, n, args) for n in args.batches}
    measures |= _detection(host, schemes, peers, args)
    for measure, works in measures.items():
        _time(measure, works, report, args.repeats)
        if args.out:
            Path(args.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    _table(report, args.batches, peers=bool(peers))


def _time(measure: str, works: dict[str, Work], report: dict[str, Any], repeats: int) -> None:
    """Milliseconds of each row's work; for decoding its ratio to no mark (of minima, and in each round)."""
    rounds = []
    for number in range(repeats + 1):
        order = [*works][number % len(works) :] + [*works][: number % len(works)]  # nobody is always first
        rounds.append({row: works[row](number) for row in order})
        print(f"{measure}: round {number} of {repeats}", flush=True)
    rounds = rounds[1:]  # the first one builds tables and fills caches
    for row in works:
        peer, name = row.startswith(PEER), row.removeprefix(PEER)
        times = [1000.0 * each[row] for each in rounds]
        fastest, middle = min(times), statistics.median(times)
        if measure.startswith("decoding"):
            plain = [1000.0 * each[f"{PEER}{NONE}" if peer else NONE] for each in rounds]
            fastest /= min(plain)
            middle = statistics.median(a / b for a, b in zip(times, plain, strict=True))
        column = f"{PEER}{measure}" if peer else measure
        report[name][column] = {"min": round(fastest, 4), "median": round(middle, 4)}


def _steps(
    host: TransformersHost,
    schemes: dict[str, BoundScheme],
    peers: dict[str, Peer],
    batch: int,
    args: argparse.Namespace,
) -> dict[str, Work]:
    """Marking steps on random logits, while rows of 20 random tokens grow."""
    device, width, size = host.model.device, host.info.vocab_size, host.tokenizer.size
    logits = 3.0 * torch.randn(2, batch, width, generator=torch.Generator().manual_seed(0)).to(device)

    def run(start: Callable[[torch.Tensor], Mark], number: int) -> float:
        random = torch.Generator().manual_seed(number)
        ids = torch.randint(5, min(width, size), (batch, 20 + args.steps), generator=random).to(device)
        mark, seconds = start(ids[:, :20]), 0.0
        for step in range(args.steps):
            scores = logits[step % 2].clone()  # some processors work in place
            seconds += _seconds(host, lambda i=ids[:, : 20 + step], s=scores: mark(i, s))
        return seconds / args.steps

    works: dict[str, Work] = {
        name: functools.partial(run, lambda ids, b=bound: b.session(ids, seeds=range(batch)))
        for name, bound in schemes.items()
    }
    for name, peer in peers.items():
        if peer.batches or batch == 1:
            works[PEER + name] = functools.partial(run, lambda ids, e=peer: e.step())
    return works


def _decoding(
    host: TransformersHost,
    schemes: dict[str, BoundScheme],
    peers: dict[str, Peer],
    batch: int,
    args: argparse.Namespace,
) -> dict[str, Work]:
    """Texts of ``--tokens`` tokens, all prompts in one batch."""
    pool = openings(batch * (args.repeats + 1))

    def ours(bound: BoundScheme | None, number: int) -> float:
        prompts = pool[batch * number : batch * (number + 1)]
        length = {"max_new_tokens": args.tokens, "min_new_tokens": args.tokens, "batch_size": batch}
        return _seconds(host, lambda: host.generate(prompts, scheme=bound, seeds=range(batch), **length))

    def theirs(write: Callable[[list[str], int], object], number: int) -> float:
        prompts = pool[batch * number : batch * (number + 1)]
        return _seconds(host, lambda: write(prompts, args.tokens))

    works: dict[str, Work] = {name: functools.partial(ours, bound) for name, bound in schemes.items()}
    works[NONE] = functools.partial(ours, None)
    if peers:
        works[PEER + NONE] = functools.partial(theirs, functools.partial(generate, host))
    for name, peer in peers.items():
        if peer.batches or batch == 1:
            works[PEER + name] = functools.partial(theirs, peer.generate)
    return works


def _detection(
    host: TransformersHost,
    schemes: dict[str, BoundScheme],
    peers: dict[str, Peer],
    args: argparse.Namespace,
) -> dict[str, dict[str, Work]]:
    """Detection of ``--texts`` texts, per text."""
    pool = plain_texts(next(iter(schemes.values())), args.texts * 2 * (args.repeats + 1))

    def run(detect: Callable[[list[str]], object], number: int) -> float:
        texts = pool[args.texts * number : args.texts * (number + 1)]
        return _seconds(host, lambda: detect(texts)) / args.texts

    def in_turn(detect: Callable[[str], object], number: int) -> float:
        return run(lambda texts: [detect(text) for text in texts], number)

    # the second measure takes the other half of the texts
    batch: dict[str, Work] = {
        name: lambda number, b=bound: run(b.detect_batch, args.repeats + 1 + number)
        for name, bound in schemes.items()
    }
    single: dict[str, Work] = {name: functools.partial(in_turn, b.detect) for name, b in schemes.items()}
    single |= {PEER + name: functools.partial(in_turn, peer.detect) for name, peer in peers.items()}
    return {"detection, one by one": single, "detection, one batch": batch}


def _seconds(host: TransformersHost, work: Callable[[], object]) -> float:
    _wait(host)
    started = time.perf_counter()
    work()
    _wait(host)
    return time.perf_counter() - started


def _wait(host: TransformersHost) -> None:
    if host.model.device.type == "cuda":
        torch.cuda.synchronize()


def _table(report: dict[str, Any], batches: Sequence[int], *, peers: bool) -> None:
    """Ours, minimum (median); then theirs over ours, by the minima."""
    kinds = [f"{kind}, batch {batch}" for kind in ("step", "decoding") for batch in batches]
    measures = [*kinds, "detection, one by one", "detection, one batch"]
    print("\n| scheme |", " | ".join(measures), "|")
    print("| --- " * (1 + len(measures)) + "|")
    for name, row in report.items():
        print(f"| {name} |", " | ".join(_cell(measure, row) for measure in measures), "|")
    if not peers:
        return
    measures.pop()  # markllm has no detection in batches
    print("\n| markllm / ours |", " | ".join(measures), "|")
    print("| --- " * (1 + len(measures)) + "|")
    for name, row in report.items():
        if name in PEERS:
            print(f"| {name} |", " | ".join(_against(measure, row) for measure in measures), "|")
    for name in report.keys() & ABSENT.keys():
        print(f"not compared: {name}, {ABSENT[name]}")


def _cell(measure: str, row: dict[str, Any]) -> str:
    if measure not in row:
        return "–"
    unit = "x" if measure.startswith("decoding") else " ms"
    return f"{row[measure]['min']:.3g}{unit} ({row[measure]['median']:.3g})"


def _against(measure: str, row: dict[str, Any]) -> str:
    ours, theirs = row.get(measure), row.get(PEER + measure)
    if ours is None or theirs is None:
        return "–"
    return f"{theirs['min']:.3g} / {ours['min']:.3g} = {theirs['min'] / ours['min']:.2g}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="smollm2-135m")
    parser.add_argument("--schemes", nargs="*", metavar="NAME", help=", ".join(CONFIGURATIONS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32], choices=range(1, 33), metavar="N")
    parser.add_argument("--steps", type=int, default=20, help="marking steps in one round")
    parser.add_argument("--tokens", type=int, default=32, help="written in one round of decoding; 0 skips it")
    parser.add_argument("--texts", type=int, default=8, help="texts detected in one round")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0 leaves its default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out")
    return parser.parse_args()


if __name__ == "__main__":
    main()
