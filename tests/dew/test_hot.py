"""The bias mark on a GPU, against the plain form of a session on the CPU.

The kernels run on a CUDA device, or with TRITON_INTERPRET=1 on the CPU, slowly, where Triton is installed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import math
import os
import sys
import weakref
from types import SimpleNamespace

import pytest
import torch
from tests.fakes import PAPER

import dewmark
from dewmark.cuda import bias_step as hot
from dewmark.cuda.bias_step import GraphMark, Steps, WindowMark, can_fuse
from dewmark.dew.alignment import DeviceTables
from dewmark.dew.scheme import DEW
from dewmark.errors import ConfigError
from dewmark.testing.trial import tiny_host

KEY = dewmark.Key(bytes(range(32)))
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
with_kernels = pytest.mark.skipif(
    not (torch.cuda.is_available() or INTERPRETED), reason="needs a CUDA device, or Triton's interpreter"
)
WIDTH, N = 96, 128


@pytest.fixture
def bound(bag_encoder):
    return dewmark.load_scheme("dew", key=KEY, host=tiny_host().info, **PAPER)


def biased(logits, Q, contexts, products, *, m, strength, gamma, n, maxima=None):
    """What `bias_top_` does, by torch; ties go to the smaller id, as in a stable sort."""
    candidates = (logits.float() + 0.0).sort(dim=-1, descending=True, stable=True).indices[:, :m]
    length = (contexts * products).sum(dim=-1, keepdim=True).sqrt()
    u = (Q[candidates] @ contexts.unsqueeze(-1)).squeeze(-1) * math.sqrt(n) / length.clamp_min(1e-20)
    return logits.copy_(logits.float().scatter_add(1, candidates, strength * torch.tanh(gamma * u)))


def test_a_cpu_takes_the_plain_way(bound):
    assert not can_fuse(bound.scheme, torch.device("cpu"))


@pytest.mark.parametrize("kind", [GraphMark, WindowMark])
def test_a_graph_needs_a_gpu_and_says_so(bound, kind):
    with pytest.raises(ConfigError, match="CUDA graph needs units=token"):
        kind.of(bound, batch=2, device=torch.device("cpu"))


def rows_of_logits(kind, vocab, random):
    logits = 3.0 * torch.randn(2, vocab, generator=random)
    if kind == "equal":
        logits.fill_(1.5)
    elif kind == "ties":
        logits.round_()
        logits[0, ::2] = -0.0
    elif kind == "forbidden":  # fewer finite logits than candidates
        logits[0, 3 : vocab - 2] = -math.inf
        logits[1] = -math.inf
    elif kind == "one block":
        logits[0, vocab // 2 : vocab // 2 + 40] += 50.0
        logits[1, 7] = math.inf
    return logits


@with_kernels
@pytest.mark.parametrize("kind", ["random", "equal", "ties", "forbidden", "one block"])
@pytest.mark.parametrize(
    ("vocab", "m", "dtype"),
    [
        (40, 32, torch.float32),
        (1025, 1, torch.float32),
        (5000, 20, torch.bfloat16),
        *(
            [(128_256, 32, torch.bfloat16), (70_000, 32, torch.float32), (9000, 100, torch.float32)]
            if torch.cuda.is_available()
            else []
        ),
    ],
)
def test_the_kernels_bias_the_likeliest(kind, vocab, m, dtype):
    from dewmark.cuda.bias_kernels import bias_top_, maxima_of

    random = torch.Generator().manual_seed(vocab + m)
    logits = torch.cat((rows_of_logits(kind, vocab, random), torch.randn(1, vocab, generator=random)))
    logits = logits.to(dtype)
    Q = torch.randn(vocab, WIDTH, generator=random)
    contexts = torch.randn(3, WIDTH, generator=random)
    contexts[-1] = 0.0  # an empty context: no mark
    root = torch.randn(WIDTH, N, generator=random)
    settings = {"m": m, "strength": 2.0, "gamma": 0.5, "n": N}
    products = contexts @ (root @ root.T)
    tensors = [tensor.to(DEVICE, copy=True) for tensor in (logits, Q, contexts, products)]
    marked = bias_top_(*tensors, maxima=maxima_of(3, vocab, device=DEVICE), **settings).cpu()
    expected = biased(logits.clone(), Q, contexts, products, **settings)
    # float32 sums of 96 products in another order; bfloat16 may then round to the neighbour
    within = 1e-4 if dtype == torch.float32 else 0.3
    torch.testing.assert_close(marked.float(), expected.float(), atol=within, rtol=0.0)
    changed = (marked != logits).sum(dim=-1)
    assert changed.max() <= m
    assert changed[-1] == 0


@pytest.fixture
def on_cpu(monkeypatch):
    """Steps as on a GPU, with torch for the kernels and calls for the graphs; gives the sizes captured."""
    kernels = SimpleNamespace(
        MOST=128, bias_top_=biased, maxima_of=lambda batch, vocab, device: torch.empty(batch, 0)
    )
    monkeypatch.setitem(sys.modules, "dewmark.cuda.bias_kernels", kernels)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "stream")
    sizes = []

    def captured(work, *, device, priority=0):
        sizes.append(len(work.__closure__[0].cell_contents.contexts))
        return work

    monkeypatch.setattr(hot, "captured", captured)
    return sizes


def test_a_captured_step_keeps_what_it_writes_into(monkeypatch):
    """A graph knows addresses only: were the buffers freed, it would write into somebody else's memory."""
    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)
    graph = SimpleNamespace(replay=lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **options: contextlib.nullcontext())

    def begun():
        buffer = torch.zeros(3)
        return hot.captured(lambda: buffer.add_(1.0), device=DEVICE), weakref.ref(buffer)

    replay, buffer = begun()
    gc.collect()
    assert buffer() is not None
    replay()
    del replay
    gc.collect()
    assert buffer() is None


