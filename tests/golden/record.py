"""Write down what dewmark does, and compare it later: texts, p-values, token scores, detectors.

    python -m tests.golden.record write             # into tests/golden/record/
    python -m tests.golden.record check             # recompute and compare; exit code 1 on a difference

Ids and texts are compared exactly, numbers to 5e-6 (``--exact``: to all ten digits), on another kind of
processor than the record's to 2e-4.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.golden import marks, stored
from tests.golden.api import numbers, worlds
from tests.golden.compare import differences, dumped, rounded, tolerance_here

RECORD = Path(__file__).parent / "record"
MOST_SHOWN = 12  # differences of one section

Section = Callable[[worlds.World], Any]

FILES: dict[str, Mapping[str, Section]] = {
    "dew": marks.DEW_SECTIONS,
    "baselines": marks.BASELINE_SECTIONS,
    "stored": stored.SECTIONS,
}
"""The sections by the file of the record that holds them."""


def check(
    files: Iterable[str], *, only: Callable[[str], bool] = lambda name: True, exact: bool = False
) -> dict[str, list[str]]:
    """For every section what differs from the record; tells each as it is done."""
    found: dict[str, list[str]] = {}
    for file in files:
        known = read(file)
        with _world() as world:
            for name, section in FILES[file].items():
                if not only(name):
                    continue
                began = time.monotonic()
                if name not in known:
                    found[name] = ["not in the record"]
                else:
                    made = _made(section, world)
                    found[name] = list(
                        differences(known[name], made, exact=exact, tolerance=tolerance_here())
                    )
                _tell(name, found[name], time.monotonic() - began)
            for name in known:
                if name not in FILES[file] and only(name):
                    found[name] = ["in the record, but nothing makes it"]
                    _tell(name, found[name], 0.0)
    return found


def write(files: Iterable[str], *, only: Callable[[str], bool] = lambda name: True) -> None:
    """Make the record of these files; sections that are left out stay as they were."""
    RECORD.mkdir(exist_ok=True)
    for file in files:
        known = read(file)
        made: dict[str, Any] = {}
        with _world() as world:
            if file == "stored":
                stored.keep_detectors(world)
            for name, section in FILES[file].items():
                began = time.monotonic()
                if only(name) or name not in known:
                    made[name] = _made(section, world)
                    _say(f"{'wrote':8}{name} ({time.monotonic() - began:.1f} s)")
                else:
                    made[name] = known[name]
        (RECORD / f"{file}.json").write_text(dumped(made) + "\n", encoding="utf-8")


@contextmanager
def _world() -> Iterator[worlds.World]:
    with tempfile.TemporaryDirectory() as folder, worlds.world(Path(folder)) as world:
        yield world


def read(file: str) -> dict[str, Any]:
    """The record's sections in one file, none if it was never written."""
    path = RECORD / f"{file}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _made(section: Section, world: worlds.World) -> Any:
    return json.loads(json.dumps(rounded(numbers.plain(section(world)))))


def _tell(name: str, found: list[str], seconds: float) -> None:
    _say(f"{'DIFFERS' if found else 'same':8}{name} ({seconds:.1f} s)")
    for line in found[:MOST_SHOWN]:
        _say(f"          {line}")
    if len(found) > MOST_SHOWN:
        _say(f"          … and {len(found) - MOST_SHOWN} more")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """The command line; 1 if anything differs."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden.record", description=__doc__.splitlines()[0]
    )
    parser.add_argument("mode", choices=("write", "check"))
    parser.add_argument("--only", metavar="TEXT", default="", help="only sections whose name holds this text")
    parser.add_argument("--exact", action="store_true", help="compare numbers to all their digits")
    chosen = parser.parse_args(arguments)
    for scheme in worlds.uncovered():
        _say(f"note    no section covers the scheme {scheme}")
    if chosen.mode == "write":
        write(FILES, only=lambda name: chosen.only in name)
        return 0
    found = check(FILES, only=lambda name: chosen.only in name, exact=chosen.exact)
    differing = [name for name, lines in found.items() if lines]
    _say(
        f"{len(found)} sections compared, {len(differing)} differ"
        + "".join(f"\n  {name}" for name in differing)
    )
    return 1 if differing or not found else 0


if __name__ == "__main__":
    sys.exit(main())
