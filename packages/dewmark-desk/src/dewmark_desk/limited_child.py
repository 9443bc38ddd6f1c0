"""A function in a process of its own, with limited processor time and memory and at low priority.

What a stranger sends may keep a parser busy for hours or make it take all memory; the worker that answers
everybody's requests must not be where that happens. `run` starts this module as a program, which limits
itself, calls one function with the bytes it is given, and writes what that returns.

Time is processor time: a machine that is busy with other work is no fault of the file. Boundary: it knows
nothing about what the functions do. It blocks: call it in a thread.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from importlib import import_module

from dewmark.errors import ConfigError, InputError

_NICENESS = 10  # requests go before what strangers have parsed
_REJECTED = 3  # exit code of a child that wrote a message for the user
_NO_MEMORY = 4
_KILLED = (-signal.SIGKILL, -signal.SIGABRT)  # how the system, and a library in C, ends one without memory
_POLL_SECONDS = 1.0

_log = logging.getLogger("dewmark_desk")
_running: set[subprocess.Popen[bytes]] = set()


class OutOfMemory(ChildProcessError):  # noqa: N818 - like TimeoutError, of the limits
    """A child needed more memory than it may have."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a child process may use."""

    seconds: float
    """Processor time."""
    memory: int
    """Bytes of its own."""
    patience: float = 60.0
    """Seconds for which it is waited, on a machine that is busy with other work."""
    writes: bool = False
    """Whether it may write files."""
    threads: int = 1
    """Of a numerical library; processor time counts in all of them, also while they wait for each other."""


def run(function: str, *arguments: str, data: bytes, bounds: Bounds) -> bytes:
    """What ``MODULE:FUNCTION`` makes of the data and the arguments; a list of processes shows the latter.

    Raises `InputError` with its own message, `TimeoutError` if its time is up, `OutOfMemory`, and
    `ChildProcessError` if it failed in another way, of which the log has the type.
    """
    limits = f"{bounds.seconds!r} {bounds.memory} {int(bounds.writes)}"
    command = [sys.executable, "-P", "-m", "dewmark_desk.limited_child", limits, function, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": str(bounds.threads)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as done:
        _running.add(done)
        try:
            made, errors = done.communicate(data, timeout=bounds.patience)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        finally:
            _running.remove(done)
            done.kill()
    if done.returncode == _REJECTED:
        raise InputError(made.decode().strip())
    if done.returncode == -signal.SIGPROF:
        raise TimeoutError
    if done.returncode in (_NO_MEMORY, *_KILLED):
        raise OutOfMemory(done.returncode)
    if done.returncode != 0:
        # the type of the last exception; its message may have words of the text, or paths
        kind = (errors.decode("utf-8", "replace").strip().splitlines() or [""])[-1].partition(":")[0]
        fields = {"function": function, "code": done.returncode, "exception": kind[:80]}
        _log.error("a child process failed", extra={"fields": fields})
        raise ChildProcessError(done.returncode)
    return made


def end_all() -> None:
    """End the children that run: the service stops, and nobody waits for them any more."""
    for child in list(_running):
        child.kill()


def _limit(seconds: float, memory: int, *, writes: bool) -> None:
    """Limit this process; signals end it when its time is up."""
    import resource

    os.nice(_NICENESS)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    hard = math.ceil(seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not writes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _end_with(parent: int) -> None:
    """End when the worker has died: nobody reads the answer."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


def main(limits: str, function: str, *arguments: str) -> int:
    """The child process. Exit code 3 comes with a message for the user on stdout."""
    seconds, memory, writes = limits.split()
    threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    _limit(float(seconds), int(memory), writes=writes == "1")
    module, _, name = function.partition(":")
    try:
        made: bytes = getattr(import_module(module), name)(sys.stdin.buffer.read(), *arguments)
    except (InputError, ConfigError) as error:
        sys.stdout.buffer.write(str(error).encode("utf-8", "replace"))
        return _REJECTED
    except Exception as error:
        # torch raises a RuntimeError, and the system an OSError
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return _NO_MEMORY
        raise
    sys.stdout.buffer.write(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
