"""What a detector holds in memory: a token detector in a host's shape, opened by processes of its own.

    python benchmarks/memory.py                    # Llama-3.2-3B with MPNet: 128,256 x 3,072 and 768

The tables are random, in the shape asked for, and lie in a temporary folder (about 1 GB for the default).
Each process opens the detector, scores texts of 200 tokens in one batch and then one by one, and reads its
own memory from the kernel: ``Rss`` is all that is resident, ``VmHWM`` the most that ever was,
``Private_Dirty`` what is this process's alone, ``Pss`` the sum in which shared pages are divided by the
processes that share them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import dewmark

FIELDS = ("Rss", "VmHWM", "Pss", "Private_Dirty", "Shared_Clean")


def main() -> None:
    """Run the benchmark."""
    args = _arguments()
    if args.open:
        _measure(Path(args.open), args.texts, args.wait)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        make_detector(
            Path(folder) / "detector",
            vocab=args.vocab,
            token_dim=args.token_dim,
            context_dim=args.context_dim,
        )
        files = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        print(f"the detector's files: {files / 1e6:.0f} MB")
        command = [sys.executable, __file__, "--open", f"{folder}/detector", "--texts", str(args.texts)]
        others = [
            subprocess.Popen([*command, "--wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(args.processes - 1)
        ]
        for other in others:
            other.stdout.readline()  # it has scored its texts, and stays
        print(f"one of {args.processes} processes with the same detector open, MB:")
        subprocess.run(command, check=True)
        for other in others:
            other.communicate(b"\n")


def make_detector(folder: Path, *, vocab: int, token_dim: int, context_dim: int) -> None:
    """Export a detector of the token units of DEW, composed contexts, with random tables."""
    from dewmark.core.projections import projection_dim
    from dewmark.dew.projection import Fold
    from dewmark.dew.reading import Public, TokenReader
    from dewmark.dew.scheme import DEW, BoundDEW
    from dewmark.encoders.contexts import ComposedContexts
    from dewmark.hosts.fake import tiny_tokenizer
    from dewmark.hosts.transformers.tokenizer import HFTokenizer
    from dewmark.workspace import no_host

    tokenizer = HFTokenizer(tiny_tokenizer(vocab, kind="bytes"))
    host = dataclasses.replace(no_host(), name="random", vocab_size=vocab, tokenizer=tokenizer)
    random = np.random.default_rng(0)

    def table(dim: int) -> np.ndarray:
        # what the numbers are does not matter here: a few thousand rows over and over
        some = random.standard_normal((4096, dim), dtype=np.float32) / dim**0.5
        return np.resize(some.astype(np.float16), (vocab, dim))

    n = projection_dim(token_dim, context_dim, kind="gaussian", n=None)
    scheme = DEW(units="token")
    reader = TokenReader(host, table(token_dim), ComposedContexts(table(context_dim)), k=scheme.k)
    public = Public(scheme, host, reader, d_T=token_dim, d_C=context_dim, n=n)
    product = random.standard_normal((token_dim, context_dim), dtype=np.float32) * n**0.5
    G = n * np.eye(context_dim, dtype=np.float32)
    fold = Fold(product, None, G, n, norms=np.full(vocab, n**0.5, dtype=np.float32))
    dewmark.Detector(BoundDEW(public, "0" * 12, fold=fold)).save(folder)


def _measure(folder: Path, texts: int, wait: bool) -> None:
    stages = {"python and dewmark": _resident()}
    detector = dewmark.Detector.load(folder).scheme
    stages["detector open"] = _resident()
    random = np.random.default_rng(1)
    words = detector.host.vocab_size - 300  # the first ids are bytes
    ids = 300 + random.zipf(1.2, size=(texts, 200)) % words  # as frequent as Zipf says
    cut = detector.host.tokenizer.decode(ids.tolist())
    detector.detect(cut[0])
    stages["one text scored"] = _resident()
    detector.detect_batch(cut)
    stages[f"{texts} texts in one batch"] = _resident()
    for text in cut:
        detector.detect(text)
    stages[f"{texts} texts one by one"] = _resident()
    if not wait:
        for stage, row in stages.items():
            print(f"  {stage:28}", "  ".join(f"{name} {row[name]:7.1f}" for name in FIELDS))
    else:
        print(json.dumps(stages), flush=True)
        sys.stdin.readline()


def _resident() -> dict[str, float]:
    """This process's memory in MB, as the kernel counts it."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    lines += [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    pairs = (line.split(":") for line in lines)
    return {name: int(value.split()[0]) / 1024 for name, value in pairs}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab", type=int, default=128_256)
    parser.add_argument("--token-dim", type=int, default=3_072)
    parser.add_argument("--context-dim", type=int, default=768)
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", help="where the files are written for the time being")
    parser.add_argument("--open", help=argparse.SUPPRESS)
    parser.add_argument("--wait", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
