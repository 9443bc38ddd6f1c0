"""What PASA needs beside keys: clusters of tokens, their masses, and the law of a weighted count of matches.

Boundary: public quantities only; no key enters here.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from dewmark.arrays import F32, F64, I64
from dewmark.baselines._tokens import markable_ids
from dewmark.embeddings.token_tables import token_table
from dewmark.errors import ArtifactError, ConfigError
from dewmark.storage import load_bundle, save_bundle
from dewmark.workspace import HostInfo, Workspace

if TYPE_CHECKING:
    import torch

__all__ = ["auxiliary", "bernoulli_law", "cluster_masses", "token_clusters"]


_FITTED = 16_384  # centres are fitted to the first ids, which tokenizers give to the most frequent pieces
_OFFSET, _TEMPER = 10.0, 0.5  # weights (rank + 10)^-0.5
_ROUNDS = 30
_DIGITS = 4
_ROWS_AT_ONCE = 4096


def token_clusters(host: HostInfo, count: int, workspace: Workspace) -> I64:
    """The cluster of every id, (vocab_size,): 0 … count − 1 by meaning, ``count`` for ids without text.

    Spherical k-means of the host's whitened input embeddings, from a fixed seed; cached. No key enters.
    """
    name = f"1|{host.identity}|{count}"
    path = workspace.cache / "clusters" / hashlib.sha256(name.encode()).hexdigest()[:20]
    try:
        return np.asarray(load_bundle(path).arrays["clusters"], dtype=np.int64)
    except (ArtifactError, KeyError):
        pass
    table = token_table(host, whiten=True, donor=None, workspace=workspace)
    markable = markable_ids(host) & np.any(table != 0.0, axis=1)
    most = min(int(markable.sum()), _FITTED)
    if count > most:
        raise ConfigError(f"clusters must not exceed {most} for {host.name}, got {count}")
    clusters = np.full(host.vocab_size, count, dtype=np.int64)
    clusters[markable] = _k_means(np.asarray(table[markable], dtype=np.float32), count, workspace)
    arrays = {"clusters": clusters.astype(np.uint32)}
    save_bundle(path, meta={"host": host.identity, "clusters": count}, arrays=arrays)
    return clusters


def _k_means(rows: F32, count: int, workspace: Workspace) -> I64:
    """The nearest of ``count`` mean directions for each unit row (n, d): (n,).

    In float64 and with rounded means, so that no machine's own rounding decides where a token goes. A row
    weighs as much as its token is frequent, by its place among the ids (Zipf's law, tempered).
    """
    fitted = rows[:_FITTED]
    weights = (np.arange(len(fitted)) + _OFFSET) ** -_TEMPER
    rng = np.random.default_rng(0)
    first = rng.choice(len(fitted), size=count, replace=False, p=weights / weights.sum())
    centres = fitted[first].astype(np.float64)
    nearest, likeness = _assign(fitted, centres)
    for turn in range(_ROUNDS):
        workspace.progress("clustering the vocabulary", turn, _ROUNDS)
        empty = np.flatnonzero(np.bincount(nearest, minlength=count) == 0)
        if len(empty):  # they start again where rows fit worst
            nearest[np.argsort(likeness, kind="stable")[: len(empty)]] = empty
        order = np.argsort(nearest, kind="stable")
        starts = np.minimum(np.searchsorted(nearest[order], np.arange(count)), len(order) - 1)
        sums = np.add.reduceat(fitted[order] * weights[order, None], starts, axis=0)
        centres = (sums / np.linalg.norm(sums, axis=1, keepdims=True)).round(_DIGITS)
        before, (nearest, likeness) = nearest, _assign(fitted, centres)
        if np.array_equal(nearest, before):
            break
    workspace.progress("clustering the vocabulary", _ROUNDS, _ROUNDS)
    return _assign(rows, centres)[0]


def _assign(rows: F32, centres: F64) -> tuple[I64, F64]:
    """For each row (n, d) which centre (count, d) is nearest, and its product with it: (n,) both."""
    nearest, likeness = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows))
    for i in range(0, len(rows), _ROWS_AT_ONCE):
        products = rows[i : i + _ROWS_AT_ONCE].astype(np.float64) @ centres.T
        nearest[i : i + _ROWS_AT_ONCE] = products.argmax(axis=1)
        likeness[i : i + _ROWS_AT_ONCE] = products.max(axis=1)
    return nearest, likeness


def cluster_masses(logits: torch.Tensor, clusters: torch.Tensor, count: int) -> torch.Tensor:
    """Logits (batch, m) of tokens whose clusters are (batch, m) to masses Q (batch, count + 1), float32."""
    masses = logits.new_zeros((len(logits), count + 1))
    return masses.scatter_add_(1, clusters, logits.softmax(dim=1))


def auxiliary(masses: torch.Tensor, alpha: float) -> torch.Tensor:
    """The law of ζ, (batch, n + 1), from masses Q (batch, n): min(Q, α), and last the overflow Σ (Q − α)⁺."""
    import torch

    overflow = (masses - alpha).clamp(min=0.0).sum(dim=1, keepdim=True)
    return torch.cat((masses.clamp(max=alpha), overflow), dim=1)


def bernoulli_law(levels: I64, chances: F64) -> F64:
    """The probabilities of Σ n_t B_t = 0, 1, …, Σ n_t: whole n_t (N,), independent B_t ~ Bernoulli(q_t)."""
    law = np.zeros(int(levels.sum()) + 1)
    law[0], top = 1.0, 0
    for n, q in zip(levels.tolist(), chances.tolist(), strict=True):
        raised = q * law[: top + 1]
        law[: top + 1] *= 1.0 - q
        law[n : n + top + 1] += raised
        top += n
    return law
