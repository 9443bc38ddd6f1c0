"""Words of a lexicon while texts are written: one step for all rows of a batch, without strings.

A host's pieces over the lexicon form a trie (`dewmark.text.trie`): (state, token) → state, and a state knows
the word that is open. So all that a text's next token depends on is a few numbers per row, and a step is a
few gathers on whatever device the logits are on; nothing waits for the device, and no encoder runs.

A candidate that begins a word is scored as that word, after the k words before it. One that extends the open
word is scored as the longer word, after the words before that one: "run" and then "ning" are two choices in
one context. One that holds two words, as tokens of Chinese and Japanese do, is scored as the first. A word
that the lexicon does not list borrows a row by its spelling. Candidates without a row carry no mark, nor do
the first k words of a text.

    u = t_w · v,    v = W c,    c = normalise(Σ_j c_j over the last k words)

The key enters through v and through h, whose numbers rows and contexts make (`dewmark.dew.form`), so rows
under different keys share all tables. The states also hold the keyed noise that the last steps used, given
which the next noise is drawn (`dewmark.dew.noise`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F32, I64
from dewmark.cuda import MAX_COUNT
from dewmark.cuda.word_race import RaceState, push_words, usable, without_kernels
from dewmark.dew.form import powers
from dewmark.dew.matrix import UseKey
from dewmark.dew.reference import KEPT, STEPS
from dewmark.encoders.lexicon import Lexicon
from dewmark.room import gain
from dewmark.text.trie import CLOSED, CUT, UNKNOWN, Trie, load_trie
from dewmark.text.words import SPELLINGS
from dewmark.workspace import HostInfo, Workspace

_WINDOWS = 1024  # contexts that a text remembers
_ROWS_AT_ONCE = 4096
# Words alike are drawn by noise alike, of which the winner keeps less, and detection flattens what is left:
# z was 0.73 to 0.77 of what independent words would gain (real words, temperature 0.3 to 1); z_F 1.03 to 1.06
GAIN_KEPT = 0.75
"""The share of √α g(p) that is found (`dewmark.room`)."""


_TABLES: weakref.WeakValueDictionary[tuple[object, ...], WordTables] = weakref.WeakValueDictionary()


def word_tables(
    host: HostInfo, lexicon: Lexicon, *, device: torch.device, workspace: Workspace
) -> WordTables:
    """The tables of a host and a lexicon on a device, shared by all keys; the trie is cached on disk."""
    name = (lexicon.identity, host.tokenizer.identity, host.vocab_size, str(device))
    found = _TABLES.get(name)
    if found is None:
        trie = load_trie(
            lexicon.forms, host.tokenizer, host.vocab_size, identity=lexicon.identity, workspace=workspace
        )
        found = _TABLES[name] = WordTables(trie, lexicon, device=device)
    return found


class WordTables:
    """The lexicon and a host's trie over it on one device, common to all keys.

    ``units`` (R + 1, d_T) and ``contexts`` (R + 1, d_C) are the vectors of the R words; row 0 is no word.
    """

    def __init__(self, trie: Trie, lexicon: Lexicon, *, device: torch.device) -> None:
        self.device = device
        self.vocab_size = trie.vocab_size
        size = len(lexicon.forms) + 1
        self.units = _half_precision(lexicon.tokens, size).to(device)
        self.contexts = _half_precision(lexicon.contexts, size).to(device)
        self.limits = torch.from_numpy(lexicon.limits.astype(np.int8)).to(device)

        def on_device(array: NDArray[Any], *last: int) -> torch.Tensor:
            whole = np.concatenate((array, np.array(last, dtype=np.int64)), dtype=np.int64, casting="unsafe")
            return torch.from_numpy(whole).to(device)

        self.parts = torch.from_numpy(trie.parts.astype(np.int64)).to(device)
        self.keys = on_device(trie.keys, np.iinfo(np.int64).max)
        self.targets = on_device(trie.targets, UNKNOWN)
        self.after_break, self.inner, self.rows = map(on_device, (trie.after_break, trie.inner, trie.rows))
        self.spelled, self.factors, self.terms = map(on_device, (trie.spelled, trie.factors, trie.terms))
        self.breaks, self.opens = (
            torch.from_numpy(np.array(each)).to(device) for each in (trie.breaks, trie.opens)
        )
        self.kernels = usable(device.type) and self._kernels_agree()

    def _kernels_agree(self) -> bool:
        """Whether texts grow by the kernels as they do in torch, tried once on this device."""
        tokens = torch.arange(4 * 48, device=self.device).reshape(4, 48) * 7919 % self.vocab_size
        mine, other = WordStates(self, len(tokens), k=3), WordStates(self, len(tokens), k=3)
        mine.push_in_torch(tokens)
        try:
            push_words(self, other.state, tokens)
            same = all(torch.equal(*both) for both in zip(mine.state, other.state, strict=True))
        except Exception as error:  # noqa: BLE001 - whatever the compiler raises
            return without_kernels(error)
        return same or without_kernels("texts grow differently")

    def follow(self, states: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The state after each token (batch, …), and whether the token ends the word that was open.

        ``states`` broadcast to the tokens' shape.
        """
        keys = states * len(self.breaks) + tokens
        at = torch.searchsorted(self.keys, keys)  # the last key is larger than any
        spelled, factors = self.spelled[states], self.factors[tokens]
        grown = (spelled * factors + self.terms[tokens]) % SPELLINGS + (len(self.rows) - 2 * SPELLINGS)
        grown = torch.where((spelled >= 0) & (factors >= 0), grown, UNKNOWN)
        listed, breaks = self.keys[at] == keys, self.breaks[tokens] | (spelled == CUT)
        otherwise = torch.where(breaks, self.after_break[tokens], grown)
        return torch.where(listed, self.targets[at], otherwise), breaks & ~listed


