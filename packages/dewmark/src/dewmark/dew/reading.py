"""From texts to pairs of a unit and its context, with their vectors; no key is involved.

Every distinct unit and context of a batch is looked up once. Under one key the alignments are then a small
product, so scoring the same texts under many keys repeats no work.

`LexiconReader` reads the words of a lexicon, `dewmark.dew.paper` a host's tokens.

**The expected unit**, μ_i = E[t | the text before], from a language model (`read`). The efficient score of
a small preference between candidates subtracts it: M = Σ_i w_i (t_i − μ_i) c_iᵀ. A place with one possible
word has t_i ≈ μ_i and weighs nothing, so no threshold on the entropy is needed. μ_i is the mean of the
candidates' vectors; the probability that they leave to other words goes to the text's mean unit t̄, so a
model that knows nothing of a text, or of its language, leaves the test as it is without a model. The h of a
word (`dewmark.dew.form`) weighs by what it is expected to be if the text is marked. μ_i and the weights are
functions of the text, so z and z_F are still N(0, 1) over keys. The packaged reader gives μ_i itself, up to
the text's own mean: M = Σ_i w_i (t_i − μ_i − δ) c_iᵀ, where δ is the mean of t_i − μ_i over the text; h
weighs by ‖t_i − μ_i − δ‖.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dewmark.arrays import F32, F64, I64, Mask
from dewmark.dew.form import NO_FORM, FormPairs, form_pairs, window_numbers
from dewmark.dew.packaged_reader import PackagedReader, load_packaged_reader
from dewmark.encoders.lexicon import Lexicon
from dewmark.errors import ConfigError, VocabularyError
from dewmark.room import gain_of
from dewmark.scheme import State
from dewmark.text.windows import ABSENT
from dewmark.text.words import places_and_forms
from dewmark.workspace import NO_READER, Expectations, ExpectedWords, ReaderFolder, Texts, Tokenized

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

__all__ = ["READ", "LexiconReader", "Pairs", "pairs_of", "read"]


@dataclass(frozen=True)
class Pairs:
    """The N distinct (unit, context) pairs of one text of L units.

    ``tokens`` and ``windows`` (N,) index the batch's distinct units and contexts, ``weights`` (N,) count the
    occurrences, and ``positions`` (L,) give each unit's pair, or -1 if it is not scored. ``expected`` (N,)
    are the rows of what a language model expected in the place of each pair, and ``unforeseen`` (N,) the
    share that it left to other words (`read`); None without such a model. ``form`` are the words whose h
    counts (`dewmark.dew.form`).
    """

    tokens: I64
    windows: I64
    weights: F64
    positions: I64
    expected: I64 | None = None
    unforeseen: F32 | None = None
    form: FormPairs = NO_FORM


@dataclass(frozen=True)
class Reading:
    """A batch: V distinct units with ê_T (V, d_T), W distinct contexts with ê_C (W, d_C), pairs per text.

    Further rows of ``token_rows`` are what a language model expected in place of units, if one read them.
    ``carrying`` are the shares of the texts' words that have a row, their own or a borrowed one.
    """

    token_rows: F32
    context_rows: F32
    texts: tuple[Pairs, ...]
    carrying: tuple[float, ...]


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


def distinct_windows(windows: I64, size: int) -> tuple[I64, I64]:
    """The distinct rows of windows (N, k), ids under ``size`` or `ABSENT`, and each row's index into them."""
    k = windows.shape[1]
    if (size + 1) ** k >= 1 << 63:
        return np.unique(windows, axis=0, return_inverse=True)
    # one integer per window sorts ten times faster
    powers = (size + 1) ** np.arange(k - 1, -1, -1, dtype=np.int64)
    codes, found = np.unique((windows - ABSENT) @ powers, return_inverse=True)
    return (codes[:, None] // powers) % (size + 1) + ABSENT, found


def _word_tokens(text: str) -> Tokenized:
    places, forms = places_and_forms(text)
    return Tokenized(text, tuple(map(_word_id, forms)), places, tuple(forms))


@functools.lru_cache(maxsize=1 << 16)
def _word_id(form: str) -> int:
    return int.from_bytes(hashlib.blake2b(form.encode(), digest_size=7).digest(), "big")


class LexiconReader:
    """Reads the words of a lexicon; words without a row carry no mark, and add nothing to a context."""

    def __init__(self, lexicon: Lexicon, *, k: int) -> None:
        self.lexicon = lexicon
        self.packaged: PackagedReader | None = load_packaged_reader(lexicon)
        self.k = k

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Split texts into words; equal ids mean equal word forms."""
        return [_word_tokens(text) for text in texts]

    def read(self, texts: Texts, prompts: Texts) -> Reading:
        """Read texts, all in one pass over rows of the lexicon; their first k words carry no mark."""
        forms: list[str] = [""] * self.k  # before all texts, so that every word has k words before it
        for text in texts:
            forms += text.forms
        rows = self.lexicon.rows(forms)
        lengths = np.array([len(text.forms) for text in texts], dtype=np.int64)
        of_text = np.repeat(np.arange(len(texts)), lengths)
        places = self.k + np.arange(len(of_text))
        within = places - self.k - (np.cumsum(lengths) - lengths)[of_text]
        distinct, units = np.unique(rows[places], return_inverse=True)
        known = rows > 0
        possible = known[places] & (within >= self.k) & (_preceding(known, self.k)[places] > 0)
        counted = possible & self._new(rows, places, of_text)
        around, found = self._windows(forms, rows, places[counted])
        windows = np.full(len(places), -1, dtype=np.int64)
        windows[counted] = found
        before = np.where(within[:, None] + np.arange(-self.k, 0) >= 0, rows[_before(places, self.k)], 0)
        parts, ends = window_numbers(before), np.cumsum(lengths).tolist()
        numbers = rows[places].astype(np.uint64) + parts
        read, carrying = [], []
        for pairs, start, end in zip(
            pairs_of(units, windows, lengths.tolist()), [0, *ends], ends, strict=False
        ):
            own = slice(start, end)
            form = form_pairs(numbers[own], parts[own], possible=possible[own])
            read.append(dataclasses.replace(pairs, form=form))
            carrying.append(round(float(known[places[own]].mean()), 4) if end > start else 0.0)
        return Reading(
            token_rows=self.lexicon.tokens(distinct),
            context_rows=self.lexicon.contexts_of(around),
            texts=tuple(read),
            carrying=tuple(carrying),
        )

    def scored(self, forms: Sequence[str]) -> Mask:
        """Which words (N,) of one text carry the mark of their meaning."""
        rows = self.lexicon.rows(("",) * self.k + tuple(forms))
        index = np.arange(len(forms))
        places = self.k + index
        near = _preceding(rows > 0, self.k)[places] > 0
        return self._new(rows, places, np.zeros_like(index)) & near & (index >= self.k)

    def _new(self, rows: I64, places: I64, of_text: I64) -> Mask:
        """Whether the words in these places have a row that has not occurred as often as it may."""
        limits = self.lexicon.limits[rows[places]]
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
        unlisted = np.flatnonzero(rows == 0).tolist()
        # in the order of their forms: a text's pairs are in one order, whatever it is read with
        others = {form: code for code, form in enumerate(sorted({"", *(forms[i] for i in unlisted)}))}
        codes = rows.copy()
        for i in unlisted:
            codes[i] = -others[forms[i]]
        codes += len(others)
        around = codes[_before(places, self.k)]
        distinct, found = distinct_windows(around, len(others) + len(self.lexicon) + 1)
        return np.maximum(distinct - len(others), 0), found


def _before(places: I64, k: int) -> I64:
    """The k places before each of some, (N, k)."""
    return np.asarray(places[:, None] + np.arange(-k, 0))


def _preceding(known: Mask, k: int) -> I64:
    """How many of the k words before each place are known; from place k on, (N,)."""
    sums = np.concatenate(([0], np.cumsum(known)))
    return np.asarray(sums[:-1] - np.concatenate((np.zeros(k, dtype=np.int64), sums))[: len(known)])


# What was expected in the place of each unit

PROMPT = 64
"""The last words of a prompt, which the packaged reader reads before a text."""
_UNNAMED = np.array(1e-5)  # the probability of a word that a reader did not name
READ = 4096
"""The words of a text that the packaged reader reads; what follows is compared with δ alone."""


def read(reader: LexiconReader, expectations: Expectations | None, texts: Texts, prompts: Texts) -> Reading:
    """Read texts, each after its prompt, with what the reader expected in them.

    That is a language model, or without one (None) the reader that comes with the package.
    """
    reading, packaged = reader.read(texts, prompts), reader.packaged
    if isinstance(expectations, ReaderFolder):
        packaged = load_packaged_reader(reader.lexicon, expectations.folder)
        if packaged is None:
            raise ConfigError(f"the reader {expectations.name} is for another lexicon: train it anew")
    elif expectations is not None:
        if expectations.name == NO_READER.name:
            return reading
        expected = expectations.read([text.text for text in texts], [prompt.text for prompt in prompts])
        return add_expectations(reading, texts, expected, reader.lexicon)
    return reading if packaged is None else add_means(reading, reader, packaged, texts, prompts)


def add_means(
    reading: Reading, reader: LexiconReader, packaged: PackagedReader, texts: Texts, prompts: Texts
) -> Reading:
    """The reading of ``texts``, and behind its units' rows μ + δ of each pair, by the packaged reader."""
    blocks, made, size = [reading.token_rows], [], len(reading.token_rows)
    for pairs, text, prompt in zip(reading.texts, texts, prompts, strict=True):
        n = len(pairs.tokens)
        scored = np.flatnonzero(pairs.positions >= 0)
        before = prompt.forms[-PROMPT:]
        rows = reader.lexicon.listed_rows((*before, *text.forms[:READ]))
        scored = scored[scored < READ]
        means = packaged.means(rows)[len(before) :]
        own = pairs.positions[scored]
        sums = np.zeros((n, reading.token_rows.shape[1]), dtype=np.float32)
        counts = np.bincount(own, minlength=n)
        if counts.max(initial=0) > 1:
            np.add.at(sums, own, means[scored])
            sums /= np.maximum(counts, 1)[:, None].astype(np.float32)
        else:  # much faster
            sums[own] = means[scored]
        share = (pairs.weights / max(pairs.weights.sum(), 1.0)).astype(np.float32)
        shift = share @ (reading.token_rows[pairs.tokens] - sums)  # δ
        sums += shift
        blocks.append(sums)
        none = np.zeros(n, dtype=np.float32)
        form = _surprising(pairs.form, means + shift, reader.lexicon)
        made.append(dataclasses.replace(pairs, expected=size + np.arange(n), unforeseen=none, form=form))
        size += n
    return dataclasses.replace(reading, token_rows=np.concatenate(blocks), texts=tuple(made))


def _surprising(form: FormPairs, means: F32, lexicon: Lexicon) -> FormPairs:
    """The words whose h counts, weighted by how far they are from what was expected in their place.

    ``means`` (L, d_T) are μ + δ of the words that were read; the others weigh as the mean of these.
    """
    read = form.places < len(means)
    if form.rows is None or not read.any():
        return form
    units = lexicon.tokens(form.rows[read])
    weights = np.zeros(len(read))
    weights[read] = np.linalg.norm(units - means[form.places[read]], axis=1)
    weights[~read] = weights[read].mean()
    return dataclasses.replace(form, weights=weights)


def add_expectations(
    reading: Reading, texts: Texts, expected: Sequence[ExpectedWords], lexicon: Lexicon
) -> Reading:
    """The reading of ``texts``, and behind its units' rows one row for each pair that has a place.

    A pair that occurs several times gets the mean of its places, which leaves the text's matrix M what it is
    when every occurrence has its own. Words whose h counts weigh by what the reader left to choose.
    """
    known: dict[str, int] = {}
    for words in expected:
        for form in words.forms:
            known.setdefault(form, len(known))
    lexicon_rows = lexicon.rows(list(known))
    rows = lexicon.tokens(lexicon_rows)
    marks = np.any(rows != 0.0, axis=1).astype(np.float32)  # a word without a vector carries no mark
    nothing = np.zeros((1, reading.token_rows.shape[1]), dtype=np.float32)
    blocks, made = [reading.token_rows, nothing], []
    size = len(reading.token_rows) + 1
    for pairs, text, words in zip(reading.texts, texts, expected, strict=True):
        forms = np.fromiter((known[form] for form in words.forms), dtype=np.int64, count=len(words.forms))
        likely, chosen = _probabilities(pairs, text, words)
        blocks.append(np.asarray(likely @ rows[forms], dtype=np.float32))
        index = np.full(len(pairs.tokens), len(reading.token_rows), dtype=np.int64)
        index[chosen] = size + np.arange(len(chosen))
        unforeseen = np.ones(len(pairs.tokens), dtype=np.float32)
        unforeseen[chosen] = np.maximum(1.0 - likely @ marks[forms], 0.0)
        weighed = _weighed(pairs.form, text, words, lexicon_rows[forms])
        made.append(dataclasses.replace(pairs, expected=index, unforeseen=unforeseen, form=weighed))
        size += len(chosen)
    return dataclasses.replace(reading, token_rows=np.concatenate(blocks), texts=tuple(made))


def _weighed(form: FormPairs, text: Tokenized, words: ExpectedWords, rows: I64) -> FormPairs:
    """The words whose h counts, weighted by the h to expect of them if they are marked.

    That is g(p) (`dewmark.room`), where p is what the reader gave to the word's row. As the reader is not
    quite the writer, the weight is the geometric mean of this and of Σ p g(p) over all words in its place.
    ``rows`` are those of the forms that it expected. Words without a place weigh as the mean of the others.
    """
    place, known = _places_of(text, words)
    place, known = place[form.places], known[form.places]
    if form.rows is None or not known.any():
        return form
    own = np.full(len(words.starts), -1, dtype=np.int64)
    own[place[known]] = form.rows[known]
    at = np.repeat(np.arange(len(own)), np.diff(words.bounds))
    same = rows[words.index] == own[at]
    p = np.bincount(at[same], weights=words.probabilities[same], minlength=len(own))[place[known]]
    likely = words.probabilities.astype(np.float64)
    left = 1.0 - np.bincount(at, weights=likely, minlength=len(own))  # to words that it did not name
    mean = np.bincount(at, weights=likely * gain_of(likely), minlength=len(own))
    mean = (mean + np.maximum(left, 0.0) * gain_of(_UNNAMED))[place[known]]
    gains = np.zeros(len(place))
    gains[known] = np.sqrt(gain_of(np.maximum(p, _UNNAMED)) * mean)
    gains[~known] = gains[known].mean()
    return dataclasses.replace(form, weights=gains)


def _places_of(text: Tokenized, words: ExpectedWords) -> tuple[I64, Mask]:
    """Which of a reader's places each word of a text has, (L,), and whether it has one."""
    starts = np.array([start for start, _ in text.offsets], dtype=np.int64)
    place = np.searchsorted(words.starts, starts)
    return place, np.append(words.starts, -1)[place] == starts


def _probabilities(pairs: Pairs, text: Tokenized, words: ExpectedWords) -> tuple[csr_matrix, I64]:
    """Probabilities (E, forms) in the places of E pairs that have one, and which pairs they are, (E,)."""
    from scipy.sparse import csr_matrix  # slow to import, and detection without a reader does without

    place, known = _places_of(text, words)
    scored = np.flatnonzero(known & (pairs.positions >= 0))
    chosen, own = np.unique(pairs.positions[scored], return_inverse=True)
    shape = (len(words.starts), len(words.forms))
    likely = csr_matrix((words.probabilities, words.index, words.bounds), shape=shape)
    share = (1.0 / np.bincount(own, minlength=len(chosen))[own]).astype(np.float32)
    each = csr_matrix((share, (own, place[scored])), shape=(len(chosen), shape[0]))
    return each @ likely, chosen


def check_stored(state: State, name: str, value: object) -> None:
    """Raise `VocabularyError` where a stored detector was made with something else."""
    if state.meta[name] != value:
        raise VocabularyError(
            f"the detector was made with {name} {state.meta[name]}, but here it is {value}: "
            "export the detector again"
        )
