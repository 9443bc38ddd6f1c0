"""Training of SIR's transform network: similar contexts get similar signs, others independent ones.

As the authors train it. With e and e' the embeddings of two contexts, T and T' their outputs, and m the
median cosine of all pairs of contexts, a step takes two batches of 32 contexts and reduces

    | tanh(20 (cos(e, e') − m)) − cos(T, T') |, mean over the 32 pairs     similarity is kept, the rest spread
    + 0.1 (sums of T's row means² and column means², of both batches)      signs are balanced
    + relu(0.05 − |T|), mean over the outputs below 0.05, of both batches  outputs stay away from zero

by gradient descent with rate 0.006, a tenth of it every 200 passes over the contexts. The embeddings have
the length √d here; the scheme's own have length 1, so the first layer is stored √d times as large.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F16, F32, I64
from dewmark.core.whitening import normalize_rows
from dewmark.encoders.contexts import ordinary_texts
from dewmark.errors import InputError
from dewmark.models.devices import torch_device
from dewmark_lab.schemes.learned.sir import HIDDEN, OUTPUTS, context_of, words_of
from dewmark_lab.training.job import Trained, TrainingJob
from dewmark_lab.training.loop import BEYOND_STEPS, TorchLearner, generator, rng, run_steps

EPOCHS, BATCH = 2000, 32
RATE, DECAY, EPOCHS_PER_RATE = 0.006, 0.2, 200
TEXTS, PREFIXES = 512, 5  # training texts, and contexts from each: the authors have 2,000 to 10,000
CHUNK, REACH = 10, 20  # the scheme's defaults
GAIN, OFF_ZERO, BALANCE = 20.0, 0.05, 0.1


def train(job: TrainingJob) -> Trained:
    """Train the network for an encoder on prefixes of texts."""
    arrays, report = fit(job)
    return Trained(parameters={"outputs": OUTPUTS, "hidden": HIDDEN}, arrays=arrays, report=report)


def fit(job: TrainingJob) -> tuple[dict[str, NDArray[Any]], dict[str, float]]:
    """Train the network; returns its arrays and the report."""
    contexts, groups = contexts_of(job.texts_for(TEXTS, least=BATCH), seed=job.seed)
    encoded = job.cached("contexts", lambda: {"vectors": job.encode("encoding contexts", contexts)})
    vectors = normalize_rows(encoded["vectors"])
    mean = vectors.mean(axis=0)
    network = TransformNetwork(job.encoder.dim, job.seed).to(torch_device(job.device))
    learner = SIRLearner(network, normalize_rows(vectors - mean), groups, seed=job.seed)
    steps = job.steps or EPOCHS * learner.steps_per_epoch
    loss = run_steps(learner, job, steps=steps, description="training the network")
    return {"mean": mean, **network.arrays()}, {"loss": loss, "steps": steps, **learner.judge()}


def contexts_of(texts: list[str], *, seed: int) -> tuple[list[str], I64]:
    """Contexts as the scheme sees them, and the number of each context's text, (N,).

    They are prefixes of every text, and pairs of the package's multilingual sentences.
    """
    source = rng(seed, BEYOND_STEPS)
    contexts: list[str] = []
    groups: list[int] = []
    for group, text in enumerate(texts):
        words = words_of(text)
        whole = len(words) // CHUNK
        for count in source.permutation(whole)[:PREFIXES] + 1:
            contexts.append(context_of(words, int(count), size=CHUNK, reach=REACH))
            groups.append(group)
    if len(set(groups)) < BATCH:
        raise InputError(
            f"{len(set(groups))} training texts have {CHUNK} words or more, {BATCH} are needed: add texts"
        )
    for ordinary in ordinary_texts():
        lines = ordinary.splitlines()
        contexts += [" ".join(lines[i : i + 2]) for i in range(0, len(lines), 2)]
    own = range(len(texts), len(texts) + len(contexts) - len(groups))
    return contexts, np.array([*groups, *own], dtype=np.int64)


class ResidualNetwork(torch.nn.Module):
    """d → hidden → two residual blocks → outputs; subclasses define what enters the first layer."""

    def __init__(self, width: int, seed: int, *, hidden: int, outputs: int) -> None:
        super().__init__()
        sizes = {"input": (width, hidden), "first": (hidden, hidden), "second": (hidden, hidden)}
        source = generator(seed, BEYOND_STEPS)
        for name, (rows, columns) in {**sizes, "output": (hidden, outputs)}.items():
            weights = torch.randn(rows, columns, generator=source) / math.sqrt(rows)
            self.register_parameter(f"{name}_W", torch.nn.Parameter(weights))
            self.register_parameter(f"{name}_b", torch.nn.Parameter(torch.zeros(columns)))

    def arrays(self) -> dict[str, F16]:
        """Weights and biases by the names that the schemes read."""
        parameters = ((name.replace("_", "."), tensor) for name, tensor in self.named_parameters())
        return {name: tensor.detach().half().cpu().numpy() for name, tensor in parameters}

    def layer(self, name: str, h: torch.Tensor) -> torch.Tensor:
        """Apply one affine layer to rows (N, ·)."""
        return h @ self.get_parameter(f"{name}_W") + self.get_parameter(f"{name}_b")

    def after_input(self, h: torch.Tensor) -> torch.Tensor:
        """The layers after the first: (N, hidden) to (N, outputs)."""
        for name in ("first", "second"):
            h = h + torch.relu(self.layer(name, h))
        return self.layer("output", h)


class TransformNetwork(ResidualNetwork):
    """d_C → 500 → two residual blocks → 300."""

    def __init__(self, width: int, seed: int, *, hidden: int = HIDDEN, outputs: int = OUTPUTS) -> None:
        super().__init__(width, seed, hidden=hidden, outputs=outputs)

    def forward(self, e: torch.Tensor) -> torch.Tensor:
        """Centred unit embeddings (N, d_C) to T (N, K)."""
        return self.after_input(self.layer("input", e * math.sqrt(e.shape[1])))

    def arrays(self) -> dict[str, F16]:
        """Weights and biases for unit embeddings."""
        found = super().arrays()
        W = self.get_parameter("input_W")
        return {**found, "input.W": (W.detach() * math.sqrt(W.shape[0])).half().cpu().numpy()}


class SIRLearner(TorchLearner):
    """The network and its optimizer; ``groups`` (N,) are the numbers of the contexts' (N, d_C) texts."""

    def __init__(self, network: TransformNetwork, contexts: F32, groups: I64, *, seed: int) -> None:
        self._descent = torch.optim.SGD(network.parameters(), lr=RATE, weight_decay=DECAY)
        super().__init__({"network": network}, {"sgd": self._descent})
        self._network = network
        self._contexts = torch.from_numpy(contexts).to(next(network.parameters()).device)
        self._median = (self._contexts @ self._contexts.T).median()
        self._groups, self._seed = groups, seed
        self._order: tuple[int, torch.Tensor] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """The pairs of batches in one pass over the contexts."""
        return max(len(self._contexts) // (2 * BATCH), 1)

    def step(self, index: int) -> float:
        epoch, at = divmod(index, self.steps_per_epoch)
        for group in self._descent.param_groups:
            group["lr"] = RATE * 0.1 ** (epoch // EPOCHS_PER_RATE)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, torch.from_numpy(rng(self._seed, epoch).permutation(len(self._contexts)))
        rows = self._contexts[self._order[1][2 * BATCH * at : 2 * BATCH * (at + 1)]]
        half = len(rows) // 2
        first, second = rows[:half], rows[half : 2 * half]
        found = losses(first, second, self._network(first), self._network(second), self._median)
        return self.minimize(torch.stack(found).sum())

    @torch.no_grad()
    def judge(self) -> dict[str, float]:
        """Mean products of signs between prefixes of the same text, and between different texts."""
        T = self._network(self._contexts)
        signs = torch.where(T - T.mean(dim=1, keepdim=True) >= 0.0, 1.0, -1.0)
        product = (signs @ signs.T / signs.shape[1]).cpu().numpy()
        same = self._groups[:, None] == self._groups[None, :]
        np.fill_diagonal(product, np.nan)
        return {
            "same_text": float(np.nanmean(product[same])),
            "other_texts": float(np.nanmean(product[~same])),
            "spread": float(np.nanstd(product[~same])),
        }


def losses(
    e: torch.Tensor, e_other: torch.Tensor, T: torch.Tensor, T_other: torch.Tensor, median: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Similarity, balance and off-zero losses of N pairs of embeddings (N, d_C) and outputs (N, K)."""
    cosine = torch.nn.functional.cosine_similarity
    similarity = (torch.tanh(GAIN * (cosine(e, e_other) - median)) - cosine(T, T_other)).abs().mean()
    balance = BALANCE * sum(each.mean(dim=axis).square().sum() for each in (T, T_other) for axis in (0, 1))
    off_zero = torch.zeros_like(similarity)
    for each in (T, T_other):
        near = torch.relu(OFF_ZERO - each.abs())
        off_zero = off_zero + near.sum() / (near > 0.0).sum().clamp(min=1)
    return similarity, torch.as_tensor(balance), off_zero