def _half_precision(vectors: Callable[[I64], F32], size: int) -> torch.Tensor:
    """The vectors (size, d) of all rows in float16; some rows at a time, because new memory is slow."""
    starts = range(0, size, _ROWS_AT_ONCE)
    rows = (np.arange(start, min(start + _ROWS_AT_ONCE, size)) for start in starts)
    return torch.from_numpy(np.concatenate([vectors(each).astype(np.float16) for each in rows]))


class KeyTensors(NamedTuple):
    """A key's W (d_T, d_C) and `FormKey.words` (3,), or each row's, (batch, d_T, d_C) and (batch, 3)."""

    W: torch.Tensor
    form: torch.Tensor


def key_tensors(own: UseKey, device: torch.device) -> KeyTensors:
    """The numbers of a key on a device; without h, zeros, which no mixture uses."""
    form = np.zeros(3, dtype=np.int64) if own.form is None else own.form.words
    return KeyTensors(torch.from_numpy(own.W).to(device), torch.from_numpy(form).to(device))


@dataclass(frozen=True)
class Aligned:
    """The m candidates of one step for each of B texts.

    ``rows`` (B, m) are their words in the lexicon, 0 where a candidate has no u, ``units`` (B, m, d_T) the
    words' vectors, ``u`` (B, m) the alignments, and ``pairs`` (B, m) the numbers of words in their contexts,
    0 where a candidate carries no mark. ``begins`` (B, m) says which of the two ``contexts``
    (B, 2, d_C) a candidate has: the first if it begins a word, the second if it extends one.
    """

    rows: torch.Tensor
    units: torch.Tensor
    u: torch.Tensor
    pairs: torch.Tensor
    begins: torch.Tensor
    contexts: torch.Tensor


