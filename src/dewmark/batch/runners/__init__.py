"""Many pieces of work over many workers: on this machine, or over a Ray cluster."""

from __future__ import annotations

from dewmark.batch.runners.base import Runner, cores
from dewmark.registry import unknown_name

__all__ = ["ENGINES", "Runner", "cores", "open_runner"]

ENGINES = ("local", "ray")


def open_runner(engine: str = "local", *, workers: int | None = None) -> Runner:
    """A runner by name; ``workers`` is by default 1 here and the number of CPUs on a Ray cluster."""
    if engine == "local":
        from dewmark.batch.runners.local import LocalRunner

        return LocalRunner(workers=1 if workers is None else workers)
    if engine == "ray":
        from dewmark.batch.runners.ray import RayRunner

        return RayRunner(workers=workers)
    raise unknown_name("engine", engine, ENGINES)
