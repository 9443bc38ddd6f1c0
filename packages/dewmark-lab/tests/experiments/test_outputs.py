"""The files of stages: what names them, and how they grow."""

from __future__ import annotations

import json
import threading

import pytest

from dewmark.errors import ConfigError, StorageError
from dewmark_lab.experiments.outputs import Output


@pytest.fixture
def rows(tmp_path):
    return Output(tmp_path, "generate", {"host": "a", "seed": 0})


def fill(rows, number, size):
    made = []

    def make(batch):
        made.append((batch.start, batch.stop))
        return [{"i": i} for i in batch]

    rows.fill(number, make, size=size)
    return made


def test_the_hash_covers_stage_and_inputs(tmp_path):
    one = Output(tmp_path, "generate", {"host": "a", "seed": 0})
    assert one.hash == Output(tmp_path / "b", "generate", {"seed": 0, "host": "a"}).hash
    assert one.hash != Output(tmp_path, "attack", {"host": "a", "seed": 0}).hash
    assert one.hash != Output(tmp_path, "generate", {"host": "a", "seed": 1}).hash


def test_batches_depend_only_on_the_order_of_rows(rows):
    assert fill(rows, 5, 2) == [(0, 2), (2, 4), (4, 5)]
    assert [row["i"] for row in rows.read(5)] == [0, 1, 2, 3, 4]
    assert fill(rows, 5, 2) == []
    assert fill(rows, 3, 2) == []  # fewer rows are a part of the file
    assert fill(rows, 8, 2) == [(4, 6), (6, 8)]  # the short batch is made again
    assert [row["i"] for row in rows.read(8)] == list(range(8))


@pytest.mark.parametrize("cut", [1, 12, 25, 39])
def test_a_file_cut_at_any_byte_grows_to_the_same_bytes(rows, cut):
    fill(rows, 6, 2)
    whole = rows.path.read_bytes()
    rows.path.write_bytes(whole[:cut])
    fill(rows, 6, 2)
    assert rows.path.read_bytes() == whole


def test_missing_and_damaged_rows_are_reported(rows):
    with pytest.raises(ConfigError, match=r"has 0 of 3 rows: run stage 'generate' first"):
        rows.read(3)
    fill(rows, 4, 4)
    rows.path.write_bytes(b"{}\n{\x00}\n{}\n")
    with pytest.raises(StorageError, match="damaged"):
        rows.read(3)


def test_inputs_are_stored_next_to_the_rows(rows):
    fill(rows, 2, 2)
    assert json.loads((rows.path.parent / "inputs.json").read_text()) == {"host": "a", "seed": 0}


def test_a_second_writer_waits_and_finds_everything_done(rows):
    order = []
    with rows.missing_batches(4, size=2) as batches:
        thread = threading.Thread(target=lambda: order.append(fill(rows, 4, 2)))
        thread.start()
        for batch in batches:
            rows.append([{"i": i} for i in batch])
        assert not order
    thread.join(timeout=300)
    assert order == [[]]
