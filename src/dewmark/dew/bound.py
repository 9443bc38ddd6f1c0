"""DEW with a key and a vocabulary: scoring (Algorithm 2, batched), verdicts, and what a detector stores."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dewmark.dew.folded import Fold, scale_contexts
from dewmark.dew.modes import HashedContexts
from dewmark.dew.public import Public
from dewmark.dew.reading import chunks, read
from dewmark.dew.scoring import TESTS, Scored, detection_of, statistic_of
from dewmark.embeddings.contexts import ComposedContexts, Contexts, WindowContexts
from dewmark.evidence import Evidence
from dewmark.scheme import DEFAULT_FPR, BoundScheme, Needs, Session, State, check_test, check_texts
from dewmark.types import Detection
from dewmark.workspace import Tokenized

if TYPE_CHECKING:
    import torch

    from dewmark.dew.scheme import DEW

__all__ = ["BoundDEW"]

F16 = NDArray[np.float16]
F32 = NDArray[np.float32]


class BoundDEW(BoundScheme):
    """DEW for one key and one vocabulary."""

    tests = TESTS
    scheme: DEW

    def __init__(self, public: Public, fingerprint: str, *, table: Fold, contexts: Contexts) -> None:
        super().__init__(public.scheme, public.host, fingerprint)
        self.public = public
        self.table = table
        self.contexts = contexts

    @property
    def needs(self) -> Needs:
        """The Gumbel sampler chooses the token, so it must see the final distribution."""
        return dataclasses.replace(self.scheme.needs, final=self.scheme.sampler == "gumbel")

    @property
    def token_rows(self) -> F16:
        """Ê_T, (vocab, d_T)."""
        return self.public.token_rows

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts (batch, length)."""
        from dewmark.dew.session import BiasSession, GumbelSession

        if self.scheme.sampler == "gumbel":
            return GumbelSession(self, prompt_ids, attention_mask, seeds)
        return BiasSession(self, prompt_ids, attention_mask)

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
        """Score completions. Tests: ``key`` (default), its simulation, and the paper's two."""
        test = check_test(test, self.tests)
        starts = check_texts(texts, prompts, fpr)
        tokenized = self.host.tokenizer.encode(list(texts))
        before = self.host.tokenizer.encode(starts)
        detections = []
        for chunk in chunks(tokenized):
            found = self._score([tokenized[i] for i in chunk], [before[i] for i in chunk], test=test)
            for i, (scored, evidence) in zip(chunk, found, strict=True):
                statistic = statistic_of(scored, evidence, self.scheme, test=test, n=self.table.n)
                detections.append(
                    detection_of(
                        tokenized[i],
                        evidence,
                        statistic,
                        self.scheme,
                        test=test,
                        fpr=fpr,
                        fingerprint=self.fingerprint,
                    )
                )
        return detections

    def evidence(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> list[Evidence]:
        """The evidence of texts, as the key test sees it."""
        return [evidence for _, evidence in self._score(texts, prompts, test="key")]

    def _score(
        self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized], *, test: str
    ) -> list[tuple[Scored, Evidence]]:
        reading = read(texts, prompts, k=self.scheme.k, host=self.host, token_rows=self.token_rows)
        context_rows = self.contexts.vectors(reading.windows)
        scaled = scale_contexts(context_rows, self.table.G, self.table.n)
        Q = self.table.rows(reading.ids)
        prepared = [
            Scored.of(pairs, reading, context_rows, self.scheme, test=test) for pairs in reading.texts
        ]
        return [(scored, scored.under(Q, scaled)) for scored in prepared]

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
