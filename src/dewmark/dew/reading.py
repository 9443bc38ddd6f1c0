"""How DEW reads a batch of texts, before any key: distinct units, distinct contexts, and their pairs.

Every distinct context and unit of the batch is looked up once. One key's alignments are then a small
product, so scoring the same texts under many keys repeats no encoder work. Units are the host's tokens
(`TokenReader`, the paper) or words (`dewmark.dew.reading.WordReader`).

Words as DEW's units: any host may write the text, and nothing of it is needed to score it.

A unit is a word in its form, its ê_T comes from the multilingual encoder, its context is the k words before
it (`dewmark.encoders.word_vectors`). A translation keeps neither tokens nor spelling, but much of that.

The part of DEW that no key enters: how texts are read, and dimensions. All keys of a process share it.
"""

from __future__ import annotations

import hashlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F16, F32, I64
from dewmark.core.keys import Key
from dewmark.core.projections import projection_dim
from dewmark.core.whitening import Whitening
from dewmark.dew.ablation import HashedContexts, permuted_rows
from dewmark.encoders import load_encoder
from dewmark.encoders.contexts import (
    ComposedContexts,
    Contexts,
    SummedContexts,
    WindowContexts,
    load_context_whitening,
    token_vectors,
)
from dewmark.encoders.token_tables import rows_of, token_table
from dewmark.encoders.word_vectors import (
    STATISTICS,
    Centre,
    WordContexts,
    WordStatistics,
    WordTokens,
    WordVectors,
    load_word_statistics,
    windows_before,
)
from dewmark.errors import ConfigError, VocabularyError
from dewmark.scheme import State
from dewmark.text.windows import ABSENT, windows_of
from dewmark.text.words import MAX_FORM, VERSION, form_of, words
from dewmark.workspace import HostInfo, Tokenized, Workspace

if TYPE_CHECKING:
    from dewmark.dew.scheme import DEW

__all__ = [
    "Pairs",
    "Public",
    "Reader",
    "Reading",
    "TokenReader",
    "WordReader",
    "chunks",
    "open_public",
    "open_words",
    "pairs_of",
    "restored_public",
    "restored_words",
    "units_per_chunk",
]


_UNITS_PER_CHUNK = 100_000

_BYTES_PER_CHUNK = 32 << 20


@dataclass(frozen=True)
class Pairs:
    """The N distinct (context, unit) pairs of one text of L units.

    ``tokens`` and ``windows`` (N,) index the batch's distinct units and windows, ``weights`` (N,) count the
    occurrences, ``positions`` (L,) give each unit's pair, or -1 if it is not scored.
    """

    tokens: I64
    windows: I64
    weights: NDArray[np.float64]
    positions: I64


@dataclass(frozen=True)
class Reading:
    """A batch: V distinct units with ê_T (V, d_T), W distinct windows with ê_C (W, d_C), pairs per text.

    ``contexts`` are the ê_C, whole or as sums of a few vectors each; None where the key makes them itself.
    Host tokens also come with their ``ids`` (V,) and ``windows`` (W, k), for modes in which a key does
    without meaning.
    """

    token_rows: F32
    contexts: F32 | SummedContexts | None
    texts: tuple[Pairs, ...]
    ids: I64
    windows: I64

    @property
    def parts(self) -> SummedContexts | None:
        """The contexts as sums, where they are such."""
        return self.contexts if isinstance(self.contexts, SummedContexts) else None

    @property
    def context_rows(self) -> F32 | None:
        """ê_C (W, d_C), or None where the key makes them itself."""
        return self.contexts.vectors if isinstance(self.contexts, SummedContexts) else self.contexts


