"""Workers of benchmarks/table1.py share units of work without doing one twice."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"


def test_a_unit_that_another_worker_has_just_finished_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a worker's first look at the finished units and its claim another one may end."""
    monkeypatch.syspath_prepend(FOLDER)
    script = importlib.import_module("table1")
    worker = object.__new__(script.Worker)
    worker.out, worker.number = tmp_path, 1
    worker.options = argparse.Namespace(artifacts=None)
    worker.entries = {"kgw": SimpleNamespace(scheme="kgw")}
    made: list[int] = []
    monkeypatch.setattr(script.Worker, "_texts_and_scores", lambda self, group, key, seeds: made.append(key))
    worker._unit(("kgw",), 0, (0, 1, 2))
    assert made == [0]

    @contextlib.contextmanager
    def claimed_late(path: Path) -> Iterator[bool]:
        (tmp_path / "cells-0.jsonl").write_text(json.dumps({"unit": f"{path.name} done"}) + "\n")
        yield True

    monkeypatch.setattr(script, "claimed", claimed_late)
    worker._unit(("kgw",), 1, (1,))
    assert made == [0]
