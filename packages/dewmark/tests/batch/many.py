"""Many short texts, and a detector without a model that every process can open."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from dewmark.batch.detecting import ScoringWorker

_VOCABULARY = """
the old bridge over a river was built by people who came from village market winter summer garden window
paper letter music teacher doctor farmer sailor forest mountain valley harbour island street castle kitchen
bread butter apple water silver copper stone wooden heavy narrow gentle silent early yellow purple distant
"""
WORDS = _VOCABULARY.split()


def export_kgw(folder: Path) -> Path:
    """A detector of the KGW scheme on a fake host's tokenizer."""
    pytest.importorskip("dewmark_lab", reason="KGW is in dewmark-lab")
    import dewmark
    from dewmark_lab.testing.fake_host import FakeHost

    bound = dewmark.load_scheme(dewmark.Key(bytes(range(32))), host=FakeHost().info, scheme="kgw")
    dewmark.Detector(bound).save(folder)
    return folder


def texts(count: int, *, seed: int = 1) -> list[dict[str, Any]]:
    """Rows of short texts with integer ids; every fifth text is blank."""
    draw = random.Random(seed)
    return [
        {"id": i, "text": "" if i % 5 == 4 else " ".join(draw.choices(WORDS, k=draw.randint(25, 50)))}
        for i in range(count)
    ]


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=100)
    return path


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of an output file, in either format."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    import pyarrow.parquet

    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


class DyingWorker(ScoringWorker):
    """A worker that kills itself at row 24; its successor does not."""

    def __call__(self):
        work = super().__call__()

        def one(block):
            died = Path(os.environ["DEWMARK_TEST_DIED"])
            if block.first == 24 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return work(block)

        return one
