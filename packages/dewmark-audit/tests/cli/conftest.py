from __future__ import annotations

from tests.command_line import host, key_file, numbers, run, tiny

__all__ = ["host", "key_file", "numbers", "run", "tiny"]
