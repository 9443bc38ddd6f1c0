"""Throughput of `dewmark detect` with local workers and with Ray, one worker killed (docs/scale.md).

    python benchmarks/ray_scoring.py --texts 100000 --from FILE.jsonl

Texts are ``--words`` (20 to 30) adjacent words of a row of FILE (``prompt``, ``text``, ``response``), by
default of the package's own texts. All runs use one saved detector of the default scheme, after a first pass
over every word has filled the cache of word vectors. The script checks that every text is scored exactly once
and prints how far the results of the runs differ. Rates are for the whole command, including loading and
cluster start, and from the first finished block to the last.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from script_inputs import script_parser

import dewmark
from dewmark.encoders.word_vectors import register_texts

COMMAND = [sys.executable, "-c", "import sys; from dewmark.cli.app import main; sys.exit(main())", "detect"]
RUNS = {
    "local, 1 worker": (["--workers", "1"], False),
    "local, 2 workers": (["--workers", "2"], False),
    "ray, 2 workers": (["--engine", "ray", "--workers", "2"], False),
    "ray, 2 workers, one killed": (["--engine", "ray", "--workers", "2"], True),
}


def main() -> None:
    """Run the benchmark."""
    parser = script_parser(__doc__)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--words", type=int, nargs=2, default=[20, 30], metavar=("LEAST", "MOST"))
    parser.add_argument("--block-size", type=int, default=1024)
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=list(RUNS))
    args = parser.parse_args()
    documents = _documents(args.source, least=args.words[1])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scheme = dewmark.load_scheme("dew", key=dewmark.Key.generate())
        dewmark.Detector(scheme).save(folder / "detector")
        started = time.perf_counter()
        scheme.detect_batch([" ".join(document) for document in documents])
        print(f"every word once: {time.perf_counter() - started:.1f} s", flush=True)
        _write(folder / "in.parquet", documents, args.texts, words=args.words)
        del scheme
        first: list[dict[str, Any]] | None = None
        for run in args.runs:
            options, kill = RUNS[run]
            rows = _run(run, folder, [*options, "--block-size", str(args.block_size)], args.texts, kill=kill)
            ids = [row["id"] for row in rows]
            assert ids == list(range(args.texts)), "some text was not scored exactly once"
            first = first or rows
            pairs = list(zip(first, rows, strict=True))
            other = sum(one["z"] != two["z"] for one, two in pairs)
            far = max(abs(one["z"] - two["z"]) for one, two in pairs)
            turned = sum(one["verdict"] != two["verdict"] for one, two in pairs)
            print(
                f"{'':28}compared with the first run, {other} z differ, by at most {far:.1g}, "
                f"and {turned} verdicts",
                flush=True,
            )


def _documents(source: Path | None, *, least: int) -> list[list[str]]:
    """Texts of at least so many words; of the package's own, the short ones are joined."""
    if source is None:
        found: list[list[str]] = [[]]
        for text in register_texts():
            found[-1] += text.split()
            if len(found[-1]) >= least:
                found.append([])
        return found[:-1]
    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    fields = ("prompt", "text", "response")
    texts = (" ".join(str(row.get(field) or "") for field in fields).split() for row in rows)
    return [words for words in texts if len(words) >= least]


def _write(path: Path, documents: list[list[str]], count: int, *, words: list[int]) -> None:
    import pyarrow
    import pyarrow.parquet

    draw = random.Random(1)
    rows = []
    for i in range(count):
        document, length = draw.choice(documents), draw.randint(*words)
        start = draw.randint(0, len(document) - length)
        rows.append({"id": i, "text": " ".join(document[start : start + length])})
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=20_000)


def _blocks(partial: Path) -> int:
    """How many blocks are finished: the lines after the first."""
    try:
        return max(partial.read_bytes().count(b"\n") - 1, 0)
    except FileNotFoundError:
        return 0


def _run(name: str, folder: Path, options: list[str], count: int, *, kill: bool) -> list[dict[str, Any]]:
    out = folder / f"{name.replace(' ', '-')}.parquet"
    partial = out.with_name(f"{out.name}.partial")
    where = ["--detector", str(folder / "detector"), "--in", str(folder / "in.parquet"), "--out", str(out)]
    started, done, begun, ended, peak = time.perf_counter(), 0, 0.0, 0.0, 0
    at_first, cpu = 0, dict[int, float]()
    with subprocess.Popen([*COMMAND, *where, *options, "--json", "-q"], stdout=subprocess.PIPE) as command:
        while command.poll() is None:
            time.sleep(0.2)
            now, found = time.perf_counter() - started, _blocks(partial)
            if found and not begun:
                begun, at_first = now, found
            if found > done:
                done, ended = found, now
            family = _family(command.pid)
            peak = max(peak, sum(map(_memory, family)))
            cpu |= {one: _cpu_seconds(one) or cpu.get(one, 0.0) for one in family}
            if kill and done >= count // 2048:
                worker = next(one for one in family if b"ray::" in _title(one) and b"Map" in _title(one))
                os.kill(worker, signal.SIGKILL)
                kill = False
        summary = json.loads(command.stdout.read() if command.stdout else b"")
    seconds = time.perf_counter() - started
    assert not kill, "the run ended before a worker could be killed: use more texts"
    block = count / max(done, 1)
    steady = (done - at_first) * block / max(ended - begun, 1e-9)
    print(
        f"{name:28}{seconds:6.1f} s, {count / seconds:6.0f} texts/s; scoring {steady:6.0f} texts/s; first "
        f"block after {begun:4.1f} s; CPU {sum(cpu.values()):.0f} s; {peak / 2**30:.2f} GiB; "
        f"{summary['blocks_retried']} blocks retried",
        flush=True,
    )
    import pyarrow.parquet

    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(out).to_pylist()
    return rows


def _family(process: int) -> list[int]:
    """A process and all its descendants, from /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [process]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def _title(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def _cpu_seconds(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(process: int) -> int:
    """Private bytes of a process, without memory-mapped tables and libraries."""
    try:
        fields = Path(f"/proc/{process}/statm").read_text().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGESIZE")


if __name__ == "__main__":
    main()
