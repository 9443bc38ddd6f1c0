from __future__ import annotations

from tests.cli.fixtures import host, key_file, numbers, run, tiny

__all__ = ["host", "key_file", "numbers", "run", "tiny"]
