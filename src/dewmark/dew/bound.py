"""DEW with a key and a vocabulary: scoring (Algorithm 2, batched), verdicts, and what a detector stores."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dewmark.dew.folded import Fold
from dewmark.dew.modes import HashedContexts
from dewmark.dew.public import Public
from dewmark.dew.reading import Reading, TokenReader, chunks
from dewmark.dew.scoring import TESTS, Scored, detection_of, statistic_of
from dewmark.dew.words import WordReader
from dewmark.embeddings.contexts import ComposedContexts, WindowContexts
from dewmark.evidence import Evidence
from dewmark.scheme import DEFAULT_FPR, BoundScheme, Needs, Session, State, check_test, check_texts
from dewmark.types import Detection
from dewmark.workspace import Progress, Tokenized, silent

if TYPE_CHECKING:
    import torch

    from dewmark.dew.channels import Channel
    from dewmark.dew.scheme import DEW

__all__ = ["BoundDEW"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
T = TypeVar("T")


class BoundDEW(BoundScheme):
    """DEW for one key: what it shares with other keys is ``public``, what the key gives is the rest.

    ``source`` (vocab,) and ``hashed`` belong to modes in which the key does without the meaning of tokens or
    of contexts; otherwise they are None.
    """

    tests = TESTS
    scheme: DEW

    def __init__(
        self,
        public: Public,
        fingerprint: str,
        *,
        fold: Fold,
        source: I64 | None = None,
        hashed: HashedContexts | None = None,
        progress: Progress = silent,
    ) -> None:
        super().__init__(public.scheme, public.host, fingerprint)
        self.public = public
        self.reader = public.reader
        self.fold = fold
        self.source = source
        self.hashed = hashed
        self.progress = progress
        self._shared: dict[str, Any] = {}
        self._lock = threading.Lock()

    @property
    def needs(self) -> Needs:
        """The Gumbel sampler chooses the token, so it must see the final distribution."""
        return dataclasses.replace(self.scheme.needs, final=self.scheme.sampler == "gumbel")

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Cut texts into the host's tokens, or into words."""
        return self.reader.tokenize(texts)

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start marking a batch of prompts (batch, length)."""
        from dewmark.dew.session import BiasSession, GumbelSession

        channel, size = self._channel(prompt_ids, attention_mask), self.host.vocab_size
        if self.scheme.sampler == "gumbel":
            return GumbelSession(self.scheme, channel, vocab_size=size, prompt_ids=prompt_ids, seeds=seeds)
        return BiasSession(self.scheme, channel, vocab_size=size)

    def _channel(self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> Channel:
        if isinstance(self.reader, WordReader):
            from dewmark.dew.word_channel import WordChannel

            return WordChannel(self, self.reader, prompt_ids, attention_mask)
        from dewmark.dew.channels import TokenChannel

        assert isinstance(self.reader, TokenReader)
        return TokenChannel(self, self.reader, prompt_ids, attention_mask)

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Something that all sessions of this bound scheme share, made by the first that needs it."""
        with self._lock:
            if name not in self._shared:
                self._shared[name] = make()
            found: T = self._shared[name]
            return found

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
        tokenized, before = self.tokenize(texts), self.tokenize(starts)
        detections = []
        for chunk in chunks(tokenized):
            found = self._score([tokenized[i] for i in chunk], [before[i] for i in chunk], test=test)
            for i, (scored, evidence) in zip(chunk, found, strict=True):
                statistic = statistic_of(scored, evidence, self.scheme, test=test, n=self.fold.n)
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
        reading = self.reader.read(texts, prompts)
        context_rows = self._context_rows(reading)
        scaled = self.fold.contexts(context_rows)
        Q = self.fold.rows(self._token_rows(reading))
        prepared = [
            Scored.of(pairs, reading, context_rows, self.scheme, test=test) for pairs in reading.texts
        ]
        return [(scored, scored.under(Q, scaled)) for scored in prepared]

    def _token_rows(self, reading: Reading) -> F32:
        if self.source is None or not isinstance(self.reader, TokenReader):
            return reading.token_rows
        return np.asarray(self.reader.token_rows[self.source[reading.ids]], dtype=np.float32)

    def _context_rows(self, reading: Reading) -> F32:
        if self.hashed is not None:
            return self.hashed.vectors(reading.windows)
        assert reading.context_rows is not None
        return reading.context_rows

    def state(self) -> State:
        """The fold, and what reading needs. As secret as the key."""
        arrays: dict[str, NDArray[Any]] = self.fold.arrays()
        meta: dict[str, Any] = {"n": self.fold.n}
        if isinstance(self.reader, WordReader):
            return State(meta=meta | self.reader.meta(), arrays=arrays | self.reader.arrays())
        assert isinstance(self.reader, TokenReader)
        arrays["token_rows"] = self.reader.token_rows
        if self.source is not None:
            arrays["source"] = self.source
        if self.hashed is not None:
            arrays["context_secret"] = self.hashed.secret_array()
        contexts = self.reader.contexts
        if isinstance(contexts, ComposedContexts):
            arrays["context_rows"] = contexts.table
        elif isinstance(contexts, WindowContexts):
            meta["encoder"] = contexts.encoder.identity
            if contexts.whitening is not None:
                arrays["mean"] = contexts.whitening.mean
                arrays["matrix"] = contexts.whitening.matrix
        return State(meta=meta, arrays=arrays)
