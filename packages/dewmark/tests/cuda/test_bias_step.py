"""The bias step on a GPU, against the plain computation in torch.

The kernels run on a CUDA device or, slowly, on the CPU with TRITON_INTERPRET=1 where Triton is installed.
"""

from __future__ import annotations

import importlib.util
import math
import os

import pytest
import torch
from tests.fakes import PAPER

import dewmark
from dewmark.cuda.bias_step import BiasParameters, BiasStep, BiasSteps
from dewmark.cuda.graphs import captured
from dewmark.testing.trial import tiny_host

KEY = dewmark.Key(bytes(range(32)))
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
needs_kernels = pytest.mark.skipif(
    not (torch.cuda.is_available() or INTERPRETED), reason="needs a CUDA device, or Triton's interpreter"
)
WIDTH, N, VOCAB = 96, 128, 300


@pytest.fixture
def bound(bag_encoder):
    return dewmark.load_scheme(KEY, host=tiny_host().info, settings=PAPER)


def biased(logits, Q, contexts, products, *, m, strength, gamma, n):
    """`bias_top_` in plain torch; ties go to the smaller id, as in a stable sort."""
    candidates = (logits.float() + 0.0).sort(dim=-1, descending=True, stable=True).indices[:, :m]
    length = (contexts * products).sum(dim=-1, keepdim=True).sqrt()
    u = (Q[candidates] @ contexts.unsqueeze(-1)).squeeze(-1) * math.sqrt(n) / length.clamp_min(1e-20)
    return logits.copy_(logits.float().scatter_add(1, candidates, strength * torch.tanh(gamma * u)))


def special_logits(kind, vocab, random):
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


@needs_kernels
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
def test_kernels_bias_the_likeliest_tokens(kind, vocab, m, dtype):
    from dewmark.cuda.bias_kernels import bias_top_, maxima_of

    random = torch.Generator().manual_seed(vocab + m)
    logits = torch.cat((special_logits(kind, vocab, random), torch.randn(1, vocab, generator=random)))
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


def parameters(*, composed):
    random = torch.Generator().manual_seed(3)
    root = torch.randn(WIDTH, N, generator=random)
    rows = torch.randn(VOCAB + 1, WIDTH, generator=random)
    rows[-1] = 0.0
    return BiasParameters(
        strength=2.0,
        gamma=0.5,
        m=32,
        n=N,
        Q=torch.randn(VOCAB, WIDTH, generator=random).to(DEVICE),
        G=(root @ root.T).to(DEVICE),
        context_rows=rows.to(DEVICE) if composed else None,
    )


@needs_gpu
@pytest.mark.parametrize("composed", [True, False])
def test_steps_do_not_depend_on_the_batch_size(composed):
    """Captured or eager, padded to a power of two or not, each row is marked as if it were alone."""
    made = parameters(composed=composed)
    steps = BiasSteps(made, k=3)
    random = torch.Generator().manual_seed(4)
    found, right = [], []
    for step in range(40):
        batch = (3, 1, 4, 70)[step % 4]
        windows = torch.randint(VOCAB + 1, (batch, 3), generator=random).to(DEVICE)
        contexts = torch.randn(batch, WIDTH, generator=random).to(DEVICE)
        if composed:
            contexts = made.context_rows[windows].sum(dim=1)
        logits = torch.randn(batch, VOCAB, generator=random).to(DEVICE)
        kept = logits.clone()
        found.append(steps(windows if composed else contexts, logits))
        assert torch.equal(logits, kept)
        settings = {"m": 32, "strength": 2.0, "gamma": 0.5, "n": N}
        right.append(biased(kept, made.Q, contexts, contexts @ made.G, **settings))
    for marked, expected in zip(found, right, strict=True):  # results outlive later steps
        torch.testing.assert_close(marked, expected, atol=1e-4, rtol=0.0)


@needs_gpu
def test_a_step_can_be_captured_by_the_caller():
    made = parameters(composed=True)
    step = BiasStep(made, batch=2, k=3)
    scores = torch.zeros(2, VOCAB, device=DEVICE)

    def work():
        step.read()
        step.bias_(scores)

    replay = captured(work, device=DEVICE)
    windows = torch.tensor([[5, 6, 7], [8, 9, 10]], device=DEVICE)
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    step.inputs.copy_(windows)
    scores.copy_(logits)
    replay()
    torch.testing.assert_close(scores, BiasSteps(made, k=3)(windows, logits), atol=1e-4, rtol=0.0)


@needs_gpu
@pytest.mark.parametrize("inference", [True, False])
def test_sessions_mark_on_a_gpu_as_on_a_cpu(bound, inference):
    """Over enough steps to replay the later ones, with left padding and special tokens."""
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
