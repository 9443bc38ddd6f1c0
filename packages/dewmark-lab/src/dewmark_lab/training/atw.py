"""Training of ATW's semantic network: similar texts get similar signs, others independent ones.

A step takes a batch of prefixes of texts, each in two views: two random subsets of its tokens (words), the
second from a prefix up to `GROWTH` tokens longer. Encoded views are made once, a few of each text. With s =
tanh(T(e)) and c the batch's median cosine between different texts, it reduces

    distance      (cos(s_i, s_j) − max(0, (cos(e_i, e_j) − c) / (1 − c)))², mean over pairs i ≠ j
    balance       the mean squares of s's column and row means: half of the signs are +
    invariance    1 − cos(s_i, s_i'), between the two views of each text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F32, I64
from dewmark.core.whitening import Whitening, normalize_rows
from dewmark.encoders.contexts import load_context_whitening, token_vectors
from dewmark.errors import InputError
from dewmark.models.devices import torch_device
from dewmark_lab.schemes.learned.atw import HIDDEN, OUTPUTS
from dewmark_lab.training.job import ENCODED, Trained, TrainingJob
from dewmark_lab.training.loop import BEYOND_STEPS, TorchLearner, rng, run_steps
from dewmark_lab.training.sir import ResidualNetwork

STEPS = 1000
TEXTS, BATCH, RATE = 256, 64, 1e-3
SHORTEST, GROWTH = 10, 10  # tokens
KEPT = (0.5, 1.0)  # range of the share of tokens that a view keeps
CUTS = 8  # prefixes of a text whose views are encoded

Views = Callable[[np.random.Generator], tuple[F32, F32]]
"""Two views of a batch of prefixes of different texts, both (batch, d_C), unit rows."""


def train(job: TrainingJob) -> Trained:
    """Train the network for an encoder, on a host's tokens or on encoded texts."""
    if job.contexts == ENCODED:
        views, mean = _encoded_views(job)
        return _trained(job, views, {"mean": mean}, {"contexts": ENCODED})
    workspace = job.workspace
    whitening = load_context_whitening(job.encoder, job.info, encoding="composed", k=1, workspace=workspace)
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
    return _trained(job, _composed_views(table, texts), {"mean": whitening.mean, "matrix": matrix}, {})


def _trained(
    job: TrainingJob, views: Views, arrays: dict[str, NDArray[Any]], parameters: dict[str, str]
) -> Trained:
    network = SignNetwork(job.encoder.dim, job.seed).to(torch_device(job.device))
    learner = ATWLearner(network, views, seed=job.seed)
    loss = run_steps(learner, job, steps=job.steps or STEPS)
    report = {"loss": loss, **learner.judge()}
    return Trained(parameters=parameters, arrays={**arrays, **network.arrays()}, report=report)


def _encoded_views(job: TrainingJob) -> tuple[Views, F32]:
    """Views of the training texts, encoded once, and the mean of their unit vectors (d_C,)."""
    texts = [words for text in job.texts_for(TEXTS) if len(words := text.split()) >= 2 * SHORTEST]
    if len(texts) < 4:
        raise InputError(
            f"{len(texts)} training texts have {2 * SHORTEST} words or more, 4 are needed: add longer ones"
        )
    source = rng(job.seed, BEYOND_STEPS + 1)
    views = [
        " ".join(word for word, kept in zip(words, _kept(end, source), strict=False) if kept)
        for words in texts
        for _ in range(CUTS)
        for end in _ends(len(words), source)
    ]
    cached = job.cached("views", lambda: {"vectors": job.encode("encoding views", views)})
    unit = normalize_rows(cached["vectors"])
    mean = unit.mean(axis=0)
    pool = normalize_rows(unit - mean).reshape(len(texts), CUTS, 2, -1)

    def draw(source: np.random.Generator) -> tuple[F32, F32]:
        chosen = source.choice(len(pool), size=min(BATCH, len(pool)), replace=False)
        pairs = pool[chosen, source.integers(CUTS, size=len(chosen))]
        return pairs[:, 0], pairs[:, 1]

    return draw, mean


def _composed_views(table: NDArray[Any], texts: list[I64]) -> Views:
    """Views of texts as ids, from a table of the tokens' vectors (vocab, d_C)."""
    used, index = np.unique(np.concatenate(texts), return_inverse=True)
    rows = table[used].astype(np.float32)
    numbered = np.split(index, np.cumsum([len(text) for text in texts])[:-1])  # as rows

    def draw(source: np.random.Generator) -> tuple[F32, F32]:
        views: tuple[list[F32], list[F32]] = ([], [])
        for i in source.choice(len(texts), size=min(BATCH, len(texts)), replace=False):
            for view, end in zip(views, _ends(len(texts[i]), source), strict=True):
                view.append(rows[numbered[i][:end][_kept(end, source)]].sum(axis=0))
        first, second = (normalize_rows(np.stack(view)) for view in views)
        return first, second

    return draw


def _ends(length: int, source: np.random.Generator) -> tuple[int, int]:
    """Where the two views of a random prefix end."""
    cut = int(source.integers(SHORTEST, length - SHORTEST + 1))
    return cut, cut + int(source.integers(GROWTH + 1))


def _kept(end: int, source: np.random.Generator) -> NDArray[np.bool_]:
    """Which of the first ``end`` tokens a view keeps, at least one."""
    kept: NDArray[np.bool_] = source.random(end) < source.uniform(*KEPT)
    kept[source.integers(end)] = True
    return kept


class SignNetwork(ResidualNetwork):
    """d_C → 512 → two residual blocks → 384."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__(width, seed, hidden=HIDDEN, outputs=OUTPUTS)

    def forward(self, e: torch.Tensor) -> torch.Tensor:
        """Unit vectors (N, d_C) to T, (N, 384)."""
        return self.after_input(torch.relu(self.layer("input", e * math.sqrt(e.shape[1]))))


class ATWLearner(TorchLearner):
    """The network and its optimizer; a step sees two views of a batch of prefixes."""

    def __init__(self, network: SignNetwork, views: Views, *, seed: int) -> None:
        super().__init__({"network": network}, {"adam": torch.optim.Adam(network.parameters(), lr=RATE)})
        self._network = network
        self._device = next(network.parameters()).device
        self._make_views = views
        self._seed = seed

    def step(self, index: int) -> float:
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
        first, second = (torch.from_numpy(view).to(self._device) for view in self._make_views(source))
        return first, second


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
