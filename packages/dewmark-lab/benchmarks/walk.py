"""How many files of the package one detection and one generation step pass through.

    python benchmarks/walk.py

Runs the default scheme on the tiny host under a profiler hook and counts the files in which a function is
called, and how often control moves from one file to another. ``open and detect`` loads the scheme and scores
a text, as the first call of a process does; ``detect`` is the second detection; ``step`` is one token in the
middle of a text.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from script_inputs import named_key, script_parser

import dewmark
from dewmark.decoding import Decoding
from dewmark.hosts.fake import FakeHost

PACKAGE = str(Path(dewmark.__file__).parent)
TEXT = " the light of the night and the sea under the old hill was the story of all the people" * 3


class Walk:
    """Records the package's files in the order in which calls enter them."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.on = False

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        """The profiler hook; module and class bodies, which run at import, do not count."""
        if not self.on or event != "call" or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return
        if frame.f_code.co_filename.startswith(PACKAGE):
            self.files.append(frame.f_code.co_filename.removeprefix(PACKAGE + "/"))

    def summary(self) -> dict[str, Any]:
        """Distinct files, moves between files, and calls."""
        moves = sum(a != b for a, b in zip(self.files, self.files[1:], strict=False))
        return {"files": sorted(set(self.files)), "moves": moves, "calls": len(self.files)}


def traced(run: Callable[[Walk], None]) -> dict[str, Any]:
    walk = Walk()
    sys.setprofile(walk)
    try:
        run(walk)
    finally:
        sys.setprofile(None)
    return walk.summary()


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    host = FakeHost(400)
    key = named_key("walk")

    def open_and_detect(walk: Walk) -> None:
        walk.on = True
        dewmark.load_scheme(key, host=host.info).detect(TEXT)

    found = {"open and detect": traced(open_and_detect)}
    bound = dewmark.load_scheme(key, host=host.info)
    bound.detect(TEXT)

    def detect(walk: Walk) -> None:
        walk.on = True
        bound.detect(TEXT)

    def step(walk: Walk) -> None:
        taken = 0

        def on_step(ids: list[int | None]) -> bool:
            nonlocal taken
            taken += 1
            walk.on = taken == 20
            return True

        decoding = Decoding(max_new_tokens=40, min_new_tokens=40, temperature=0.7, top_p=0.9)
        host.stream([TEXT], scheme=bound, seeds=[1], decoding=decoding, on_step=on_step)

    found |= {"detect": traced(detect), "step": traced(step)}
    if options.json:
        print(json.dumps(found))
        return
    for name, walk in found.items():
        print(f"{name}: {len(walk['files'])} files, {walk['moves']} moves, {walk['calls']} calls")
        for file in walk["files"]:
            print(f"  {file}")


if __name__ == "__main__":
    main()
