"""Runners: jobs over many workers, as processes on this machine or on a Ray cluster."""

from __future__ import annotations

from dewmark.batch.runners.base import Runner, cores
from dewmark.registry import unknown_name

__all__ = ["Runner", "cores", "open_runner"]

ENGINES = ("local", "ray")


def open_runner(engine: str = "local", *, workers: int | None = None) -> Runner:
    """A runner by name; ``workers`` defaults to 1 locally and to all CPUs of a Ray cluster."""
    if engine == "local":
        from dewmark.batch.runners.local import LocalRunner

        return LocalRunner(workers=1 if workers is None else workers)
    if engine == "ray":
        from dewmark.batch.runners.ray import RayRunner

        return RayRunner(workers=workers)
    raise unknown_name("engine", engine, ENGINES)
