"""Training of TS: two networks choose γ and δ after each token, for detectability and meaning at once.

The host reads unmarked texts once, and its most likely candidates at every position are cached. A step marks
a batch of them as if under a fresh key, with the relaxation m = sigmoid((logit γ − logit u) / τ) of "u < γ":

    L_D = −z,      z = Σ_t (Σ_v p'_tv m_tv − γ_t) / √Σ_t γ_t(1 − γ_t),      p' = softmax(logits + δ m)
    L_S = −cos of the meanings of two texts, whose tokens are drawn from p' and from p with the same noise

The meaning of a text is the sum of its tokens' whitened encoder vectors, which is linear. Draws are one-hot
forward and soft backward. MGDA takes the shortest convex combination of the two gradients, along which both
losses fall.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cosine_similarity, softplus

from dewmark.encoders.contexts import load_context_whitening, token_vectors
from dewmark.errors import InputError
from dewmark.models.devices import torch_device
from dewmark.workspace import LanguageModel
from dewmark_lab.schemes.learned.ts import HIDDEN, LEAST, inputs_of
from dewmark_lab.training.job import Trained, TrainingJob
from dewmark_lab.training.loop import BEYOND_STEPS, TorchLearner, generator, run_steps

STEPS = 500
TEXTS, LENGTH, CANDIDATES = 256, 96, 512
BATCH, RATE = 16, 1e-4
GAMMA, DELTA = 0.25, 2.0  # initial outputs of the networks: KGW's values
TAU = 0.1
_DRAW_TAU = 0.5  # temperature of the softmax behind drawn tokens, backward only
_JUDGED = 4  # batches for the report


def train(job: TrainingJob) -> Trained:
    """Train both networks for a host."""
    texts = job.texts_for(TEXTS)
    cached = job.cached("candidates", lambda: likely_candidates(job, texts))
    device = torch_device(job.device)
    width = job.info.embeddings().shape[1]
    starts = {
        "gamma": math.log((GAMMA - LEAST) / (1.0 - LEAST - GAMMA)),
        "delta": math.log(math.expm1(DELTA)),
    }
    networks = torch.nn.ModuleDict(
        {name: TSNetwork(width, start, job.seed + i) for i, (name, start) in enumerate(starts.items())}
    ).to(device)
    learner = TSLearner(networks, _Material.of(job, cached, device), seed=job.seed)
    before = learner.judge()
    run_steps(learner, job, steps=job.steps or STEPS)
    after = learner.judge()
    arrays = {
        f"{name}.{part}": tensor.detach().float().cpu().numpy()
        for name, network in networks.items()
        for part, tensor in network.named_parameters()
    }
    report = {**{f"{name}_at_start": value for name, value in before.items()}, **after}
    return Trained(parameters={"tokens": LENGTH}, arrays=arrays, report=report)


class TSNetwork(torch.nn.Module):
    """x ↦ relu(x A + a) B + b; close to the constant ``start`` before training."""

    def __init__(self, width: int, start: float, seed: int) -> None:
        super().__init__()
        source = generator(seed, BEYOND_STEPS)
        self.A = torch.nn.Parameter(torch.randn(width, HIDDEN, generator=source) / math.sqrt(width))
        self.a = torch.nn.Parameter(torch.zeros(HIDDEN))
        self.B = torch.nn.Parameter(0.01 * torch.randn(HIDDEN, 1, generator=source) / math.sqrt(HIDDEN))
        self.b = torch.nn.Parameter(torch.tensor([start]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs (…, d_T) to outputs (…)."""
        return (torch.relu(x @ self.A + self.a) @ self.B + self.b).squeeze(-1)


@dataclass(frozen=True)
class _Material:
    """The training data: N texts of T positions.

    ``before`` (N, T) is the token before each position, ``ids`` and ``logits`` (N, T, m) are the position's
    most likely candidates, ``x`` (vocab + 1, d_T) the networks' inputs, ``meanings`` (vocab, d_C) the tokens'
    vectors.
    """

    before: torch.Tensor
    ids: torch.Tensor
    logits: torch.Tensor
    x: torch.Tensor
    meanings: torch.Tensor

    @classmethod
    def of(cls, job: TrainingJob, cached: Mapping[str, NDArray[Any]], device: torch.device) -> _Material:
        workspace = job.workspace
        whitening = load_context_whitening(
            job.encoder, job.info, encoding="composed", k=1, workspace=workspace
        )
        meanings = token_vectors(job.encoder, job.info, whitening=whitening, workspace=workspace)
        x = inputs_of(job.info.embeddings())
        arrays = (cached["before"], cached["ids"], cached["logits"], x, meanings.astype(np.float32))
        return cls(*(torch.from_numpy(np.array(array)).to(device) for array in arrays))


