"""The kernels of the bias mark on a GPU, against the plain form of a session on the CPU."""

from __future__ import annotations

import math

import pytest
import torch
from tests.fakes import PAPER

import dewmark
from dewmark.dew.hot import GraphMark, can_fuse
from dewmark.errors import ConfigError
from dewmark.testing.trial import tiny_host

KEY = dewmark.Key(bytes(range(32)))
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def bound(bag_encoder):
    return dewmark.load_scheme("dew", key=KEY, host=tiny_host().info, **PAPER)


def test_a_cpu_takes_the_plain_way(bound):
    assert not can_fuse(bound.scheme, torch.device("cpu"))


def test_a_graph_needs_a_gpu_and_says_so(bound):
    with pytest.raises(ConfigError, match="CUDA graph needs units=token"):
        GraphMark.of(bound, batch=2, device=torch.device("cpu"))


@on_gpu
@pytest.mark.parametrize("vocab", [40, 1024, 1025, 70_000])
@pytest.mark.parametrize("m", [20, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_bias_the_likeliest(vocab, m, dtype):
    from dewmark.dew.kernels import bias_top_, blocks_of

    random = torch.Generator().manual_seed(vocab + m)
    batch, width, n = 5, 96, 128
    logits = (3.0 * torch.randn(batch, vocab, generator=random)).to(dtype)
    logits[0, 7] = -math.inf
    Q = torch.randn(vocab, width, generator=random)
    contexts = torch.randn(batch, width, generator=random)
    contexts[-1] = 0.0  # an empty context: no mark
    root = torch.randn(width, n, generator=random)
    G = root @ root.T
    marked = bias_top_(
        logits.cuda(),
        Q.cuda(),
        contexts.cuda(),
        (contexts @ G).cuda(),
        best=torch.empty(batch, blocks_of(vocab), 32, dtype=torch.int64, device="cuda"),
        m=m,
        strength=2.0,
        gamma=0.5,
        n=n,
    ).cpu()
    # ties of bfloat16 logits go to the smaller id, as in a stable sort
    candidates = logits.float().sort(dim=-1, descending=True, stable=True).indices[:, :m]
    length = (contexts @ G * contexts).sum(dim=-1, keepdim=True).sqrt()
    u = (Q[candidates] @ contexts.unsqueeze(-1)).squeeze(-1) * math.sqrt(n) / length.clamp_min(1e-20)
    expected = logits.float().scatter_add(1, candidates, 2.0 * torch.tanh(0.5 * u)).to(dtype)
    # float32 sums of 96 products in another order; bfloat16 may then round to the neighbour
    within = 1e-4 if dtype == torch.float32 else 0.07
    torch.testing.assert_close(marked.float(), expected.float(), atol=within, rtol=0.0)
    assert torch.equal(marked[-1], logits[-1])


@on_gpu
def test_a_graph_marks_as_a_session_does(bound):
    device, vocab = torch.device("cuda"), bound.host.vocab_size
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(5, vocab, (3, 9), generator=random)
    logits = torch.randn(3, vocab, generator=random)
    expected = bound.session(ids[:, :1])(ids, logits)
    mark = GraphMark.of(bound, batch=3, device=device)
    for step in range(ids.shape[1]):
        mark.observe(ids[:, step].to(device))
    graph, scores = torch.cuda.CUDAGraph(), logits.to(device)

    def work():
        mark.read()
        mark.mark_(scores)

    work()  # compiles the kernels
    with torch.cuda.graph(graph):
        work()
    scores.copy_(logits)
    graph.replay()
    torch.testing.assert_close(scores.cpu(), expected, atol=1e-4, rtol=0.0)
