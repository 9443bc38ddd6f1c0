"""Training of ATW's semantic network: similar texts get similar signs, others independent ones.

A text's vector e is the normalized mean of its tokens' whitened vectors, as in
`dewmark.baselines.learned.atw`. A step takes a batch of prefixes of texts, each in two views: two random
subsets of its tokens, the second from a prefix up to `GROWTH` tokens longer, as after an edit or a few more
steps. With s = tanh(T(e)) and c the batch's median cosine between different texts, it reduces

    distance      (cos(s_i, s_j) − max(0, (cos(e_i, e_j) − c) / (1 − c)))², mean over pairs i ≠ j
    balance       the mean squares of s's column and row means: half of the signs are +
    invariance    1 − cos(s_i, s_i'), between the two views of each text.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F32, I64
from dewmark.baselines.learned.atw import HIDDEN, OUTPUTS
from dewmark.core.whitening import Whitening, normalize_rows
from dewmark.encoders.contexts import load_context_whitening, token_vectors
from dewmark.errors import InputError
from dewmark.lab.training.job import Job, Trained
from dewmark.lab.training.loop import BEYOND_STEPS, TorchLearner, rng, run_steps
from dewmark.lab.training.sir import ResidualNetwork
from dewmark.models.devices import torch_device

__all__ = ["SignNetwork", "losses", "train"]

STEPS = 1000
TEXTS, BATCH, RATE = 256, 64, 1e-3
SHORTEST, GROWTH = 10, 10  # tokens
KEPT = (0.5, 1.0)  # range of the share of tokens that a view keeps


def train(job: Job) -> Trained:
    """Train the network for an encoder on a host's tokens."""
    workspace = job.workspace
    whitening = load_context_whitening(
        "default", encoder=job.encoder, host=job.info, encoding="composed", k=1, workspace=workspace
    )
    # the artifact stores half precision: train with exactly that
    matrix = whitening.matrix.astype(np.float16)
    whitening = Whitening(whitening.mean, matrix.astype(np.float32))
    table = token_vectors(job.encoder, job.info, whitening=whitening, workspace=workspace)
    tokenized = job.info.tokenizer.encode(job.texts_for(TEXTS))
    texts = [np.array(text.ids) for text in tokenized if len(text.ids) >= 2 * SHORTEST]
    if len(texts) < 4:
        raise InputError(
            f"{len(texts)} training texts have {2 * SHORTEST} tokens or more, 4 are needed: add longer ones"
        )
    network = SignNetwork(job.encoder.dim, job.seed).to(torch_device(job.device))
    learner = Learner(network, table, texts, seed=job.seed)
    loss = run_steps(learner, job, steps=job.steps or STEPS)
    arrays: dict[str, NDArray[Any]] = {"mean": whitening.mean, "matrix": matrix, **network.arrays()}
    return Trained(parameters={}, arrays=arrays, report={"loss": loss, **learner.judge()})


class SignNetwork(ResidualNetwork):
    """d_C → 512 → two residual blocks → 384."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__(width, seed, hidden=HIDDEN, outputs=OUTPUTS)

    def forward(self, e: torch.Tensor) -> torch.Tensor:
        """Unit vectors (N, d_C) to T, (N, 384)."""
        return self.after_input(torch.relu(self.layer("input", e * math.sqrt(e.shape[1]))))


class Learner(TorchLearner):
    """The network and its optimizer; a step sees two views of a batch of prefixes."""

    def __init__(self, network: SignNetwork, table: NDArray[Any], texts: list[I64], *, seed: int) -> None:
        super().__init__({"network": network}, {"adam": torch.optim.Adam(network.parameters(), lr=RATE)})
        self._network = network
        self._device = next(network.parameters()).device
        used, index = np.unique(np.concatenate(texts), return_inverse=True)
        self._rows = table[used].astype(np.float32)
        self._texts = np.split(index, np.cumsum([len(text) for text in texts])[:-1])  # as rows of _rows
        self._seed = seed

    def step(self, index: int) -> float:
        """One step; returns the sum of the three losses."""
        first, second = self._views(rng(self._seed, index))
        return self.minimize(
            torch.stack(losses(first, second, self._network(first), self._network(second))).sum()
        )

    @torch.no_grad()
    def judge(self) -> dict[str, float]:
        """How often the signs of two views agree, and the correlation of signs between different texts."""
        first, second = self._views(rng(self._seed, BEYOND_STEPS))
        a, b = (torch.sign(self._network(view)) for view in (first, second))
        other = (a @ b.T / a.shape[1]).fill_diagonal_(0.0).sum() / (len(a) * (len(a) - 1))
        return {"views_agree": float((a == b).float().mean()), "texts_correlate": float(other)}

    def _views(self, source: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Two views of a batch of prefixes, both (batch, d_C), unit rows."""
        chosen = source.choice(len(self._texts), size=min(BATCH, len(self._texts)), replace=False)
        views: tuple[list[F32], list[F32]] = ([], [])
        for text in (self._texts[i] for i in chosen):
            cut = int(source.integers(SHORTEST, len(text) - SHORTEST + 1))
            for view, end in zip(views, (cut, cut + int(source.integers(GROWTH + 1))), strict=True):
                kept = source.random(end) < source.uniform(*KEPT)
                kept[source.integers(end)] = True
                view.append(self._rows[text[:end][kept]].sum(axis=0))
        first, second = (torch.from_numpy(normalize_rows(np.stack(view))) for view in views)
        return first.to(self._device), second.to(self._device)


def losses(
    e: torch.Tensor, e_view: torch.Tensor, T: torch.Tensor, T_view: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Distance, balance and invariance losses of vectors (N, d_C) and outputs (N, K) in two views."""
    s, s_view = torch.tanh(T), torch.tanh(T_view)
    unit, unit_view = (torch.nn.functional.normalize(each, dim=-1) for each in (s, s_view))
    apart = ~torch.eye(len(e), dtype=torch.bool, device=e.device)
    cosine = (e @ e_view.T)[apart]
    usual = cosine.median()
    wanted = ((cosine - usual) / (1.0 - usual)).clamp(min=0.0)
    distance = ((unit @ unit_view.T)[apart] - wanted).square().mean()
    balance = s.mean(dim=0).square().mean() + s.mean(dim=1).square().mean()
    invariance = 1.0 - (unit * unit_view).sum(dim=-1).mean()
    return distance, balance, invariance
