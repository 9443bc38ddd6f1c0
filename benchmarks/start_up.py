"""How soon a command answers when everything is cached (docs/bench.md, "Starting a process").

    python benchmarks/start_up.py                  # seven runs of each command, in turn

``dewmark generate`` runs on a pseudo-terminal, where text appears as it is written; its clock stops at the
first character after the prompt; the other clocks stop when the process ends. The CPU time is that of the
whole process, user and system. A first run of each is not counted. Linux and macOS only.
"""

from __future__ import annotations

import os
import pty
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from script_inputs import named_key, script_parser

PROMPT = "The old bridge over the river"
TEXT = "The old bridge over the river was built long ago by people who had never seen the sea. " * 12
CODES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")  # a terminal's colours and movements


def main() -> None:
    """Run the benchmark."""
    parser = script_parser(__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--host", default="smollm2-135m")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        key, text = Path(name) / "a.key", Path(name) / "a.txt"
        named_key("start-up").save(key)
        text.write_text(TEXT, encoding="utf-8")
        write = [
            "generate",
            "--key",
            str(key),
            "--host",
            args.host,
            "--prompt",
            PROMPT,
            "--max-new-tokens",
            "1",
        ]
        commands = {
            "--help": ["--help"],
            "detect": ["detect", "--key", str(key), str(text)],
            "generate": write,
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for run in range(args.runs + 1):
            for name, command in commands.items():
                measured = measure(command, first_word=name == "generate")
                if run:  # the first fills the caches
                    times[name].append(measured)
    for name, rows in times.items():
        waits, cpu = zip(*rows, strict=True)
        low, middle, high = statistics.quantiles(waits, n=4, method="inclusive")
        print(f"{name:9} {middle:5.2f} s ({low:.2f} to {high:.2f}), CPU {statistics.median(cpu):.2f} s")


def measure(command: list[str], *, first_word: bool) -> tuple[float, float]:
    """Seconds until the answer, and the CPU seconds of the whole process."""
    arguments = [sys.executable, "-m", "dewmark", *command]
    before, started = os.times(), time.perf_counter()
    if first_word:
        waited = wait_for_text(arguments) - started
    else:
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        waited = time.perf_counter() - started
    after = os.times()
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return waited, used


def wait_for_text(arguments: list[str]) -> float:
    """When the first character after the prompt appeared on the command's terminal."""
    process, terminal = pty.fork()
    if process == 0:
        os.execv(arguments[0], arguments)
    seen, appeared = b"", None
    while True:
        try:
            seen += os.read(terminal, 1 << 16)
        except OSError:  # the terminal is closed: the command has ended
            break
        _, prompt, after = CODES.sub(b"", seen).rpartition(PROMPT.encode())
        if appeared is None and prompt and after.strip():
            appeared = time.perf_counter()
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    if status or appeared is None:
        sys.exit(f"the command failed: {seen.decode(errors='replace')}")
    return appeared


if __name__ == "__main__":
    main()
