"""The examples run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
OWN_SCHEME = ROOT / "examples" / "own_scheme.py"


def python(*arguments: object, path: tuple[Path, ...] = ()) -> str:
    """What a fresh interpreter prints; ``path`` holds more folders to import from."""
    folders = os.pathsep.join(map(str, (ROOT / "src", *path)))
    environment = {**os.environ, "PYTHONPATH": folders, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], check=False, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_own_scheme_runs_and_keeps_the_contract() -> None:
    first, *outcomes = python(OWN_SCHEME).splitlines()
    assert first == "halves:"
    assert len(outcomes) > 20
    assert not [line for line in outcomes if line.startswith("failed")]


def test_the_own_scheme_is_about_sixty_lines() -> None:
    lines = [line for line in OWN_SCHEME.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(lines) <= 70


def test_an_entry_point_makes_it_a_scheme_like_any_other(tmp_path: Path) -> None:
    shutil.copy(OWN_SCHEME, tmp_path / "my_halves.py")
    package = tmp_path / "my_package-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[dewmark.schemes]\nhalves = my_halves:Halves\n")
    command = "from dewmark.cli.app import main; raise SystemExit(main(['schemes', 'halves', '--json']))"
    found = json.loads(python("-c", command, path=(tmp_path,)))
    assert found["parameters"] == [
        {
            "name": "strength",
            "type": "number",
            "default": 2.0,
            "help": "What is added to the logits of the picked half.",
        }
    ]
