"""DEW with a key and a vocabulary: scoring (Algorithm 2, batched), verdicts, and what a detector stores."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dewmark.dew.folded import Fold, scale_contexts
from dewmark.dew.modes import HashedContexts
from dewmark.embeddings.contexts import ABSENT, ComposedContexts, Contexts, WindowContexts, windows_of
from dewmark.evidence import Evidence
from dewmark.scheme import DEFAULT_FPR, BoundScheme, Session, State, check_test, check_texts, decide
from dewmark.stats.key_test import Statistic, gaussian_test, key_test
from dewmark.stats.nulls import tanh_kernel
from dewmark.types import Detection, TokenScore
from dewmark.workspace import HostInfo, Tokenized

if TYPE_CHECKING:
    import torch

    from dewmark.dew.scheme import DEW

__all__ = ["BoundDEW"]

F16 = NDArray[np.float16]
F32 = NDArray[np.float32]

_TOKENS_PER_CHUNK = 100_000


class BoundDEW(BoundScheme):
    """DEW for one key and one vocabulary."""

    tests = ("key", "gaussian")
    scheme: DEW

    def __init__(
        self,
        scheme: DEW,
        host: HostInfo,
        fingerprint: str,
        *,
        token_rows: F16,
        table: Fold,
        contexts: Contexts,
    ) -> None:
        super().__init__(scheme, host, fingerprint)
        self.token_rows = token_rows
        self.table = table
        self.contexts = contexts

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts (batch, length)."""
        from dewmark.dew.session import DewSession

        return DewSession(self, prompt_ids, attention_mask)

    @functools.cached_property
    def folded_rows(self) -> F32:
        """Q, (|V|, d_C): all candidates' rows, made when the first text is marked or exported."""
        return self.table.all_rows()

    def detect_batch(
        self,
        texts: Sequence[str],
        *,
        prompts: Sequence[str | None] | None = None,
        fpr: float = DEFAULT_FPR,
        test: str | None = None,
    ) -> list[Detection]:
        """Score completions. Tests: ``key`` (default), ``gaussian`` (the paper's)."""
        test = check_test(test, self.tests)
        starts = check_texts(texts, prompts, fpr)
        tokenized = self.host.tokenizer.encode(list(texts))
        before = self.host.tokenizer.encode(starts)
        detections = []
        for chunk in _chunks(tokenized):
            evidence = self.evidence([tokenized[i] for i in chunk], [before[i] for i in chunk])
            detections += [
                self._detection(tokenized[i], e, test=test, fpr=fpr)
                for i, e in zip(chunk, evidence, strict=True)
            ]
        return detections

    def evidence(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> list[Evidence]:
        """The alignments of texts, each distinct context and token of the batch looked up once."""
        k = self.scheme.k
        windows, scored = [np.zeros((0, k), dtype=np.int64)], [np.zeros(0, dtype=bool)]
        for text, prompt in zip(texts, prompts, strict=True):
            before = prompt.ids[-k:]
            rows = windows_of(before + text.ids, k=k, host=self.host)[len(before) :]
            usable = (rows != ABSENT).any(axis=1)
            if not before:
                usable[:k] = (
                    False  # without the prompt the first k contexts are not the ones that were marked
                )
            windows.append(rows)
            scored.append(usable)
        tokens = np.array([i for text in texts for i in text.ids], dtype=np.int64)
        known = tokens < self.host.vocab_size
        distinct_tokens, token_index = np.unique(np.where(known, tokens, 0), return_inverse=True)
        token_rows = np.asarray(self.token_rows[distinct_tokens], dtype=np.float32)
        usable = np.concatenate(scored) & known & np.any(token_rows != 0, axis=1)[token_index]
        distinct_windows, window_index = np.unique(
            np.concatenate(windows)[usable], axis=0, return_inverse=True
        )
        context_rows = self.contexts.vectors(distinct_windows)
        scaled_contexts = scale_contexts(context_rows, self.table.G, self.table.n)
        Q = self.table.rows(distinct_tokens)

        # one integer per (context, token) pair, -1 where nothing is scored, cut back into texts
        pairs = np.full(len(tokens), -1, dtype=np.int64)
        pairs[usable] = window_index * len(distinct_tokens) + token_index[usable]
        found = []
        for mine in np.split(pairs, np.cumsum([len(text.ids) for text in texts])[:-1]):
            distinct, inverse, counts = np.unique(mine[mine >= 0], return_inverse=True, return_counts=True)
            w, t = np.divmod(distinct, max(len(distinct_tokens), 1))
            positions = np.full(len(mine), -1, dtype=np.int64)
            positions[mine >= 0] = inverse
            u = np.einsum("ij,ij->i", Q[t], scaled_contexts[w])
            found.append(
                Evidence(
                    scores=np.tanh(self.scheme.gamma * u.astype(np.float64)),
                    alignments=u,
                    weights=counts.astype(np.float64),
                    positions=positions,
                    T=token_rows[t] if self.scheme.token_semantics else t,
                    C=context_rows[w] if self.scheme.context_semantics else w,
                    kernel=tanh_kernel(self.scheme.gamma),
                )
            )
        return found

    def statistic(self, evidence: Evidence, *, test: str) -> Statistic:
        """The chosen test on one text's evidence."""
        return gaussian_test(evidence) if test == "gaussian" else key_test(evidence)

    def state(self) -> State:
        """Q, G and Ê_T, and what the contexts need. As secret as the key."""
        arrays: dict[str, NDArray[Any]] = {
            "Q": self.folded_rows,
            "G": self.table.G,
            "token_rows": self.token_rows,
        }
        meta: dict[str, Any] = {"n": self.table.n}
        if isinstance(self.contexts, ComposedContexts):
            arrays["context_rows"] = self.contexts.table
        elif isinstance(self.contexts, HashedContexts):
            arrays["context_secret"] = self.contexts.secret_array()
        elif isinstance(self.contexts, WindowContexts):
            meta["encoder"] = self.contexts.encoder.identity
            if self.contexts.whitening is not None:
                arrays["mean"] = self.contexts.whitening.mean
                arrays["matrix"] = self.contexts.whitening.matrix
        return State(meta=meta, arrays=arrays)

    def _detection(self, text: Tokenized, evidence: Evidence, *, test: str, fpr: float) -> Detection:
        statistic = self.statistic(evidence, test=test)
        scores = np.append(evidence.alignments, 0.0)[evidence.positions].tolist()
        tokens = tuple(
            TokenScore(text=text.text[start:end], start=start, end=end, score=score, scored=pair >= 0)
            for (start, end), score, pair in zip(
                text.offsets, scores, evidence.positions.tolist(), strict=True
            )
        )
        return Detection(
            verdict=decide(statistic.p_value, statistic.effective_length, fpr),
            p_value=statistic.p_value,
            z=statistic.z,
            score=self.scheme.lambda_ * evidence.total / max(evidence.length, 1),
            effective_length=statistic.effective_length,
            tokens_scored=evidence.length,
            test=test,
            fpr=fpr,
            scheme=self.scheme.name,
            key_fingerprint=self.fingerprint,
            tokens=tokens,
        )


def _chunks(texts: Sequence[Tokenized]) -> list[list[int]]:
    """Indices in runs of about `_TOKENS_PER_CHUNK` tokens, so that memory does not grow with the batch."""
    chunks: list[list[int]] = [[]]
    size = 0
    for i, text in enumerate(texts):
        if chunks[-1] and size + len(text.ids) > _TOKENS_PER_CHUNK:
            chunks.append([])
            size = 0
        chunks[-1].append(i)
        size += len(text.ids)
    return [chunk for chunk in chunks if chunk]
