"""The key-independent half of DEW: from texts to (unit, context) pairs and their vectors.

Every distinct unit and context of a batch is looked up once. Under one key the alignments are then a small
product, so scoring the same texts under many keys repeats no encoder work.

Units are the host's tokens (`TokenReader`, the paper) or words (`WordReader`). For words, ê_T comes from the
multilingual encoder and the context is the k words before (`dewmark.encoders.word_vectors`). Any host may
write the text, and scoring needs nothing from it. A translation keeps neither tokens nor spelling, but much
of the meaning.
"""

from __future__ import annotations

import functools
import hashlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F16, F32, F64, I64, Mask
from dewmark.core.keys import Key
from dewmark.core.projections import projection_dim
from dewmark.core.whitening import Whitening
from dewmark.dew.ablation import HashedContexts, permuted_rows
from dewmark.dew.settings import DewSettings
from dewmark.encoders import load_encoder
from dewmark.encoders.contexts import (
    ComposedContexts,
    Contexts,
    SummedContexts,
    WindowContexts,
    load_context_whitening,
    token_vectors,
)
from dewmark.encoders.lexicon import Lexicon, load_lexicon
from dewmark.encoders.lexicon_vectors import LexiconContexts, LexiconTokens
from dewmark.encoders.token_tables import rows_of, token_table
from dewmark.encoders.word_vectors import (
    STATISTICS,
    Centre,
    WordContexts,
    WordStatistics,
    WordTokens,
    WordVectors,
    load_word_statistics,
    times_counted,
    windows_before,
)
from dewmark.errors import ConfigError, VocabularyError
from dewmark.scheme import State
from dewmark.text.cleaning import tokenize_cleaned
from dewmark.text.windows import ABSENT, windows_of
from dewmark.text.words import VERSION, places_and_forms
from dewmark.workspace import HostInfo, Tokenized, Workspace

__all__ = [
    "KeyIndependent",
    "LexiconReader",
    "Pairs",
    "Reader",
    "Reading",
    "TokenReader",
    "WordReader",
    "open_key_independent",
    "pairs_of",
    "restore_key_independent",
]

_WORDS_FOLDER = "words"


# What reading produces


@dataclass(frozen=True)
class Pairs:
    """The N distinct (unit, context) pairs of one text of L units.

    ``tokens`` and ``windows`` (N,) index the batch's distinct units and contexts, ``weights`` (N,) count the
    occurrences, and ``positions`` (L,) give each unit's pair, or -1 if it is not scored. ``expected`` (N,)
    are the rows of what a language model expected in the place of each pair, and ``unforeseen`` (N,) the
    share that it left to other words (`dewmark.dew.expected`); None without such a model.
    """

    tokens: I64
    windows: I64
    weights: F64
    positions: I64
    expected: I64 | None = None
    unforeseen: F32 | None = None

    @property
    def used_rows(self) -> I64:
        """The rows of the batch that the pairs use, in ascending order."""
        return np.unique(self.tokens if self.expected is None else np.append(self.tokens, self.expected))


@dataclass(frozen=True)
class Reading:
    """A batch: V distinct units with ê_T (V, d_T), W distinct contexts with ê_C (W, d_C), pairs per text.

    Further rows of ``token_rows`` are what a language model expected in place of units, if one read them.
    ``contexts`` holds ê_C, whole or as sums of a few vectors each, or None where the key makes the contexts
    itself. For host tokens, ``ids`` (V,) and ``windows`` (W, k) serve the ablation modes that ignore meaning.
    """

    token_rows: F32
    contexts: F32 | SummedContexts | None
    texts: tuple[Pairs, ...]
    ids: I64
    windows: I64

    @property
    def parts(self) -> SummedContexts | None:
        """The contexts as sums of vectors, where they are such sums."""
        return self.contexts if isinstance(self.contexts, SummedContexts) else None

    @property
    def context_rows(self) -> F32 | None:
        """ê_C (W, d_C), or None where the key makes the contexts itself."""
        return self.contexts.vectors if isinstance(self.contexts, SummedContexts) else self.contexts


