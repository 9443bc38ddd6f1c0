"""Contexts of windows that are begun ahead, on the CPU: streams are stand-ins, all else is as on a GPU."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.fakes import PAPER, BagEncoder

import dewmark
from dewmark.core.whitening import Whitening, normalize_rows
from dewmark.cuda import bias_step as hot
from dewmark.cuda import window_contexts as window_rows
from dewmark.cuda.bias_step import WindowMark
from dewmark.cuda.window_contexts import WindowRows
from dewmark.dew.alignment import DeviceTables
from dewmark.encoders.contexts import WindowContexts
from dewmark.testing.trial import tiny_host
from dewmark.text.windows import ABSENT, window_texts

CPU = torch.device("cpu")


class Stream:
    """Work is done when it is queued, so nobody waits."""

    def wait_stream(self, other):
        """Nothing to wait for."""

    def wait_event(self, event):
        """Nothing to wait for."""


class Event:
    """Nobody waits for it."""

    def record(self, stream):
        """Nothing to record."""


class Graphed:
    """An encoder that gives tensors, as one in CUDA graphs does."""

    def __init__(self, encoder):
        self.stream, self.lock = Stream(), threading.Lock()
        self._encoder = encoder

    def of_windows(self, tokenizer):
        return functools.partial(window_texts, tokenizer)

    def encode(self, windows, cut):
        return torch.from_numpy(self._encoder.encode(cut(windows)))


@pytest.fixture
def host():
    return tiny_host().info


@pytest.fixture(autouse=True)
def streams(monkeypatch):
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)


def windows_of(host, *, rows, seed):
    windows = np.random.default_rng(seed).integers(5, host.vocab_size, (rows, 3))
    windows[0] = ABSENT
    windows[1, 0] = ABSENT
    return windows


@pytest.mark.parametrize("whitened", [True, False])
def test_rows_are_the_contexts_up_to_their_length(host, monkeypatch, whitened):
    monkeypatch.setattr(window_rows, "_FIRST", 8)  # so that the rows grow
    encoder = BagEncoder()
    whitening = None
    if whitened:
        random = np.random.default_rng(1)
        whitening = Whitening(
            mean=random.normal(size=24).astype(np.float32),
            matrix=random.normal(size=(24, 24)).astype(np.float32),
        )
    contexts = WindowContexts(encoder, host.tokenizer, whitening)
    rows = WindowRows(contexts, Graphed(encoder), CPU)
    for seed in range(4):
        windows = windows_of(host, rows=9, seed=seed)
        with torch.inference_mode(seed % 2 == 0):
            found = rows.ready(rows.begin([tuple(row) for row in windows.tolist()])).numpy()
        np.testing.assert_allclose(normalize_rows(found), contexts.vectors(windows), atol=1e-5)
        assert not found[0].any()


def test_rows_that_were_given_stay_when_the_memory_begins_again(host, monkeypatch):
    monkeypatch.setattr(window_rows, "_MOST", 4)
    encoder = BagEncoder()
    rows = WindowRows(WindowContexts(encoder, host.tokenizer, None), Graphed(encoder), CPU)
    first = rows.begin([(5, 6, 7), (8, 9, 10)])
    kept = first.clone()
    rows.begin([(20, 21, 22), (23, 24, 25), (26, 27, 28)])
    assert torch.equal(first, kept)


def test_known_windows_are_not_encoded_again(host, monkeypatch):
    encoder = BagEncoder()
    rows = WindowRows(WindowContexts(encoder, host.tokenizer, None), Graphed(encoder), CPU)
    first = [(5, 6, 7), (8, 9, 10), (5, 6, 7), (ABSENT,) * 3]
    before = rows.begin(first)
    encoder.calls.clear()
    assert torch.equal(rows.begin(first), before)
    assert encoder.calls == []
    some = rows.begin([(5, 6, 7), (8, 9, 10), (11, 12, 13)])
    assert encoder.calls == [1]
    assert torch.equal(some[:2], before[:2])
    assert torch.equal(rows.begin([(11, 12, 13), (5, 6, 7)]), some[[2, 0]])
    assert encoder.calls == [1]
    most = rows.begin([(14, 15, 16), (5, 6, 7)])  # half of them new: all are encoded
    assert encoder.calls == [1, 2]
    assert torch.equal(most[1], before[0])
    assert torch.equal(rows.begin([(14, 15, 16)]), most[:1])
    monkeypatch.setattr(window_rows, "_MOST", 4)  # full: it begins again
    assert torch.equal(rows.begin([(20, 21, 22), *first])[1:], before)


@pytest.mark.parametrize("known", [0, 3])
def test_windows_that_failed_are_encoded_when_they_come_again(host, known):
    class Broken(BagEncoder):
        broken = False

        def encode(self, texts):
            if self.broken:
                raise RuntimeError("out of memory")
            return super().encode(texts)

    encoder = Broken()
    rows = WindowRows(WindowContexts(encoder, host.tokenizer, None), Graphed(encoder), CPU)
    old = [(20 + i, 21, 22) for i in range(known)]
    if old:
        rows.begin(old)
    encoder.broken = True
    with pytest.raises(RuntimeError, match="out of memory"):
        rows.begin([*old, (5, 6, 7), (8, 9, 10)])
    encoder.broken = False
    again = [(8, 9, 10), (5, 6, 7)]  # in another order: the places they had are not theirs by chance
    fresh = WindowRows(WindowContexts(encoder, host.tokenizer, None), Graphed(encoder), CPU)
    assert torch.equal(rows.begin(again), fresh.begin(again))


def test_a_mark_for_graphs_follows_the_windows_of_its_rows(host, bag_encoder, monkeypatch):
    """A row may begin again, and special tokens stand for nothing."""
    monkeypatch.setattr(hot, "can_fuse", lambda scheme, device: True)
    kernels = SimpleNamespace(maxima_of=lambda batch, vocab, device: torch.empty(0))
    monkeypatch.setitem(sys.modules, "dewmark.cuda.bias_kernels", kernels)
    monkeypatch.setattr(
        window_rows,
        "window_rows",
        lambda contexts, device: WindowRows(contexts, Graphed(bag_encoder), device),
    )
    key = dewmark.Key(bytes(range(32)))
    bound = dewmark.load_scheme("dew", key=key, host=host, context="window", **PAPER)
    mark = WindowMark.of(bound, batch=2, device=CPU)
    special = min(host.tokenizer.special_ids)
    ids = torch.tensor([[40, 41, 42, 43, special, 44, 45], [50, 51, 52, 53, 54, 55, 56]])
    mark.begin(0, ids[0, :5].tolist())
    for step in range(5):
        mark.start([44 if step else 60, int(ids[1, step])])
    mark.begin(0, ids[0, :5].tolist())
    for step in (5, 6):
        mark.start(ids[:, step].tolist())
    mark.wait()
    expected = bound.reader.contexts.vectors(np.array([[ABSENT, 44, 45], [54, 55, 56]]))
    np.testing.assert_allclose(normalize_rows(mark.contexts.numpy()), expected, atol=1e-5)
    G = DeviceTables.of(bound, CPU).G
    torch.testing.assert_close(mark.products, mark.contexts @ G, atol=1e-3, rtol=1e-5)