class TSLearner(TorchLearner):
    """Both networks and their optimizer; a step is one MGDA step on a batch of texts under a fresh key."""

    def __init__(self, networks: torch.nn.ModuleDict, material: _Material, *, seed: int) -> None:
        self._parameters = list(networks.parameters())
        self._adam = torch.optim.Adam(self._parameters, lr=RATE)
        super().__init__({"networks": networks}, {"adam": self._adam})
        self._networks, self._material, self._seed = networks, material, seed

    def step(self, index: int) -> float:
        detect, mean = self._losses(index)
        first = torch.autograd.grad(detect, self._parameters, retain_graph=True)
        second = torch.autograd.grad(mean, self._parameters)
        share = min_norm(first, second)
        for parameter, a, b in zip(self._parameters, first, second, strict=True):
            parameter.grad = share * a + (1.0 - share) * b
        self._adam.step()
        return float((detect + mean).detach())

    @torch.no_grad()
    def judge(self) -> dict[str, float]:
        """z of `LENGTH` tokens, cosine, and mean and deviation of γ and δ, on batches that no step draws."""
        losses = np.array([[float(loss) for loss in self._losses(BEYOND_STEPS + i)] for i in range(_JUDGED)])
        gamma, delta = self._gamma_delta(self._material.before)
        z, cosine = -losses.mean(axis=0)
        return {
            "z": z,
            "cosine": cosine,
            "gamma": float(gamma.mean()),
            "gamma_deviation": float(gamma.std()),
            "delta": float(delta.mean()),
            "delta_deviation": float(delta.std()),
        }

    def _gamma_delta(self, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """γ and δ after tokens, both of their shape."""
        x = self._material.x[before]
        gamma = LEAST + (1.0 - 2.0 * LEAST) * torch.sigmoid(self._networks["gamma"](x))
        return gamma, softplus(self._networks["delta"](x))

    def _losses(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """L_D and L_S of one batch under a fresh key."""
        source, material = generator(self._seed, index), self._material
        chosen = torch.randperm(len(material.before), generator=source)[:BATCH].to(material.before.device)
        ids, logits = material.ids[chosen].long(), material.logits[chosen].float()
        gamma, delta = self._gamma_delta(material.before[chosen])
        u, v = (_uniforms(logits.shape, source).to(logits.device) for _ in range(2))
        green = torch.sigmoid((torch.logit(gamma)[..., None] - torch.logit(u)) / TAU)
        marked = logits + delta[..., None] * green
        found = (marked.softmax(dim=-1) * green).sum(dim=-1)
        z = (found - gamma).sum(dim=1) / (gamma * (1.0 - gamma)).sum(dim=1).sqrt()
        noise = -(-v.log()).log()
        ours, theirs = (self._meaning(ids, _drawn(each + noise)) for each in (marked, logits))
        return -z.mean(), -cosine_similarity(ours, theirs.detach(), dim=-1).mean()

    def _meaning(self, ids: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """The sum of the drawn tokens' vectors: (batch, T, m) to (batch, d_C)."""
        counts = drawn.new_zeros((len(ids), len(self._material.meanings)))
        counts = counts.scatter_add(1, ids.flatten(1), drawn.flatten(1))
        return counts @ self._material.meanings


def min_norm(first: tuple[torch.Tensor, ...], second: tuple[torch.Tensor, ...]) -> float:
    """The weight of the first gradient in the shortest convex combination of two (MGDA for two losses)."""
    a, b = (torch.cat([part.flatten() for part in each]).double() for each in (first, second))
    apart = float((a - b) @ (a - b))
    return min(max(float((b - a) @ b) / apart, 0.0), 1.0) if apart > 0.0 else 0.5


def _drawn(noisy: torch.Tensor) -> torch.Tensor:
    """One-hot argmax of noisy logits (batch, T, m), with the gradient of a softmax."""
    soft = (noisy / _DRAW_TAU).softmax(dim=-1)
    hard = torch.zeros_like(soft).scatter(-1, noisy.argmax(dim=-1, keepdim=True), 1.0)
    return hard + (soft - soft.detach())


def _uniforms(shape: torch.Size, source: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=source).clamp_(1e-6, 1.0 - 1e-6)


def likely_candidates(job: TrainingJob, texts: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The host's `CANDIDATES` most likely tokens at every position of the training texts."""
    tokenized = job.info.tokenizer.encode(texts)
    rows = [text.ids[:LENGTH] for text in tokenized if len(text.ids) >= LENGTH][:TEXTS]
    if len(rows) < BATCH:
        raise InputError(
            f"{len(rows)} training texts have {LENGTH} tokens or more, {BATCH} are needed: add longer ones"
        )
    ids, logits = [], []
    width = min(CANDIDATES, job.info.vocab_size)
    host = cast(LanguageModel, job.open_host())
    for done, whole in enumerate(host.next_logits([""] * len(rows), rows)):
        job.progress("reading the training texts", done, len(rows))
        best = whole[1:].topk(width, dim=-1)
        ids.append(best.indices.int().cpu().numpy())
        logits.append(best.values.half().cpu().numpy())
    job.progress("reading the training texts", len(rows), len(rows))
    before = np.array([row[:-1] for row in rows], dtype=np.int64)
    return {"before": before, "ids": np.stack(ids), "logits": np.stack(logits)}
