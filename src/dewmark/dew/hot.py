"""The bias mark on a CUDA device: what a step costs beside the host is two small kernels.

`fused` is the quick way through one step of an ordinary session. `GraphMark` is the same mark with buffers
of fixed shape, for decoding loops that are captured in CUDA graphs: `observe` and `read` depend on the last
tokens alone, so a loop runs them beside the host's forward pass, and only `mark_` waits for the logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from dewmark.dew.bound import BoundDEW
    from dewmark.dew.channels import DeviceTables
    from dewmark.dew.scheme import DEW

__all__ = ["GraphMark", "can_fuse", "fused"]


def can_fuse(scheme: DEW, device: torch.device) -> bool:
    """Whether the kernels do this scheme's step: a fixed number of candidates, on a GPU with Triton."""
    if device.type != "cuda" or scheme.sampler != "bias" or scheme.nucleus is not None:
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def fused(
    scheme: DEW, scores: torch.Tensor, *, Q: torch.Tensor, contexts: torch.Tensor, G: torch.Tensor, n: int
) -> torch.Tensor:
    """Marked logits (batch, vocab) for contexts e_C (batch, d_C) of any length; the logits given stay."""
    workspace = _workspace(scheme, *scores.shape, device=scores.device)
    return _bias_(scheme, scores.clone(), Q, contexts, contexts @ G, best=workspace, n=n)


def _workspace(scheme: DEW, batch: int, vocab: int, *, device: torch.device) -> torch.Tensor:
    from dewmark.dew.kernels import blocks_of

    m = min(scheme.candidates, vocab)
    return torch.empty(batch, blocks_of(vocab), 1 << (m - 1).bit_length(), dtype=torch.int64, device=device)


def _bias_(
    scheme: DEW,
    scores: torch.Tensor,
    Q: torch.Tensor,
    contexts: torch.Tensor,
    products: torch.Tensor,
    *,
    best: torch.Tensor,
    n: int,
) -> torch.Tensor:
    from dewmark.dew.kernels import bias_top_

    m, strength, gamma = min(scheme.candidates, scores.shape[1]), scheme.lambda_, scheme.gamma
    return bias_top_(scores, Q, contexts, products, best=best, m=m, strength=strength, gamma=gamma, n=n)


class GraphMark:
    """Marks a batch of fixed size with composed contexts; every method can be captured in a CUDA graph.

    ``windows`` (batch, k) are the rows' last ids; write into it when a row begins another text. The id that
    stands for nothing (before a text's start) is ``absent``.
    """

    def __init__(self, scheme: DEW, tables: DeviceTables, *, n: int, batch: int) -> None:
        if tables.context_rows is None:
            raise ConfigError("a mark inside a CUDA graph needs context=composed: no encoder runs there")
        device, (self.absent, width) = tables.Q.device, tables.Q.shape
        self._scheme, self._tables, self._n = scheme, tables, n
        self._rows = tables.context_rows
        self.windows = torch.full((batch, scheme.k), self.absent, device=device)
        self.contexts = torch.zeros(batch, width, device=device)
        self.products = torch.zeros(batch, width, device=device)
        self._best = _workspace(scheme, batch, self.absent, device=device)

    @classmethod
    def of(cls, bound: BoundDEW, *, batch: int, device: torch.device) -> GraphMark:
        """The mark of a bound scheme on a CUDA device."""
        from dewmark.dew.channels import DeviceTables

        scheme = bound.scheme
        if scheme.units != "token" or not can_fuse(scheme, device):
            raise ConfigError(
                "a mark inside a CUDA graph needs units=token, sampler=bias, no nucleus, CUDA, Triton; got "
                f"units={scheme.units} sampler={scheme.sampler} nucleus={scheme.nucleus} on {device}"
            )
        return cls(scheme, DeviceTables.of(bound, device), n=bound.fold.n, batch=batch)

    def observe(self, ids: torch.Tensor) -> None:
        """Append each row's next id (batch,) to its window."""
        ids = ids.masked_fill(self._tables.special[ids], self.absent)
        self.windows.copy_(torch.cat((self.windows[:, 1:], ids.unsqueeze(1)), dim=1))

    def read(self) -> None:
        """Compute the contexts of what follows the windows."""
        torch.sum(self._rows[self.windows], dim=1, dtype=torch.float32, out=self.contexts)
        torch.mm(self.contexts, self._tables.G, out=self.products)

    def mark_(self, scores: torch.Tensor) -> torch.Tensor:
        """Bias the candidates of logits (batch, vocab), in place."""
        Q = self._tables.Q
        return _bias_(self._scheme, scores, Q, self.contexts, self.products, best=self._best, n=self._n)
