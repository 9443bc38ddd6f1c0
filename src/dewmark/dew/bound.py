"""DEW with a key and a vocabulary: scoring (Algorithm 2, batched), verdicts, and what a detector stores."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dewmark.arrays import F32, I64
from dewmark.dew.folded import Fold, FoldedRows
from dewmark.dew.modes import HashedContexts
from dewmark.dew.public import Public
from dewmark.dew.reading import Reading, TokenReader, chunks, units_per_chunk
from dewmark.dew.scoring import TESTS, Scored, detection_of, statistic_of
from dewmark.dew.words import WordReader
from dewmark.embeddings.contexts import ComposedContexts, WindowContexts
from dewmark.embeddings.mapped import rows_of
from dewmark.evidence import Evidence
from dewmark.scheme import DEFAULT_FPR, BoundScheme, Session, State, check_test, check_texts
from dewmark.stats.key_test import Statistic, key_test
from dewmark.types import Detection
from dewmark.workspace import Progress, Tokenized, silent

if TYPE_CHECKING:
    import torch

    from dewmark.dew.channels import Channel
    from dewmark.dew.scheme import DEW
    from dewmark.rows import Rows

__all__ = ["BoundDEW"]

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
        self._folded = FoldedRows(fold, public.host.vocab_size)
        self._device: torch.device | None = None
        self._shared: dict[str, Any] = {}
        self._lock = threading.Lock()

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

    def rows(self, device: torch.device) -> Rows:
        """Mark the rows of a changing batch together; a nucleus of each row's own size goes row by row."""
        if self.scheme.sampler == "bias" and self.scheme.nucleus is not None:
            return super().rows(device)
        from dewmark.dew.rows import DewRows

        return DewRows(self, device)

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
        small = units_per_chunk(self.public.d_T, self.public.d_C)
        for chunk in chunks(tokenized, units=small) if self._device is None else chunks(tokenized):
            found = self._tested([tokenized[i] for i in chunk], [before[i] for i in chunk], test=test)
            for i, (evidence, statistic) in zip(chunk, found, strict=True):
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
        reading = self.reader.read(texts, prompts)
        return [evidence for _, evidence in self._score(reading, test="key")]

    def on(self, device: str) -> BoundDEW:
        """The same detector with the products of its key test on a torch device; on the CPU it is numpy."""
        from torch import device as torch_device

        moved = copy.copy(self)
        moved._device = None if device == "cpu" else torch_device(device)
        return moved

    def _tested(
        self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized], *, test: str
    ) -> Iterator[tuple[Evidence, Statistic]]:
        """Evidence and result of each text."""
        reading = self.reader.read(texts, prompts)
        if self._device is not None and test == "key" and self.scheme.mode == "both":
            from dewmark.dew.on_device import LONGEST, score_on

            if max(len(pairs.tokens) for pairs in reading.texts) <= LONGEST:
                Q, n = self._folded_rows(reading), self.fold.n
                found = score_on(self._device, reading, Q=Q, G=self.fold.G, n=n, scheme=self.scheme)
                yield from ((evidence, key_test(evidence, variance=v)) for evidence, v in found)
                return
        for scored, evidence in self._score(reading, test=test):
            yield evidence, statistic_of(scored, evidence, self.scheme, test=test, n=self.fold.n)

    def _score(self, reading: Reading, *, test: str) -> Iterator[tuple[Scored, Evidence]]:
        """One text after the other: its evidence is much larger than what is kept of it."""
        context_rows = self._context_rows(reading)
        scaled = self.fold.contexts(context_rows, parts=reading.parts)
        Q = self._folded_rows(reading)
        for pairs in reading.texts:
            scored = Scored.of(pairs, reading, context_rows, self.scheme, test=test)
            yield scored, scored.under(Q, scaled)

    def _folded_rows(self, reading: Reading) -> F32:
        """Rows of Q of the reading's units (V, d_C)."""
        if not isinstance(self.reader, TokenReader):
            return self.fold.rows(reading.token_rows)
        if self.source is None:
            return self._folded.rows(reading.token_rows, reading.ids)
        used = self.source[reading.ids]
        return self._folded.rows(rows_of(self.reader.token_rows, used), used)

    def _context_rows(self, reading: Reading) -> F32:
        if self.hashed is not None:
            return self.hashed.vectors(reading.windows)
        assert reading.context_rows is not None
        return reading.context_rows

    def state(self) -> State:
        """The fold, and what reading needs. As secret as the key."""
        meta: dict[str, Any] = {"n": self.fold.n}
        if isinstance(self.reader, WordReader):
            return State(meta=meta | self.reader.meta(), arrays=self.fold.arrays() | self.reader.arrays())
        assert isinstance(self.reader, TokenReader)
        arrays = self.fold.arrays(self.reader.token_rows)
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
