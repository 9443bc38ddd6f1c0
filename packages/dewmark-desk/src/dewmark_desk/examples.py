"""Texts to try the service with: two of six paragraphs carry the mark of the demonstration key.

The marked text is packaged. ``python -m tests.desk.compose_example`` composes it again if the default scheme
changes, and a test says when that is due.
"""

from __future__ import annotations

import functools
from importlib import resources

from dewmark.prompts import package_file


@functools.cache
def example_text() -> str:
    """The example, with the mark of the demonstration key in its second and third paragraph."""
    packaged = resources.files("dewmark_desk") / "data" / "example.txt"
    return packaged.read_text(encoding="utf-8").strip()


@functools.cache
def unmarked_text() -> str:
    """A paragraph that is older than any mark."""
    return package_file("human.txt").read_text(encoding="utf-8").strip().split("\n\n")[0]