class WordStates:
    """What the next tokens of a batch of texts depend on; every tensor has one row per text."""

    def __init__(self, tables: WordTables, size: int, *, k: int) -> None:
        device, d_C = tables.device, tables.contexts.shape[1]

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
            return torch.zeros((size, *shape), dtype=dtype, device=device)

        self.tables = tables
        self.k = k
        self.state = RaceState(
            open=torch.full((size,), CLOSED, dtype=torch.long, device=device),
            recent=zeros(k),
            counts=zeros(len(tables.limits), dtype=torch.int8),
            seen=zeros(_WINDOWS),
            finished=zeros(1),
            repeated=zeros(1, dtype=torch.bool),
            odd=torch.from_numpy(powers(k).view(np.int64)).to(device),
            past_rows=zeros(STEPS * KEPT),
            past_pairs=zeros(STEPS * KEPT),
            past_roots=zeros(STEPS * KEPT, dtype=torch.float32),
            past_y=zeros(STEPS * KEPT, dtype=torch.float32),
            past_contexts=zeros(STEPS * KEPT, d_C, dtype=torch.float32),
            steps=zeros(1),
            room=zeros(8, dtype=torch.float32),
        )

    def __len__(self) -> int:
        return len(self.state.open)

    @property
    def _parts(self) -> tuple[torch.Tensor, ...]:
        """The tensors with one row per text."""
        return tuple(each for each in self.state if each is not self.state.odd)

    def at(self, rows: torch.Tensor) -> WordStates:
        """A copy of these rows (n,)."""
        found = WordStates(self.tables, len(rows), k=self.k)
        for mine, theirs in zip(self._parts, found._parts, strict=True):
            torch.index_select(mine, 0, rows, out=theirs)
        return found

    def put(self, rows: torch.Tensor, states: WordStates) -> None:
        """Replace these rows (n,)."""
        for mine, theirs in zip(self._parts, states._parts, strict=True):
            mine.index_copy_(0, rows, theirs)

    def push(self, ids: torch.Tensor) -> None:
        """Append ids (batch, count) to the texts; negative ones are no tokens."""
        if self.tables.kernels:
            push_words(self.tables, self.state, ids)
        else:
            self.push_in_torch(ids)

    def push_in_torch(self, ids: torch.Tensor) -> None:
        """`push` without kernels."""
        parts = self.tables.parts[ids.clamp_min(0)].masked_fill(ids.unsqueeze(2) < 0, -1)
        for tokens in parts.flatten(1).unbind(1):
            if tokens.device.type != "cpu" or bool((tokens >= 0).any()):
                self._push(tokens)

    def _push(self, tokens: torch.Tensor) -> None:
        tables, state = self.tables, self.state.open
        real, tokens = tokens >= 0, tokens.clamp_min(0)
        after, ends = tables.follow(state, tokens)
        ends &= real
        inner = tables.inner[tokens]
        self._finish(ends & tables.opens[state], tables.rows[state])
        self._finish(ends & (inner >= 0), inner.clamp_min(0))
        state.copy_(torch.where(real, after, state))

    def _finish(self, which: torch.Tensor, rows: torch.Tensor) -> None:
        """End a word, rows (batch,), in each text of ``which`` (batch,)."""
        if which.device.type == "cpu" and not bool(which.any()):  # elsewhere looking would be waiting
            return
        s, column, which = self.state, rows.unsqueeze(1), which.unsqueeze(1)
        counts = s.counts.gather(1, column)
        s.counts.scatter_(1, column, torch.where(which & (counts < MAX_COUNT), counts + 1, counts))
        moved = torch.cat((s.recent[:, 1:], column), dim=1)
        s.recent.copy_(torch.where(which, moved, s.recent))
        window = self._hashed(s.recent)
        repeated = (s.seen == window).any(dim=1, keepdim=True)
        s.repeated.copy_(torch.where(which, repeated, s.repeated))
        place = s.finished % _WINDOWS
        s.seen.scatter_(1, place, torch.where(which, window, s.seen.gather(1, place)))
        s.finished.add_(which)

    def _hashed(self, windows: torch.Tensor) -> torch.Tensor:
        """One number per window (batch, k), (batch, 1), as `dewmark.dew.form.window_numbers`."""
        return ((windows + 1) * self.state.odd).sum(dim=1, keepdim=True)

    def align(
        self, candidates: torch.Tensor, W: torch.Tensor, *, able: torch.Tensor | None = None
    ) -> Aligned:
        """u of candidates (batch, m) under a key's W (d_T, d_C), or each row's own (batch, d_T, d_C).

        Those that are not ``able`` (batch, m) to come next, if that is known, carry no mark.
        """
        tables, s = self.tables, self.state
        state = s.open.unsqueeze(1)
        is_open, own = tables.opens[state], tables.rows[state]
        after, ends = tables.follow(state, candidates)
        begins = ends | ~is_open
        inner = tables.inner[candidates]
        rows = torch.where(ends & (inner >= 0), inner, tables.rows[after])
        rows = rows.masked_fill(~begins & (rows == own), 0)
        vectors = tables.contexts[s.recent].float()
        extended = vectors.sum(dim=1)
        begun = torch.where(is_open, vectors[:, 1:].sum(dim=1) + tables.contexts[own[:, 0]].float(), extended)
        c = torch.nn.functional.normalize(torch.stack((begun, extended), dim=1), dim=-1, eps=1e-6)
        counts = s.counts.gather(1, rows) + (begins & is_open & (rows == own))
        window, recent = self._hashed(torch.cat((s.recent[:, 1:], own), dim=1)), self._hashed(s.recent)
        again, opens = (s.seen == window).any(dim=1, keepdim=True), begins & is_open
        nothing = (c == 0.0).all(dim=2)  # no word of the context has a row
        without = torch.where(opens, again, s.repeated) | (s.finished + opens < self.k) | (rows == 0)
        without |= torch.where(begins, nothing[:, :1], nothing[:, 1:])
        if able is not None:
            without |= ~able
        pairs = (rows + torch.where(opens, window, recent)).masked_fill(without, 0)
        rows = rows.masked_fill(without | (counts >= tables.limits[rows]), 0)
        units = torch.nn.functional.embedding(rows, tables.units).float()
        both = torch.bmm(units, (c @ W.mT).transpose(1, 2))
        return Aligned(rows, units, torch.where(begins, both[..., 0], both[..., 1]), pairs, begins, c)

    @property
    def room(self) -> torch.Tensor:
        """Σ √α g(p) over the words with u and their number, Σ √β g(p) and the number with h, (batch, 4)."""
        return self.state.room[:, :4] + self.state.room[:, 4:]

    def measure(
        self, log_share: torch.Tensor, roots: torch.Tensor, *, marked: torch.Tensor, begins: torch.Tensor
    ) -> None:
        """Count the room of the tokens (batch,) that come next (`dewmark.room`).

        They have these log-probabilities, and √α and √β (batch, 2), 0 where a token has no u or no h;
        ``begins`` says which do not extend the open word.
        """
        settled, open_word = self.state.room[:, :4], self.state.room[:, 4:]
        # a longer word that carries the mark replaces what the shorter one left
        settled.add_(open_word * (begins | ~marked).unsqueeze(1))
        left, some = roots * gain(log_share).unsqueeze(1), (roots > 0.0).float()
        open_word.copy_(torch.stack((GAIN_KEPT * left[:, 0], some[:, 0], left[:, 1], some[:, 1]), dim=1))

    def remember(
        self,
        aligned: Aligned,
        y: torch.Tensor,
        used: torch.Tensor,
        roots: tuple[torch.Tensor, torch.Tensor],
        *,
        free: torch.Tensor,
    ) -> None:
        """Keep the noise y (B, m) of the candidates ``used`` (B, KEPT), as places among the m; −1 is none.

        ``roots`` (B, m) each are √α of the candidates, by which their contexts are scaled, and √β. Only
        rows that are ``free`` (B,) to choose remember the step, and forget what is older than the last ones.
        """
        s, none, used = self.state, used < 0, used.clamp_min(0)
        pairs = aligned.pairs.gather(1, used).masked_fill(none, 0)
        marked = pairs != 0
        rows = aligned.rows.gather(1, used) * marked
        index = torch.where(aligned.begins.gather(1, used), 0, 1)
        contexts = aligned.contexts.gather(1, index.unsqueeze(2).expand(-1, -1, aligned.contexts.shape[2]))
        contexts = contexts * (marked * roots[0].gather(1, used)).unsqueeze(2)
        at = s.steps % STEPS * KEPT + torch.arange(used.shape[1], device=rows.device)
        any_marked = marked.any(dim=1, keepdim=True) & free.unsqueeze(1)
        noise = y.gather(1, used).float().masked_fill(~marked, 0.0)
        root = roots[1].gather(1, used) * marked
        kept = ((s.past_rows, rows), (s.past_pairs, pairs), (s.past_roots, root), (s.past_y, noise))
        for past, new in kept:
            past.scatter_(1, at, torch.where(any_marked, new, past.gather(1, at)))
        deep = at.unsqueeze(2).expand_as(contexts)
        old = s.past_contexts.gather(1, deep)
        s.past_contexts.scatter_(1, deep, torch.where(any_marked.unsqueeze(2), contexts, old))
        s.steps.add_(any_marked)
