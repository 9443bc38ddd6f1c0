"""Runs that are killed or interrupted, then started again, end with the bytes of an undisturbed run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.experiments.conftest import command, tree

from dewmark import storage
from dewmark.cli.app import main

RECIPE = """
base: main
lengths: [6]
profiles:
  local:
    schemes:
      one: {scheme: kgw, settings: {prefix: 1}}
      two: {scheme: kgw, settings: {prefix: 1}, test: z}
"""


def test_a_run_killed_in_every_stage_writes_the_same_bytes(tiny_folder, tmp_path):
    """4 texts in batches of 2: 4 batches are generated, 2 attacked, 24 scored by two tests, 4 judged."""
    recipe = tmp_path / "two-tests.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    stages = ("--stages", "generate,attack,score,quality", "--seeds", "1", "--schemes", "one,two")
    whole, killed, script = tmp_path / "whole", tmp_path / "killed", Path(__file__).parent / "dying_run.py"
    words = [sys.executable, str(script), "3,4,12,16", str(whole), str(killed)]
    words += command(tiny_folder, whole, *stages, recipe=recipe)
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}  # its threads do not survive a fork
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert tree(killed) == tree(whole)


def test_ctrl_c_explains_how_to_continue_and_loses_nothing(tiny_folder, tmp_path, monkeypatch, capsys):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    stages = ("--stages", "generate,attack,score", "--seeds", "1")
    assert main(command(tiny_folder, whole, *stages)) == 0
    append, left = storage.append_jsonl, [11]

    def interrupted(path: Path, new: list[dict], **options: bool) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        append(path, new, **options)

    monkeypatch.setattr(storage, "append_jsonl", interrupted)
    assert main(command(tiny_folder, stopped, *stages)) == 130
    message = capsys.readouterr().err
    assert "interrupted" in message
    assert "reproduce" in message
    assert main(command(tiny_folder, stopped, *stages)) == 0
    assert tree(stopped) == tree(whole)
