from __future__ import annotations

import json

import pytest

from dewmark.errors import ConfigError, StorageError
from dewmark.lab.experiments.outputs import StageOutput


@pytest.fixture
def rows(tmp_path):
    return StageOutput("generate", {"host": "a", "seed": 0}).rows(tmp_path)


def fill(rows, number, batch):
    made = []
    with rows.missing_batches(number, size=batch) as batches:
        for each in batches:
            made.append((each.start, each.stop))
            rows.append([{"i": i} for i in each])
    return made


def test_a_hash_names_everything_that_decides_the_rows():
    one = StageOutput("generate", {"host": "a", "seed": 0})
    assert one.hash == StageOutput("generate", {"seed": 0, "host": "a"}).hash
    assert one.hash != StageOutput("attack", {"host": "a", "seed": 0}).hash
    assert one.hash != StageOutput("generate", {"host": "a", "seed": 1}).hash


def test_batches_are_fixed_by_the_order_of_rows(rows):
    assert fill(rows, 5, 2) == [(0, 2), (2, 4), (4, 5)]
    assert [row["i"] for row in rows.read(5)] == [0, 1, 2, 3, 4]
    assert fill(rows, 5, 2) == []
    assert fill(rows, 3, 2) == []  # fewer are a part of what is there
    assert fill(rows, 8, 2) == [(4, 6), (6, 8)]  # the short batch is made again, whole
    assert [row["i"] for row in rows.read(8)] == list(range(8))


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_file_cut_at_any_byte_grows_to_the_same_bytes(rows, cut):
    fill(rows, 6, 2)
    whole = rows.path.read_bytes()
    rows.path.write_bytes(whole[:cut])
    fill(rows, 6, 2)
    assert rows.path.read_bytes() == whole


def test_what_is_missing_or_damaged_is_told(rows):
    with pytest.raises(ConfigError, match=r"has 0 of 3 rows: run the stage 'generate' first"):
        rows.read(3)
    fill(rows, 4, 4)
    rows.path.write_bytes(b"{}\n{\x00}\n{}\n")
    with pytest.raises(StorageError, match="damaged"):
        rows.read(3)


def test_inputs_lie_beside_the_rows(rows):
    fill(rows, 2, 2)
    assert json.loads((rows.path.parent / "inputs.json").read_text()) == {"host": "a", "seed": 0}


def test_a_writer_waits_for_the_other(rows, tmp_path):
    """The second writer finds everything done, however they meet."""
    import threading

    order = []

    def other():
        order.append(fill(rows, 4, 2))

    with rows.missing_batches(4, size=2) as batches:
        thread = threading.Thread(target=other)
        thread.start()
        for each in batches:
            rows.append([{"i": i} for i in each])
        assert not order
    thread.join(timeout=10)
    assert order == [[]]
