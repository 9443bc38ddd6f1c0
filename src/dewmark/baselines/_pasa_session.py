"""Marking with PASA: a keyed race picks the cluster of the next token, the host picks the token within."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dewmark.baselines._pasa import auxiliary, cluster_masses
from dewmark.baselines._prf import to_uniforms
from dewmark.baselines._reweight_session import ReweightSession
from dewmark.embeddings.contexts import ABSENT

if TYPE_CHECKING:
    from dewmark.baselines.pasa import BoundPASA

__all__ = ["ClusterSession"]


class ClusterSession(ReweightSession):
    """Leaves the host one cluster to choose from, or what the cut at α left over.

    A row whose history of clusters occurred before in the text is left to the host.
    """

    def __init__(
        self, bound: BoundPASA, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._alpha = bound.scheme.alpha
        self._count = bound.scheme.clusters
        self._clusters = torch.from_numpy(bound.clusters)

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Windows (batch, h) of ids and logits (batch, vocab) to marked logits, same shape."""
        if self._clusters.device != windows.device:
            self._clusters = self._clusters.to(windows.device)
        histories = self._clusters[windows.clamp(min=0)].masked_fill(windows == ABSENT, ABSENT)
        return super().mark(histories, scores)

    def reweight(
        self, contexts: torch.Tensor, logits: torch.Tensor, candidates: torch.Tensor | None
    ) -> torch.Tensor:
        """Histories (batch, h) and logits (batch, m) of the candidates to new logits, same shape."""
        table = self._clusters.to(logits.device)
        clusters = table.expand(len(logits), -1) if candidates is None else table[candidates]
        masses = cluster_masses(logits, clusters, self._count)
        law = auxiliary(masses, self._alpha)
        # the race of `sampling`, on probabilities: P(ζ) = law(ζ) over keys
        zeta = (law / to_uniforms(self._hash.words(contexts)).log_().neg_()).argmax(dim=1, keepdim=True)
        chosen = torch.zeros_like(masses).scatter_(1, zeta.clamp(max=self._count), 1.0)
        left_over = (masses - self._alpha).clamp(min=0.0) / masses
        factors = torch.where(zeta > self._count, left_over.nan_to_num(0.0), chosen)
        return logits + factors.log().gather(1, clusters)
