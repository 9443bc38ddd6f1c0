"""A task of an experiment that needs no model: it records which process ran it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dewmark.errors import ConfigError
from dewmark_lab.experiments.workers import LoadedModels, Task


@dataclass(frozen=True)
class Noting(Task):
    """Appends its process to a file, or fails without a file."""

    target: Path | None

    def run(self, models: LoadedModels, on_rows) -> None:
        if self.target is None:
            raise ConfigError("no file")
        with self.target.open("a") as stream:
            stream.write(f"{os.getpid()}\n")
