"""Run a command undisturbed, then again in one process after another that each die in the middle of a write.

    python dying_run.py N,N,… WHOLE KILLED COMMAND…

The undisturbed run writes to the folder WHOLE, which also loads every module for the processes that are
forked afterwards. They write to KILLED: process i dies by SIGKILL when it has written half of its N_i-th
batch, and a last process finishes the command.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def main() -> int:
    import torch

    from dewmark import storage
    from dewmark.cli.app import main as command

    torch.set_num_threads(1)
    deaths, whole, killed = [int(number) for number in sys.argv[1].split(",")], sys.argv[2], sys.argv[3]
    if code := command([*sys.argv[4:], "--out", whole]):
        return code
    append = storage.append_jsonl

    def append_and_die(path: Path, rows: list[dict[str, object]], **options: bool) -> None:
        before = path.stat().st_size if path.exists() else 0
        append(path, rows, **options)
        left[0] -= 1
        if left[0] == 0:
            os.truncate(path, (before + path.stat().st_size) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    for death in (*deaths, None):
        left = [death or -1]
        child = os.fork()
        if child == 0:
            storage.append_jsonl = append_and_die
            os._exit(command([*sys.argv[4:], "--out", killed]))
        _, status = os.waitpid(child, 0)
        if (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL) != (death is not None):
            return 3
    return os.WEXITSTATUS(status)


if __name__ == "__main__":
    sys.exit(main())
