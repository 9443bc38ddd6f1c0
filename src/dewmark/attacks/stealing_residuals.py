"""A sharper look at marked text, for an attacker who runs the victim's own host: t − E_host[t | before].

The host says which tokens could have stood in a place. Subtracting their mean takes out what the text is
about, which base text can only do on average, and with it most of the noise. Host tokens only: which words a
host would write is not asked here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dewmark.attacks.stealing_dew import Moments, sum_moments
from dewmark.dew.reading import Reader, TokenReader
from dewmark.errors import ConfigError
from dewmark.hosts.base import Host
from dewmark.workspace import Follower

if TYPE_CHECKING:
    import torch

__all__ = ["residual_moments"]

_CANDIDATES = 256  # the likeliest tokens stand for all


def residual_moments(host: Host, reader: Reader, texts: Sequence[str]) -> Moments:
    """The moments of marked texts, each unit less what the host expected in its place."""
    if not isinstance(reader, TokenReader) or not isinstance(host, Follower):
        raise ConfigError("expectation host needs units=token and a transformers host: use expectation base")
    return sum_moments(_each(host, reader, texts))


def _each(host: Follower, reader: TokenReader, texts: Sequence[str]) -> Iterator[Moments]:
    import torch

    table: torch.Tensor | None = None
    cut = [text for text in reader.tokenize(texts) if text.ids]
    (nothing,) = reader.tokenize([""])
    for text, logits in zip(cut, host.next_logits([""] * len(cut), [text.ids for text in cut]), strict=True):
        if table is None:
            table = torch.from_numpy(np.array(reader.token_rows, dtype=np.float32)).to(logits.device)
        likely = logits.softmax(dim=-1).topk(min(_CANDIDATES, logits.shape[1]), dim=-1)
        expected = torch.einsum("lm,lmd->ld", likely.values, table[likely.indices]).cpu().numpy()
        reading = reader.read([text], [nothing])
        assert reading.context_rows is not None
        (pairs,) = reading.texts
        scored = np.flatnonzero(pairs.positions >= 0)
        _, first = np.unique(pairs.positions[scored], return_index=True)  # where each pair occurs first
        T = reading.token_rows[pairs.tokens] - expected[scored[first]]
        yield Moments.of(T, reading.context_rows[pairs.windows])
