from __future__ import annotations

from tests.command_line import detect, host, key_file, numbers, run, tiny

__all__ = ["detect", "host", "key_file", "numbers", "run", "tiny"]
