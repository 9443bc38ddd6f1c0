"""The memory of a detector that several processes share (docs/bench.md, "Memory").

    python benchmarks/memory.py                    # Llama-3.2-3B with MPNet: 128,256 x 3,072 and 768

Saves a token detector of DEW with random tables of the given shape in a temporary folder (1 GB by default).
Each process opens it, scores texts of 200 tokens in one batch and then one by one, and reads its own memory
from the kernel: ``Rss`` is resident, ``VmHWM`` the peak so far, ``Private_Dirty`` private to the process, and
``Pss`` divides shared pages by the number of processes that share them. Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from script_inputs import named_key, script_parser

from dewmark.detector import Detector
from dewmark.registry import SCHEMES
from dewmark.workspace import HostInfo, Workspace

FIELDS = ("Rss", "VmHWM", "Pss", "Private_Dirty", "Shared_Clean")


def main() -> None:
    """Run the benchmark."""
    args = _arguments()
    if args.open:
        measure(Path(args.open), args.texts, wait=args.wait)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name) / "detector"
        save_detector(folder, args)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        print(f"the detector's files: {size / 1e6:.0f} MB")
        command = [sys.executable, __file__, "--open", str(folder), "--texts", str(args.texts)]
        others = [
            subprocess.Popen([*command, "--wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(args.processes - 1)
        ]
        for other in others:
            other.stdout.readline()  # it has scored its texts and stays open
        print(f"one of {args.processes} processes with the same detector open, MB:", flush=True)
        subprocess.run(command, check=True)
        for other in others:
            other.communicate(b"\n")


def save_detector(folder: Path, args: argparse.Namespace) -> None:
    """Save a detector of DEW's token units with composed contexts, for an imaginary host."""
    from dewmark.hosts.fake import tiny_tokenizer
    from dewmark.hosts.transformers.tokenizer import HFTokenizer

    random = np.random.default_rng(0)
    host = HostInfo(
        "random",
        identity="random",
        vocab_size=args.vocab,
        tokenizer=HFTokenizer(tiny_tokenizer(args.vocab, kind="bytes")),
        embeddings=lambda: random.standard_normal((args.vocab, args.token_dim), dtype=np.float32),
    )
    settings = {"units": "token", "sampler": "bias", "encoder": f"random:{args.context_dim}"}
    scheme = SCHEMES["dew"]().with_settings({**settings, "whiten_tokens": False, "whiten_contexts": False})
    with tempfile.TemporaryDirectory(dir=args.folder) as cache:
        bound = scheme.bind(named_key("memory"), host, Workspace(cache=Path(cache)))
        Detector(bound).save(folder)


def measure(folder: Path, texts: int, *, wait: bool) -> None:
    """Open the detector, score texts and print this process's memory after each stage."""
    stages = {"Python and dewmark": _memory()}
    detector = Detector.load(folder)
    stages["detector open"] = _memory()
    host = detector.scheme.host
    # ids with Zipf's frequencies; the first ones are single bytes
    ids = 300 + np.random.default_rng(1).zipf(1.2, size=(texts, 200)) % (host.vocab_size - 300)
    written = host.tokenizer.decode(ids.tolist())
    detector.detect(written[0])
    stages["one text scored"] = _memory()
    detector.detect_batch(written)
    stages[f"{texts} texts in one batch"] = _memory()
    for text in written:
        detector.detect(text)
    stages[f"{texts} texts one by one"] = _memory()
    if wait:
        print(json.dumps(stages), flush=True)
        sys.stdin.readline()
        return
    for stage, row in stages.items():
        print(f"  {stage:28}", "  ".join(f"{name} {row[name]:7.1f}" for name in FIELDS))


def _memory() -> dict[str, float]:
    """This process's memory in MB, from the kernel."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    lines += [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    pairs = (line.split(":") for line in lines)
    return {name: int(value.split()[0]) / 1024 for name, value in pairs}


def _arguments() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--vocab", type=int, default=128_256)
    parser.add_argument("--token-dim", type=int, default=3_072)
    parser.add_argument("--context-dim", type=int, default=768)
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", help="where the temporary files are written")
    parser.add_argument("--open", help=argparse.SUPPRESS)
    parser.add_argument("--wait", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