def tables(vocab, *, composed):
    random = torch.Generator().manual_seed(3)
    root = torch.randn(WIDTH, N, generator=random)
    rows = torch.randn(vocab + 1, WIDTH, generator=random)
    rows[-1] = 0.0
    Q = torch.randn(vocab, WIDTH, generator=random)
    return DeviceTables(Q=Q, G=root @ root.T, context_rows=rows if composed else None)


@pytest.mark.parametrize("composed", [True, False])
def test_steps_of_any_batch_mark_alike(on_cpu, composed):
    """Captured and plain, padded to a power of two and not, the marks are those of each row alone."""
    vocab, scheme = 300, DEW(units="token", sampler="bias")
    made = tables(vocab, composed=composed)
    steps = Steps(scheme, made, n=N)
    random = torch.Generator().manual_seed(4)
    found, right = [], []
    for step in range(30):
        batch = (3, 1, 4)[step % 3]
        windows = torch.randint(vocab + 1, (batch, scheme.k), generator=random)
        contexts = torch.randn(batch, WIDTH, generator=random)
        if composed:
            contexts = made.context_rows[windows].sum(dim=1)
        logits = torch.randn(batch, vocab, generator=random)
        kept = logits.clone()
        found.append(steps(windows if composed else contexts, logits))
        assert torch.equal(logits, kept)
        settings = {"m": 32, "strength": scheme.lambda_, "gamma": scheme.gamma, "n": N}
        right.append(biased(kept, made.Q, contexts, contexts @ made.G, **settings))
    for marked, expected in zip(found, right, strict=True):  # a result outlives the steps after it
        torch.testing.assert_close(marked, expected, atol=1e-4, rtol=0.0)
    assert sorted(on_cpu) == [1, 4]  # batches of 3 and 4 share a size, and each is captured once


def test_large_batches_and_rare_ones_are_not_captured(on_cpu):
    steps = Steps(DEW(units="token", sampler="bias"), tables(50, composed=True), n=N)
    for batch in (65, 65, 65, 65, 65, 65, 2, 2, 2, 2):
        windows = torch.zeros(batch, 3, dtype=torch.long)
        assert steps(windows, torch.zeros(batch, 50)).shape == (batch, 50)
    assert on_cpu == []


@on_gpu
def test_a_graph_marks_as_a_session_does(bound):
    vocab = bound.host.vocab_size
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(5, vocab, (3, 9), generator=random)
    logits = torch.randn(3, vocab, generator=random)
    expected = bound.session(ids[:, :1])(ids, logits)
    mark = GraphMark.of(bound, batch=3, device=DEVICE)
    for step in range(ids.shape[1]):
        mark.observe(ids[:, step].to(DEVICE))
    scores = logits.to(DEVICE)

    def work():
        mark.read()
        mark.mark_(scores)

    replay = hot.captured(work, device=DEVICE)
    scores.copy_(logits)
    replay()
    torch.testing.assert_close(scores.cpu(), expected, atol=1e-4, rtol=0.0)


@on_gpu
@pytest.mark.parametrize("inference", [True, False])
def test_sessions_on_a_gpu_mark_as_on_a_cpu(bound, inference):
    """Over enough steps that the later ones are replayed, left-padded, special tokens among the ids."""
    vocab = bound.host.vocab_size
    random = torch.Generator().manual_seed(2)
    ids = torch.randint(0, vocab, (3, 24), generator=random)
    mask = torch.ones(3, 4, dtype=torch.long)
    mask[1, :3] = 0
    there = ids.to(DEVICE)
    with torch.inference_mode(inference):
        one, other = bound.session(ids[:, :4], mask), bound.session(there[:, :4], mask.to(DEVICE))
        for length in range(4, 24):
            logits = torch.randn(3, vocab, generator=random)
            other.ahead(there[:, :length])
            marked = other(there[:, :length], logits.to(DEVICE)).cpu()
            expected = one(ids[:, :length], logits)
            torch.testing.assert_close(marked, expected, atol=1e-4, rtol=0.0)
