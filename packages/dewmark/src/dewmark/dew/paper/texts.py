"""How well each token of the host fits the tokens before it, u, while texts are being written.

With composed contexts a step is one gather of k token vectors, one d_C x d_C product, one gather of m rows
and one dot product, all on the logits' device. Contexts of other kinds are computed on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dewmark.dew.paper.projection import Fold, scale_contexts
from dewmark.dew.paper.reading import TokenReader
from dewmark.dew.sessions import Aligner, Batch, Texts
from dewmark.encoders.contexts import Contexts
from dewmark.sampling import left_padding
from dewmark.text.windows import ABSENT


class TokenAligner(Aligner["TokenText"]):
    """Scores the host's tokens under one key, on one device."""

    def __init__(
        self,
        reader: TokenReader,
        fold: Fold,
        contexts: Contexts,
        device: torch.device,
        *,
        source: np.ndarray | None = None,
    ) -> None:
        special = reader.host.tokenizer.special_ids
        self.k = reader.k
        self.device = device
        self.pad_id = reader.host.tokenizer.pad_id
        self.absent = reader.host.vocab_size  # the id of the extra, empty context row
        self._no_text = [*special, self.absent]
        self._contexts = contexts
        self._n = fold.n
        self._Q = torch.from_numpy(fold.table(reader.token_rows, source=source)).to(device)
        self._G = torch.from_numpy(np.ascontiguousarray(fold.G)).to(device)
        self._context_rows = None
        if contexts.table is not None:
            rows = torch.from_numpy(np.array(contexts.table))  # a copy: the table may be a read-only map
            rows[[i for i in special if i < len(rows)]] = 0.0
            self._context_rows = torch.cat((rows, rows.new_zeros(1, rows.shape[1]))).to(device)

    def begin(self, prompt: Sequence[int]) -> TokenText:
        """Start following a text."""
        return TokenText(prompt, k=self.k)

    def together(self, texts: Sequence[TokenText]) -> TokenTexts:
        """Single texts as those of one step."""
        absent = (self.absent,)
        windows = torch.tensor([absent * (self.k - len(text.tail)) + text.tail for text in texts])
        return TokenTexts(
            self,
            windows.to(self.device),
            lambda: torch.tensor([text.repeated for text in texts], device=self.device).unsqueeze(1),
        )

    def batch(self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> TokenBatch:
        """The texts of a session that begins with prompts (batch, length)."""
        return TokenBatch(self, prompt_ids, attention_mask)

    def alignments(self, contexts: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """u of candidates (batch, m) after contexts (batch, d_C) of any norm."""
        scaled = scale_contexts(contexts, self._G, self._n)
        return (torch.nn.functional.embedding(candidates, self._Q) @ scaled.unsqueeze(-1)).squeeze(-1)

    def contexts(self, windows: torch.Tensor) -> torch.Tensor:
        """e_C (batch, d_C) of windows (batch, k) of ids or `absent`, float32, of any norm."""
        if self._context_rows is not None:
            return self._context_rows[windows].float().sum(dim=1)
        listed = windows.cpu().numpy()
        listed = np.where(np.isin(listed, self._no_text), ABSENT, listed)
        return torch.from_numpy(self._contexts.vectors(listed)).to(windows.device)


@dataclass(frozen=True)
class TokenTexts(Texts):
    """Texts by their windows (batch, k)."""

    aligner: TokenAligner
    windows: torch.Tensor
    find_repeated: Callable[[], torch.Tensor]

    def alignments(
        self, candidates: torch.Tensor, values: torch.Tensor, log_totals: torch.Tensor
    ) -> torch.Tensor:
        """u of the candidates (batch, m)."""
        return self.aligner.alignments(self.aligner.contexts(self.windows), candidates)

    def repeated(self) -> torch.Tensor:
        """Whether each window has occurred before in its text, (batch, 1)."""
        return self.find_repeated()


class TokenBatch(Batch[Texts]):
    """Follows the tokens of a session's texts, without waiting for the device."""

    def __init__(
        self, aligner: TokenAligner, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> None:
        self._aligner = aligner
        self._padding = left_padding(prompt_ids, attention_mask, pad_id=aligner.pad_id)
        self._most_padding = int(self._padding.max()) if len(prompt_ids) else 0  # waits for the device, once

    def texts(self, ids: torch.Tensor) -> TokenTexts:
        """The texts at ids (batch, length)."""
        return TokenTexts(self._aligner, self._windows(ids), lambda: self._repeated(ids))

    def _repeated(self, ids: torch.Tensor) -> torch.Tensor:
        k = self._aligner.k
        if ids.shape[1] <= k:
            return torch.zeros((len(ids), 1), dtype=torch.bool, device=ids.device)
        windows = ids.unfold(1, k, 1)
        return (windows[:, :-1] == windows[:, -1:]).all(dim=-1).any(dim=-1, keepdim=True)

    def _windows(self, ids: torch.Tensor) -> torch.Tensor:
        """The last k ids of each row (batch, k); padding becomes the empty row."""
        k, absent, length = self._aligner.k, self._aligner.absent, ids.shape[1]
        if length >= self._most_padding + k:  # no padding in reach
            return ids[:, -k:]
        if length < k:
            ids = torch.nn.functional.pad(ids, (k - length, 0), value=absent)
        first = torch.arange(length - k, length, device=ids.device).unsqueeze(0)
        return ids[:, -k:].masked_fill(first < self._padding, absent)


class TokenText:
    """The last k ids of one text, and every k-gram of ids it has had."""

    def __init__(self, prompt: Sequence[int], *, k: int) -> None:
        self._k = k
        self.tail: tuple[int, ...] = ()
        self._seen: set[tuple[int, ...]] = set()
        self.repeated = False
        for token in prompt:
            self.push(token)

    def push(self, token: int) -> None:
        """Append one token."""
        if len(self.tail) == self._k:
            self._seen.add(self.tail)
        self.tail = (*self.tail, token)[-self._k :]
        self.repeated = self.tail in self._seen