class Reader(ABC):
    """Splits texts into units and looks up the vectors of units and contexts."""

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Split texts into units."""

    @abstractmethod
    def read(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> Reading:
        """Read texts, each after its prompt."""


# The host's tokens as units


class TokenReader(Reader):
    """Reads the host's tokens; ``token_rows`` (vocab, d_T) is Ê_T, ``contexts`` None if a key makes them."""

    def __init__(self, host: HostInfo, token_rows: F16, contexts: Contexts | None, *, k: int) -> None:
        self.host = host
        self.token_rows = token_rows
        self.contexts = contexts
        self.k = k

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Split texts into the host's tokens, without markup and disguises."""
        return tokenize_cleaned(self.host.tokenizer, texts)

    def read(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> Reading:
        """Read texts, each after its prompt."""
        k = self.k
        windows, scored = [np.zeros((0, k), dtype=np.int64)], [np.zeros(0, dtype=bool)]
        for text, prompt in zip(texts, prompts, strict=True):
            before = prompt.ids[-k:]
            mine = windows_of(before + text.ids, k=k, host=self.host)[len(before) :]
            usable = (mine != ABSENT).any(axis=1)
            if not before:  # without the prompt, the first k contexts are not those at marking time
                usable[:k] = False
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
    """The distinct rows of windows (N, k), ids under ``size`` or `ABSENT`, and each row's index into them."""
    k = windows.shape[1]
    if (size + 1) ** k >= 1 << 63:
        return np.unique(windows, axis=0, return_inverse=True)
    # one integer per window sorts ten times faster
    powers = (size + 1) ** np.arange(k - 1, -1, -1, dtype=np.int64)
    codes, found = np.unique((windows - ABSENT) @ powers, return_inverse=True)
    return (codes[:, None] // powers) % (size + 1) + ABSENT, found


def pairs_of(units: I64, windows: I64, lengths: Sequence[int]) -> tuple[Pairs, ...]:
    """Pairs per text from the unit and context indices of all units, -1 where a unit is not scored."""
    width, breadth = int(units.max(initial=0)) + 1, int(windows.max(initial=0)) + 1
    scored = np.flatnonzero(windows >= 0)
    text = np.repeat(np.arange(len(lengths)), lengths)
    codes = ((text * breadth + windows) * width + units)[scored]  # one integer per pair
    distinct, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    firsts = np.searchsorted(distinct, np.arange(len(lengths) + 1) * (breadth * width)).tolist()
    positions = np.full(len(units), -1, dtype=np.int64)
    positions[scored] = inverse - np.array(firsts)[text[scored]]
    around, tokens = np.divmod(distinct % (breadth * width), width)
    weights, ends = counts.astype(np.float64), np.cumsum([0, *lengths]).tolist()
    return tuple(
        Pairs(tokens[i:j], around[i:j], weights[i:j], positions[start:end])
        for i, j, start, end in zip(firsts, firsts[1:], ends, ends[1:], strict=False)
    )


# Words as units


class WordReader(Reader):
    """Reads words."""

    def __init__(
        self,
        vectors: WordVectors,
        statistics: WordStatistics,
        *,
        k: int,
        centre: Centre = "running",
        count_once: bool = False,
    ) -> None:
        self.count_once = count_once
        self.vectors = vectors
        self.statistics = statistics
        self.tokens: WordTokens | LexiconTokens = WordTokens(vectors, statistics, centre=centre)
        self.contexts: WordContexts | LexiconContexts = WordContexts(vectors, statistics)
        self.k = k

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Split texts into words; equal ids mean equal word forms."""
        return [_word_tokens(text) for text in texts]

    def read(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> Reading:
        """Read texts, each after its prompt."""
        forms: dict[str, int] = {}
        contexts: dict[tuple[str, ...], int] = {}
        units: list[int] = []
        windows: list[int] = []
        for text, prompt in zip(texts, prompts, strict=True):
            mine, before = text.forms, prompt.forms[-self.k :]
            units += [forms.setdefault(form, len(forms)) for form in mine]
            # without the prompt, the first k contexts are not those at marking time
            skipped = 0 if before else min(self.k, len(mine))
            windows += [-1] * skipped
            around = windows_before(mine, k=self.k, before=before)[skipped:]
            counted = self._counted(mine, before)[skipped:]
            windows += [
                contexts.setdefault(window, len(contexts)) if counts else -1
                for window, counts in zip(around, counted, strict=True)
            ]
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

    def _counted(self, forms: Sequence[str], before: Sequence[str]) -> list[bool]:
        """Whether each word of a text carries the mark: where it is new, if ``count_once``."""
        if not self.count_once:
            return [True] * len(forms)
        left: dict[str, int] = {}
        found = []
        for form in forms:
            remaining = left.get(form)
            remaining = times_counted(form) if remaining is None else remaining
            found.append(remaining > 0)
            left[form] = remaining - 1
        return found

    def meta(self) -> dict[str, Any]:
        """What must match when a stored detector is loaded."""
        return {"encoder": self.vectors.encoder.identity, "words": VERSION}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The public statistics, for a stored detector."""
        return {name: getattr(self.statistics, name) for name in STATISTICS}


class LexiconReader(WordReader):
    """Reads the words of a lexicon; other words carry no mark, and add nothing to a context."""

    def __init__(
        self,
        lexicon: Lexicon,
        *,
        k: int,
        form_share: float = 0.0,
        centre: Centre = "running",
        count_once: bool = True,
    ) -> None:
        self.lexicon = lexicon
        self.tokens = self.units = LexiconTokens(lexicon, form_share=form_share, centre=centre)
        self.contexts = self._around = LexiconContexts(lexicon)
        self.k = k
        self.count_once = count_once

    def read(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> Reading:
        """Read texts, each after its prompt: all of them in one pass over rows of the lexicon."""
        k, blank = self.k, [""] * self.k
        forms: list[str] = []  # of all texts, each after k blanks and the last words of its prompt
        lengths = np.array([len(text.forms) for text in texts], dtype=np.int64)
        starts, prompted = np.zeros(len(texts), dtype=np.int64), np.zeros(len(texts), dtype=bool)
        for i, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
            before = prompt.forms[-k:]
            forms += (*blank, *before)
            starts[i], prompted[i] = len(forms), bool(before)
            forms += text.forms
        rows = self.lexicon.rows(forms)
        ends = np.cumsum(lengths)
        of_text = np.repeat(np.arange(len(texts)), lengths)
        within = np.arange(len(of_text)) - (ends - lengths)[of_text]
        places = starts[of_text] + within
        distinct, units = np.unique(rows[places], return_inverse=True)
        # without the prompt, the first k contexts are not those at marking time
        counted = self._carrying(rows, places, of_text) & (prompted[of_text] | (within >= k))
        around, found = self._windows(forms, rows, places[counted])
        windows = np.full(len(places), -1, dtype=np.int64)
        windows[counted] = found
        return Reading(
            token_rows=self.units.of_rows(distinct),
            contexts=self._around.of_rows(around),
            texts=pairs_of(units, windows, lengths.tolist()),
            ids=np.arange(len(distinct)),
            windows=np.zeros((len(around), 0), dtype=np.int64),
        )

    def _carrying(self, rows: I64, places: I64, of_text: I64) -> Mask:
        """Whether the words in these places carry the mark.

        A word does if it is in the lexicon, as is one of the k words before it, and it is new in the text if
        ``count_once``.
        """
        known = np.concatenate(([0], np.cumsum(rows > 0)))
        limits = np.where(known[places] > known[places - self.k], self.lexicon.limits[rows[places]], 0)
        if not self.count_once:
            return np.asarray(limits > 0)
        same = of_text * (len(self.lexicon) + 1) + rows[places]
        order = np.argsort(same, kind="stable")
        first = np.concatenate(([True], np.diff(same[order]) > 0))[: len(order)]
        index = np.arange(len(order))
        earlier = np.empty_like(index)  # occurrences of the same word in the same text
        earlier[order] = index - np.maximum.accumulate(np.where(first, index, 0))
        return np.asarray(earlier < limits)

    def _windows(self, forms: Sequence[str], rows: I64, places: I64) -> tuple[I64, I64]:
        """The distinct windows of k words before these places, as rows (W, k), and each place's own (N,).

        Words outside the lexicon have row 0, but windows with different ones are different.
        """
        others: dict[str, int] = {"": 0}
        codes = rows.copy()
        for i in np.flatnonzero(rows == 0).tolist():
            codes[i] = -others.setdefault(forms[i], len(others))
        codes += len(others)
        around = codes[places[:, None] + np.arange(-self.k, 0)]
        distinct, found = _distinct(around, len(others) + len(self.lexicon) + 1)
        return np.maximum(distinct - len(others), 0), found

    def meta(self) -> dict[str, Any]:
        """What must match when a stored detector is loaded."""
        return {"lexicon": self.lexicon.identity, "words": VERSION}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Nothing: the lexicon is public, and stored detectors name it."""
        return {}


def _word_tokens(text: str) -> Tokenized:
    places, forms = places_and_forms(text)
    return Tokenized(text, tuple(map(_word_id, forms)), places, tuple(forms))


@functools.lru_cache(maxsize=1 << 16)
def _word_id(form: str) -> int:
    return int.from_bytes(hashlib.blake2b(form.encode(), digest_size=7).digest(), "big")


# Opening


@dataclass(frozen=True)
class KeyIndependent:
    """The reader, the dimensions of both embeddings, and n. All keys of a process share it."""

    scheme: DewSettings
    host: HostInfo
    reader: Reader
    d_T: int
    d_C: int
    n: int

    def contexts_of(self, key: Key) -> HashedContexts | None:
        """The contexts that the key makes itself; None where they come from the text's meaning."""
        if self.scheme.context_semantics:
            return None
        return HashedContexts(key.subkey("dew/token_only"), self.d_C)

    def sources_of(self, key: Key) -> I64 | None:
        """The row of Ê_T that each token uses under this key, (vocab,); None where each uses its own."""
        if self.scheme.token_semantics or not isinstance(self.reader, TokenReader):
            return None
        markable = np.flatnonzero(np.any(self.reader.token_rows != 0, axis=1))
        return permuted_rows(key, markable, self.host.vocab_size)


# Opening checks and whitens tables for about a second, and a table takes tens of megabytes: keys bound at
# the same time share them, and nothing outlives the last one.
_OPEN: weakref.WeakValueDictionary[tuple[object, ...], KeyIndependent] = weakref.WeakValueDictionary()


def open_key_independent(scheme: DewSettings, host: HostInfo, workspace: Workspace) -> KeyIndependent:
    """Open (or build) the tables that reading needs."""
    tokenizer = "" if scheme.host_free else host.tokenizer.identity
    name = (scheme, host.identity, tokenizer, str(workspace.cache))
    found = _OPEN.get(name)
    if found is None:
        found = _OPEN[name] = _open(scheme, host, workspace)
    return found


def _open(scheme: DewSettings, host: HostInfo, workspace: Workspace) -> KeyIndependent:
    reader: Reader
    if scheme.uses_lexicon:
        reader = _lexicon_reader(scheme, workspace)
        d_T, d_C = reader.tokens.dim, reader.contexts.dim
    elif scheme.units == "word":
        encoder = load_encoder(scheme.encoder, progress=workspace.progress)
        vectors = WordVectors(encoder, workspace.cache / _WORDS_FOLDER)
        statistics = load_word_statistics(scheme.statistics, vectors=vectors, workspace=workspace)
        reader = _word_reader(scheme, vectors, statistics)
        d_T = d_C = vectors.dim
    else:
        donor = None
        if scheme.donor is not None:
            if workspace.find_host is None:
                raise ConfigError(
                    f"the donor {scheme.donor!r} cannot be looked up here; bind through dewmark.load_scheme"
                )
            donor = workspace.find_host(scheme.donor)
        rows = token_table(host, whiten=scheme.whiten_tokens, donor=donor, workspace=workspace)
        contexts, d_C = _contexts(scheme, host, workspace)
        reader, d_T = TokenReader(host, rows, contexts, k=scheme.k), rows.shape[1]
    n = projection_dim(d_T, d_C, kind=scheme.key_matrix, n=scheme.n)
    return KeyIndependent(scheme, host, reader, d_T=d_T, d_C=d_C, n=n)


def _contexts(scheme: DewSettings, host: HostInfo, workspace: Workspace) -> tuple[Contexts | None, int]:
    encoder = load_encoder(scheme.encoder, progress=workspace.progress)
    if not scheme.context_semantics:
        return None, encoder.dim
    whitening = None
    if scheme.whiten_contexts:
        whitening = load_context_whitening(
            scheme.statistics,
            encoder=encoder,
            host=host,
            encoding=scheme.context_encoding,
            k=scheme.k,
            workspace=workspace,
        )
    if scheme.context_encoding == "window":
        return WindowContexts(encoder, host.tokenizer, whitening), encoder.dim
    table = token_vectors(encoder, host, whitening=whitening, workspace=workspace)
    return ComposedContexts(table), encoder.dim


def restore_key_independent(
    scheme: DewSettings, state: State, host: HostInfo, workspace: Workspace
) -> KeyIndependent:
    """The key-independent half of a stored detector."""
    d_T, d_C = state.arrays["fold_product"].shape
    reader: Reader
    if scheme.units == "word":
        reader = _restore_words(scheme, state, workspace)
    else:
        rows = state.arrays["token_rows"]
        if len(rows) != host.vocab_size:
            raise VocabularyError(
                f"the stored table has {len(rows)} tokens, but the vocabulary has {host.vocab_size}"
            )
        reader = TokenReader(host, rows, _restore_contexts(scheme, state, host, workspace), k=scheme.k)
    return KeyIndependent(scheme, host, reader, d_T=d_T, d_C=d_C, n=int(state.meta["n"]))


def _lexicon_reader(scheme: DewSettings, workspace: Workspace) -> LexiconReader:
    lexicon = load_lexicon(scheme.lexicon, workspace=workspace)
    return LexiconReader(
        lexicon,
        k=scheme.k,
        form_share=scheme.form_share,
        centre=scheme.word_centre,
        count_once=scheme.counts_once,
    )


def _restore_words(scheme: DewSettings, state: State, workspace: Workspace) -> WordReader:
    if scheme.uses_lexicon:
        reader = _lexicon_reader(scheme, workspace)
        _check_stored(state, "lexicon", reader.lexicon.identity)
        _check_stored(state, "words", VERSION)
        return reader
    encoder = load_encoder(scheme.encoder, progress=workspace.progress)
    _check_stored(state, "encoder", encoder.identity)
    _check_stored(state, "words", VERSION)
    arrays = (np.array(state.arrays[name], dtype=np.float32) for name in STATISTICS)
    vectors = WordVectors(encoder, workspace.cache / _WORDS_FOLDER)
    return _word_reader(scheme, vectors, WordStatistics(*arrays))


def _word_reader(scheme: DewSettings, vectors: WordVectors, statistics: WordStatistics) -> WordReader:
    return WordReader(
        vectors, statistics, k=scheme.k, centre=scheme.word_centre, count_once=scheme.counts_once
    )


def _restore_contexts(
    scheme: DewSettings, state: State, host: HostInfo, workspace: Workspace
) -> Contexts | None:
    arrays = state.arrays
    if not scheme.context_semantics:
        return None
    if scheme.context_encoding == "composed":
        return ComposedContexts(arrays["context_rows"])
    encoder = load_encoder(scheme.encoder, progress=workspace.progress)
    _check_stored(state, "encoder", encoder.identity)
    whitening = None
    if scheme.whiten_contexts:
        whitening = Whitening(np.array(arrays["mean"]), np.array(arrays["matrix"]))
    return WindowContexts(encoder, host.tokenizer, whitening)


def _check_stored(state: State, name: str, value: object) -> None:
    if state.meta[name] != value:
        raise VocabularyError(
            f"the detector was made with {name} {state.meta[name]}, but here it is {value}: "
            "export the detector again"
        )
