"""DEW's parameters, and how they become a working watermark.

DEW with a key and a vocabulary: scoring (Algorithm 2, batched), verdicts, and what a detector stores.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from dewmark.arrays import F32, I64
from dewmark.core.keys import Key
from dewmark.core.projections import draw_projections
from dewmark.dew.ablation import HashedContexts, Mode
from dewmark.dew.detection import TESTS, Scored, detection_of, statistic_of
from dewmark.dew.many_keys import detect_keys
from dewmark.dew.projection import Fold, FoldedRows
from dewmark.dew.reading import (
    Public,
    Reading,
    TokenReader,
    WordReader,
    chunks,
    open_public,
    restored_public,
    units_per_chunk,
)
from dewmark.encoders.contexts import ComposedContexts, WindowContexts
from dewmark.encoders.token_tables import rows_of
from dewmark.errors import ArtifactError, ConfigError
from dewmark.scheme import DEFAULT_FPR, BoundScheme, Needs, Scheme, Session, State, check_test, check_texts
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import Statistic, key_test
from dewmark.types import Detection
from dewmark.workspace import HostInfo, Progress, Tokenized, Workspace, silent

if TYPE_CHECKING:
    import torch

    from dewmark.dew.alignment import Channel
    from dewmark.sampling import Rows

__all__ = ["DEW", "BoundDEW"]

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
        from dewmark.dew.marking import BiasSession, GumbelSession

        channel, size = self._channel(prompt_ids, attention_mask), self.host.vocab_size
        if self.scheme.sampler == "gumbel":
            return GumbelSession(self.scheme, channel, vocab_size=size, prompt_ids=prompt_ids, seeds=seeds)
        return BiasSession(self.scheme, channel, vocab_size=size)

    def rows(self, device: torch.device) -> Rows:
        """Mark the rows of a changing batch together; a nucleus of each row's own size goes row by row."""
        if self.scheme.sampler == "bias" and self.scheme.nucleus is not None:
            return super().rows(device)
        from dewmark.dew.marking import DewRows

        return DewRows(self, device)

    def _channel(self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> Channel:
        if isinstance(self.reader, WordReader):
            from dewmark.dew.alignment import WordChannel

            return WordChannel(self, self.reader, prompt_ids, attention_mask)
        from dewmark.dew.alignment import TokenChannel

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
            from dewmark.cuda.key_test import LONGEST, score_on

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


@dataclass(frozen=True)
class DEW(Scheme):
    """Dual-Embedding Watermarking. Names and defaults are the paper's where it has them."""

    name: ClassVar[str] = "dew"
    summary: ClassVar[str] = "dual-embedding watermark: keyed alignment of token and context meaning"
    needs: ClassVar[Needs] = Needs(embeddings=True, encoder=True)

    units: Literal["token", "word"] = "word"
    """What is scored: the host's tokens (the paper), or words, which need nothing of the host to detect."""
    sampler: Literal["bias", "gumbel"] = "gumbel"
    """How the mark is put in: a bias on the logits (the paper), or keyed noise in Gumbel sampling (ours)."""
    lambda_: float = 2.0
    """Strength λ of the bias: the most that a logit can get."""
    alpha: float = 0.5
    """Share of the Gumbel sampler's randomness that comes from the key."""
    fresh_on_repeat: bool = True
    """Whether the Gumbel sampler leaves the key aside where a context recurs in a text word for word."""
    gamma: float = 0.5
    """Saturation γ: how fast tanh(γu) reaches its ends."""
    k: int = 3
    """Context width: how many tokens (or words) before the one that is scored."""
    m: int | None = None
    """How many of the likeliest candidates are scored; by default 32 with a bias, 256 with Gumbel."""
    nucleus: float | None = None
    """If set, bias the smallest set of candidates that holds this much probability, instead of the top m."""
    n: int | None = None
    """Projection dimensionality; by default max(d_T, d_C), for orthogonal projections lcm(d_T, d_C)."""
    projection: Literal["gaussian", "orthogonal"] = "gaussian"
    """How R_T and R_C are drawn: section 3.1, or the isometric blocks of appendix B."""
    mode: Mode = "both"
    """Which semantics are used; the other three are the paper's ablation."""
    context: Literal["composed", "window"] = "composed"
    """How a context is embedded: mean of its tokens' vectors, or the encoder run on its text (the paper)."""
    contexts: Literal["white", "raw"] = "white"
    """Whether context vectors are whitened (ours) or used as they come (the paper)."""
    encoder: str = "use-m3"
    """The context encoder M_C: a packaged name, a folder, or a hub id of a sentence-transformers model."""
    statistics: str = "default"
    """Whitening statistics of the contexts: ``default``, or a folder written by ``dewmark models fit``."""
    token_whitening: bool = True
    """Whether token embeddings are whitened (the paper does)."""
    centre: Literal["running", "rare"] = "running"
    """Where words are centred: at running text, for the stronger mark, or at rare words."""
    centred: bool | None = None
    """Whether the key test subtracts the text's mean unit from each: by default tokens (ours), not words."""
    score: Literal["tanh", "linear"] | None = None
    """What the key test sums: tanh(γu), by default with a bias, or u itself, by default with Gumbel."""
    donor: str | None = None
    """Another model whose input embeddings stand in for the host's (appendix C.2)."""

    def validate(self) -> None:
        """Refuse values out of range."""
        checks = (
            (self.lambda_ > 0.0, "lambda", "be positive", self.lambda_),
            (self.gamma > 0.0, "gamma", "be positive", self.gamma),
            (self.k >= 1, "k", "be at least 1", self.k),
            (0.0 < self.alpha <= 1.0, "alpha", "lie in (0, 1]", self.alpha),
            (self.m is None or self.m >= 1, "m", "be at least 1", self.m),
            (self.nucleus is None or 0.0 < self.nucleus <= 1.0, "nucleus", "lie in (0, 1]", self.nucleus),
            (self.n is None or self.n >= 2, "n", "be at least 2", self.n),
        )
        for holds, name, rule, value in checks:
            if not holds:
                raise ConfigError(f"{name} must {rule}, got {value}")
        if self.units == "word" and (self.mode != "both" or self.donor is not None):
            what = f"mode={self.mode}" if self.mode != "both" else f"donor={self.donor}"
            raise ConfigError(f"{what} is about a host's token table, which units=word does without")

    @property
    def needs_as_set(self) -> Needs:
        """The Gumbel sampler chooses the token, so it must see the final distribution."""
        return dataclasses.replace(self.needs, final=self.sampler == "gumbel")

    @property
    def host_free(self) -> bool:
        """Words are cut without the host's tokenizer."""
        return self.units == "word"

    @property
    def candidates(self) -> int:
        """How many of the likeliest candidates are scored."""
        return self.m if self.m is not None else 256 if self.sampler == "gumbel" else 32

    @property
    def scores_linearly(self) -> bool:
        """Whether the key test sums u itself."""
        return self.score == "linear" or (self.score is None and self.sampler == "gumbel")

    @property
    def subtracts_mean(self) -> bool:
        """Whether the key test subtracts the text's mean unit."""
        return self.centred if self.centred is not None else self.units == "token"

    @property
    def token_semantics(self) -> bool:
        """Whether similar tokens get similar scores."""
        return self.mode in ("both", "token_only")

    @property
    def context_semantics(self) -> bool:
        """Whether similar contexts give similar scores."""
        return self.mode in ("both", "context_only")

    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> BoundDEW:
        """Draw the projections and open (or build) the token table and the contexts."""
        public = open_public(self, host, workspace)
        projections = draw_projections(key, d_T=public.d_T, d_C=public.d_C, kind=self.projection, n=public.n)
        return BoundDEW(
            public,
            key.fingerprint,
            fold=Fold.of(projections),
            source=public.sources_of(key),
            hashed=public.contexts_of(key),
            progress=workspace.progress,
        )

    def detect_keys(
        self,
        keys: Sequence[Key],
        texts: Sequence[str],
        host: HostInfo,
        workspace: Workspace,
        *,
        prompts: Sequence[str | None] | None = None,
        fpr: float = DEFAULT_FPR,
        test: str | None = None,
    ) -> list[list[Detection]]:
        """Score texts under many keys, reading them once."""
        public = open_public(self, host, workspace)
        return detect_keys(
            public, keys, texts, prompts=prompts, fpr=fpr, test=test, progress=workspace.progress
        )

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> BoundDEW:
        """A detector from stored tables: no key, no host weights."""
        arrays = state.arrays
        try:
            public = restored_public(self, state, host, workspace)
            fold = Fold.stored(arrays, public.n)
            source = None if self.token_semantics else arrays["source"]
            hashed = (
                None
                if self.context_semantics
                else HashedContexts(arrays["context_secret"].tobytes(), public.d_C)
            )
        except KeyError as missing:
            raise ArtifactError(f"the stored detector lacks {missing}; export it again") from None
        return BoundDEW(public, fingerprint, fold=fold, source=source, hashed=hashed)
