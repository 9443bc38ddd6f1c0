"""Rows of ids as bytes."""

from __future__ import annotations

import torch
from tests.fakes import unpacked

from dewmark.encoders.window_ids import WIDTH, ids_and_mask, packed, padded


def test_packed_and_back():
    ids = [0, 5, 250_001, 2**31 - 1]
    assert unpacked(packed(ids)) == ids
    assert len(packed(ids)) == len(ids) * WIDTH
    assert packed([7]) + packed([8, 9]) == packed([7, 8, 9])


def test_padded():
    found = padded([packed([5]), packed([6, 7, 8]), b""], multiple=4)
    assert found.dtype == torch.int32
    assert found.tolist() == [[5, -1, -1, -1], [6, 7, 8, -1], [-1, -1, -1, -1]]
    assert padded([packed([5]), packed([6, 7])]).tolist() == [[5, -1], [6, 7]]
    ids, mask = ids_and_mask(found, fill=9)
    assert ids.dtype == mask.dtype == torch.int64
    assert ids.is_contiguous()
    assert mask.is_contiguous()  # kernels go over them row after row
    assert ids.tolist() == [[5, 9, 9, 9], [6, 7, 8, 9], [9, 9, 9, 9]]
    assert mask.tolist() == [[1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]


def test_a_batch_is_memory_of_its_own():
    row = packed([5, 6])
    padded([row])[0, 0] = 9
    assert unpacked(row) == [5, 6]