class Reader(ABC):
    """Cuts texts into units and looks up what they and their contexts mean."""

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Cut texts into units."""

    @abstractmethod
    def read(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> Reading:
        """Read texts, each after its prompt."""


class TokenReader(Reader):
    """Reads the host's tokens; ``token_rows`` (vocab, d_T) is Ê_T, ``contexts`` None if a key makes them."""

    def __init__(self, host: HostInfo, token_rows: F16, contexts: Contexts | None, *, k: int) -> None:
        self.host = host
        self.token_rows = token_rows
        self.contexts = contexts
        self.k = k

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Cut texts into the host's tokens."""
        return self.host.tokenizer.encode(list(texts))

    def read(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> Reading:
        """Read texts, each after its prompt."""
        k = self.k
        windows, scored = [np.zeros((0, k), dtype=np.int64)], [np.zeros(0, dtype=bool)]
        for text, prompt in zip(texts, prompts, strict=True):
            before = prompt.ids[-k:]
            mine = windows_of(before + text.ids, k=k, host=self.host)[len(before) :]
            usable = (mine != ABSENT).any(axis=1)
            if not before:
                usable[:k] = (
                    False  # without the prompt the first k contexts are not the ones that were marked
                )
            windows.append(mine)
            scored.append(usable)
        tokens = np.array([i for text in texts for i in text.ids], dtype=np.int64)
        known = tokens < self.host.vocab_size
        ids, token_index = np.unique(np.where(known, tokens, 0), return_inverse=True)
        rows = rows_of(self.token_rows, ids)
        usable = np.concatenate(scored) & known & np.any(rows != 0, axis=1)[token_index]
        distinct, found = _distinct(np.concatenate(windows)[usable], self.host.vocab_size)
        window_index = np.full(len(tokens), -1, dtype=np.int64)
        window_index[usable] = found
        contexts: F32 | SummedContexts | None = None
        if self.contexts is not None:
            parts = self.contexts.summed(distinct)
            contexts = self.contexts.vectors(distinct) if parts is None else parts
        return Reading(
            token_rows=rows,
            contexts=contexts,
            texts=pairs_of(token_index, window_index, [len(text.ids) for text in texts]),
            ids=ids,
            windows=distinct,
        )


def _distinct(windows: I64, size: int) -> tuple[I64, I64]:
    """The distinct rows of windows (N, k), ids under ``size`` or `ABSENT`, and each row's place in them."""
    k = windows.shape[1]
    if (size + 1) ** k >= 1 << 63:
        return np.unique(windows, axis=0, return_inverse=True)
    powers = (size + 1) ** np.arange(
        k - 1, -1, -1, dtype=np.int64
    )  # one integer per window sorts ten times faster
    codes, found = np.unique((windows - ABSENT) @ powers, return_inverse=True)
    return (codes[:, None] // powers) % (size + 1) + ABSENT, found


def pairs_of(units: I64, windows: I64, lengths: Sequence[int]) -> tuple[Pairs, ...]:
    """Indices of units and windows (all units of all texts,), -1 where none is scored, to pairs per text."""
    width = int(units.max(initial=0)) + 1
    codes = np.where(windows >= 0, windows * width + units, -1)  # one integer per (context, unit) pair
    ends = np.cumsum(lengths)
    return tuple(_pairs(codes[end - length : end], width) for end, length in zip(ends, lengths, strict=True))


def _pairs(mine: I64, width: int) -> Pairs:
    distinct, inverse, counts = np.unique(mine[mine >= 0], return_inverse=True, return_counts=True)
    windows, units = np.divmod(distinct, width)
    positions = np.full(len(mine), -1, dtype=np.int64)
    positions[mine >= 0] = inverse
    return Pairs(tokens=units, windows=windows, weights=counts.astype(np.float64), positions=positions)


def units_per_chunk(d_T: int, d_C: int) -> int:
    """How many units to read at once: their vectors, and contexts before and after scaling, take 32 MB."""
    return max(_BYTES_PER_CHUNK // (4 * (d_T + 2 * d_C)), 1)


def chunks(texts: Sequence[Tokenized], *, units: int = _UNITS_PER_CHUNK) -> Iterator[list[int]]:
    """Indices in runs of about ``units`` units, so that memory does not grow with the batch."""
    chunk: list[int] = []
    size = 0
    for i, text in enumerate(texts):
        if chunk and size + len(text.ids) > units:
            yield chunk
            chunk, size = [], 0
        chunk.append(i)
        size += len(text.ids)
    if chunk:
        yield chunk


_FOLDER = "words"


class WordReader(Reader):
    """Reads words."""

    def __init__(
        self, vectors: WordVectors, statistics: WordStatistics, *, k: int, centre: Centre = "running"
    ) -> None:
        self.vectors = vectors
        self.statistics = statistics
        self.tokens = WordTokens(vectors, statistics, centre=centre)
        self.contexts = WordContexts(vectors, statistics)
        self.k = k

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Cut texts into words; equal ids are equal forms."""
        return [_tokenized(text) for text in texts]

    def read(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> Reading:
        """Read texts, each after its prompt."""
        forms: dict[str, int] = {}
        contexts: dict[tuple[str, ...], int] = {}
        units: list[int] = []
        windows: list[int] = []
        for text, prompt in zip(texts, prompts, strict=True):
            mine, before = _forms(text), _forms(prompt)[-self.k :]
            units += [forms.setdefault(form, len(forms)) for form in mine]
            # without the prompt the first k contexts are not the ones that were marked
            skipped = 0 if before else min(self.k, len(mine))
            windows += [-1] * skipped
            around = windows_before(mine, k=self.k, before=before)[skipped:]
            windows += [contexts.setdefault(window, len(contexts)) for window in around]
        return Reading(
            token_rows=self.tokens.vectors(list(forms)),
            contexts=self.contexts.summed(list(contexts)),
            texts=pairs_of(
                np.array(units, dtype=np.int64),
                np.array(windows, dtype=np.int64),
                [len(text.ids) for text in texts],
            ),
            ids=np.arange(len(forms)),
            windows=np.zeros((len(contexts), 0), dtype=np.int64),
        )

    def meta(self) -> dict[str, Any]:
        """What a stored detector must find again."""
        return {"encoder": self.vectors.encoder.identity, "words": VERSION}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The public statistics, for a detector that is stored."""
        return {name: getattr(self.statistics, name) for name in STATISTICS}


def open_words(scheme: DEW, workspace: Workspace) -> WordReader:
    """A reader with the encoder that the scheme names."""
    encoder = load_encoder(scheme.encoder, progress=workspace.progress)
    vectors = WordVectors(encoder, workspace.cache / _FOLDER)
    statistics = load_word_statistics(scheme.statistics, vectors=vectors, workspace=workspace)
    return WordReader(vectors, statistics, k=scheme.k, centre=scheme.centre)


def restored_words(scheme: DEW, state: State, workspace: Workspace) -> WordReader:
    """The reader of a detector that was stored."""
    encoder = load_encoder(scheme.encoder, progress=workspace.progress)
    here = {"encoder": encoder.identity, "words": VERSION}
    for name, value in here.items():
        if state.meta[name] != value:
            raise VocabularyError(
                f"the detector was made with {name} {state.meta[name]}, {value} is here; "
                "export the detector again"
            )
    arrays = (np.array(state.arrays[name], dtype=np.float32) for name in STATISTICS)
    vectors = WordVectors(encoder, workspace.cache / _FOLDER)
    return WordReader(vectors, WordStatistics(*arrays), k=scheme.k, centre=scheme.centre)


def _tokenized(text: str) -> Tokenized:
    found = words(text)
    ids = tuple(
        int.from_bytes(hashlib.blake2b(word.form.encode(), digest_size=7).digest(), "big") for word in found
    )
    return Tokenized(text, ids, tuple((word.start, word.end) for word in found))


def _forms(text: Tokenized) -> list[str]:
    return [form_of(text.text[start : min(end, start + 4 * MAX_FORM)]) for start, end in text.offsets]


@dataclass(frozen=True)
class Public:
    """How texts are read, the width of both embeddings, and n."""

    scheme: DEW
    host: HostInfo
    reader: Reader
    d_T: int
    d_C: int
    n: int

    def contexts_of(self, key: Key) -> HashedContexts | None:
        """The contexts that a key makes itself; None where they come from the text's meaning."""
        if self.scheme.context_semantics:
            return None
        return HashedContexts(key.subkey("dew/token_only"), self.d_C)

    def sources_of(self, key: Key) -> I64 | None:
        """For each token the row of Ê_T that it uses under this key, (vocab,); None where it is its own."""
        if self.scheme.token_semantics or not isinstance(self.reader, TokenReader):
            return None
        markable = np.flatnonzero(np.any(self.reader.token_rows != 0, axis=1))
        return permuted_rows(key, markable, self.host.vocab_size)


# Opening checks and whitens tables for about a second, and a table takes tens of megabytes: keys that are
# bound at the same time share them, and nothing outlives the last one.
_OPEN: weakref.WeakValueDictionary[tuple[object, ...], Public] = weakref.WeakValueDictionary()


def open_public(scheme: DEW, host: HostInfo, workspace: Workspace) -> Public:
    """Open (or build) what reading needs."""
    tokenizer = "" if scheme.host_free else host.tokenizer.identity
    name = (scheme, host.identity, tokenizer, str(workspace.cache))
    public = _OPEN.get(name)
    if public is None:
        public = _OPEN[name] = _open(scheme, host, workspace)
    return public


def _open(scheme: DEW, host: HostInfo, workspace: Workspace) -> Public:
    if scheme.units == "word":
        words = open_words(scheme, workspace)
        return _public(scheme, host, words, d_T=words.vectors.dim, d_C=words.vectors.dim)
    donor = None
    if scheme.donor is not None:
        if workspace.find_host is None:
            raise ConfigError(
                f"the donor {scheme.donor!r} cannot be looked up here; bind through dewmark.load_scheme"
            )
        donor = workspace.find_host(scheme.donor)
    rows = token_table(host, whiten=scheme.token_whitening, donor=donor, workspace=workspace)
    contexts, d_C = _contexts(scheme, host, workspace)
    reader = TokenReader(host, rows, contexts, k=scheme.k)
    return _public(scheme, host, reader, d_T=rows.shape[1], d_C=d_C)


def _public(scheme: DEW, host: HostInfo, reader: Reader, *, d_T: int, d_C: int) -> Public:
    n = projection_dim(d_T, d_C, kind=scheme.projection, n=scheme.n)
    return Public(scheme, host, reader, d_T=d_T, d_C=d_C, n=n)


def _contexts(scheme: DEW, host: HostInfo, workspace: Workspace) -> tuple[Contexts | None, int]:
    encoder = load_encoder(scheme.encoder, progress=workspace.progress)
    if not scheme.context_semantics:
        return None, encoder.dim
    whitening = None
    if scheme.contexts == "white":
        whitening = load_context_whitening(
            scheme.statistics,
            encoder=encoder,
            host=host,
            encoding=scheme.context,
            k=scheme.k,
            workspace=workspace,
        )
    if scheme.context == "window":
        return WindowContexts(encoder, host.tokenizer, whitening), encoder.dim
    table = token_vectors(encoder, host, whitening=whitening, workspace=workspace)
    return ComposedContexts(table), encoder.dim


def restored_public(scheme: DEW, state: State, host: HostInfo, workspace: Workspace) -> Public:
    """The public part of a detector that was stored."""
    arrays, n = state.arrays, int(state.meta["n"])
    d_T, d_C = arrays["fold_product"].shape
    if scheme.units == "word":
        words = restored_words(scheme, state, workspace)
        return Public(scheme, host, words, d_T=d_T, d_C=d_C, n=n)
    rows = arrays["token_rows"]
    if len(rows) != host.vocab_size:
        raise VocabularyError(f"the stored table has {len(rows)} tokens, the vocabulary {host.vocab_size}")
    contexts = _restored_contexts(scheme, state, host, workspace)
    return Public(scheme, host, TokenReader(host, rows, contexts, k=scheme.k), d_T=d_T, d_C=d_C, n=n)


def _restored_contexts(scheme: DEW, state: State, host: HostInfo, workspace: Workspace) -> Contexts | None:
    arrays = state.arrays
    if not scheme.context_semantics:
        return None
    if scheme.context == "composed":
        return ComposedContexts(arrays["context_rows"])
    encoder = load_encoder(scheme.encoder, progress=workspace.progress)
    if encoder.identity != state.meta["encoder"]:
        raise VocabularyError(
            f"the detector was made with encoder {state.meta['encoder']}, "
            f"{encoder.identity} is here; export the detector again"
        )
    whitening = None
    if scheme.contexts == "white":
        whitening = Whitening(np.array(arrays["mean"]), np.array(arrays["matrix"]))
    return WindowContexts(encoder, host.tokenizer, whitening)
