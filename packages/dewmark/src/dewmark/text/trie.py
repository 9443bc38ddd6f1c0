"""The trie of a tokenizer's pieces over a list of word forms: what each token does to the open word.

While a host writes, the end of its text is an open word, which the next token continues or ends. With a fixed
list of forms that is a finite automaton. Its states are `CLOSED` (no open word), `UNKNOWN` (an open word that
cannot be followed), `ENDED`, the prefixes of the listed forms, and the P spellings of words that are no such
prefix (`dewmark.text.words.spelling`), once for each kind of script. One step for a token is:

    (state, token) in keys     the state in targets; no word ends
    else, if breaks[token] or  the open word ends (if opens[state], with row rows[state]); then inner[token],
      spelled[state] = CUT     if it is not -1, is a whole word inside the token; then after_break[token]
    else, if neither is -1     the spelling spelled[state] · factors[token] + terms[token] mod P
    else                       UNKNOWN

A token that was written is pushed by its ``parts``: each character of a script without spaces is one, because
a word may end after any of them. A candidate needs the first word alone: it is listed as far as it extends
the open word. Tokens that are part of a character lead to states of their own, after listed prefixes alone;
those of Arabic vowel points have no parts.

Words are those of `dewmark.text.words`, forms and apostrophes included. `ENDED` is the state after a word and
one sign that joins letters ("bridge." or "bridge'"): letters directly after it make a longer word. After a
token that both ends the open word and begins another ("e of"), or is of letters in another style, or part of
a character that is in no unit, the state is UNKNOWN until the next break. Chinese, Japanese and Thai words
are `CUT`: a part that does not lead to a longer beginning of a unit starts another word, as in `words`.

Boundary: numpy arrays of states and rows; no vectors, no keys. Time to build is linear in the prefixes of the
forms, which are matched against the pieces level by level.
"""

from __future__ import annotations

import contextlib
import hashlib
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import regex
from numpy.typing import NDArray

from dewmark.arrays import I32, I64
from dewmark.errors import ArtifactError, StorageError
from dewmark.storage import load_bundle, save_bundle
from dewmark.text.spelling import Spelling
from dewmark.text.words import (
    SPELLINGS,
    VERSION,
    borrowed_rows,
    form_of,
    open_tail,
    simplified,
    spelling,
    spellings,
    units,
    words,
)
from dewmark.workspace import Tokenizer, Workspace

__all__ = ["load_trie"]

CLOSED, UNKNOWN, ENDED = 0, 1, 2
CUT = -2  # the spelling of a state whose word any token ends that does not extend it

_FIRST = 3  # the state of the first prefix
_LAYOUT = 4  # of cached files


@dataclass(frozen=True)
class Trie:
    """E transitions between S states over V tokens and parts; see the module for the rule of one step.

    ``parts`` (``vocab_size``, m) are the parts of each token, -1 behind them; the tokens are parts too.
    ``keys`` (E,) are state * V + token, sorted, and ``targets`` (E,) the states that they lead to.
    ``breaks``, ``after_break`` and ``inner`` (V,) describe tokens that end the open word: the state after
    them, and the row of a whole word inside them (0 for one that is not listed, -1 for none).
    ``rows`` (S,) is the row of the open word as it stands ("don'" has the row of "don"), 0 if it has none.
    Row i + 1 belongs to form i. ``spelled`` (S,) are the spellings of open words, -1 if a word cannot be
    followed by its spelling, and ``factors`` and ``terms`` (V,) what tokens do to a spelling. The last 2 P
    states are the spellings, first those of scripts with spaces.
    """

    parts: I32
    keys: I64
    targets: I32
    breaks: NDArray[np.bool_]
    after_break: I32
    inner: I32
    rows: I32
    spelled: I32
    factors: I32
    terms: I32
    vocab_size: int

    @property
    def opens(self) -> NDArray[np.bool_]:
        """Whether a word is open in each state (S,)."""
        return ~np.isin(np.arange(len(self.rows)), (CLOSED, ENDED))


def load_trie(
    forms: Sequence[str], tokenizer: Tokenizer, vocab_size: int, *, identity: str, workspace: Workspace
) -> Trie:
    """The trie of a tokenizer over a lexicon with this identity, built once and cached."""
    name = f"{_LAYOUT}|{VERSION}|{identity}|{tokenizer.identity}|{vocab_size}"
    path = workspace.cache / "tries" / hashlib.sha256(name.encode()).hexdigest()[:20]
    with contextlib.suppress(ArtifactError, KeyError, TypeError):
        bundle = load_bundle(path)
        return Trie(**bundle.arrays, vocab_size=int(bundle.meta["vocab_size"]))
    workspace.progress("building the trie", 0, 1)
    spelled = Spelling(tokenizer, vocab_size)
    characters = set(map(chr, simplified())).union(*forms, *units())
    written = sorted(characters.union(*map(str.upper, characters)))
    split = spelled.split(list(filter(_NOT_ASCII.match, written)))
    built = build_trie(forms, spelled.pieces, special=tokenizer.special_ids, split=split)
    arrays = {field.name: getattr(built, field.name) for field in fields(built) if field.name != "vocab_size"}
    with contextlib.suppress(StorageError):  # a full or read-only disk: build it again next time
        save_bundle(path, meta={"vocab_size": vocab_size}, arrays=arrays)
    workspace.progress("building the trie", 1, 1)
    return built


def build_trie(
    forms: Sequence[str], pieces: Sequence[str], *, special: Collection[int], split: Split | None = None
) -> Trie:
    """The trie of a tokenizer's pieces (`Spelling.pieces`) over forms; ``special`` tokens end a word.

    ``split`` are the characters that the tokenizer cuts, by the ids that write them.
    """
    parts, named = _parts(pieces, special, {ids[0] for ids in split or ()})
    links = _links({(parts[ids[0]].max(), *ids[1:]): each for ids, each in (split or {}).items()})
    states = _States.of(forms, links)
    effects = _Effects.of(named, frozenset(special), states)
    before, tokens, targets = _transitions(states, effects)
    keys = before * len(named) + tokens
    keys, first = np.unique(keys, return_index=True)
    return Trie(
        parts=parts,
        keys=keys,
        targets=targets[first].astype(np.int32),
        breaks=effects.breaks,
        after_break=effects.after_break,
        inner=effects.inner,
        rows=states.rows,
        spelled=states.spelled,
        factors=effects.factors,
        terms=effects.terms,
        vocab_size=len(pieces),
    )


# Prefix trees


class _PrefixTree(NamedTuple):
    """All prefixes of some strings; node 0 is the empty one.

    ``edges`` (N,) are parent << 21 | character, sorted, and ``children`` (N,) their nodes. ``ends``
    (strings,) is the node of each string, ``parents`` and ``characters`` (N + 1,) describe each node.
    """

    edges: I64
    children: I64
    ends: I64
    parents: I64
    characters: I64

    @classmethod
    def of(cls, strings: Sequence[str]) -> _PrefixTree:
        order = np.argsort(np.array(strings, dtype=np.str_))
        letters = _letters([strings[i] for i in order.tolist()])
        n, width = letters.shape
        lengths = (letters != 0).sum(axis=1)
        # characters shared with the string before
        different = letters[1:] != letters[:-1]
        shared = np.zeros(n, dtype=np.int64)
        shared[1:] = np.where(different.any(axis=1), different.argmax(axis=1), width)
        depth = np.arange(width)
        new = (depth >= shared[:, None]) & (depth < lengths[:, None])  # (n, width)
        numbers = np.zeros((n, width + 1), dtype=np.int64)
        numbers[:, 1:][new] = np.arange(1, int(new.sum()) + 1)
        for i in range(1, width + 1):  # a prefix that is not new has the node of the string before
            column = numbers[:, i]
            np.maximum.accumulate(column, out=column)
        parents, characters = numbers[:, :-1][new], letters[new].astype(np.int64)
        edges = parents << _SHIFT | characters
        sort = np.argsort(edges)
        ends = np.empty(n, dtype=np.int64)
        ends[order] = numbers[np.arange(n), lengths]
        root = np.zeros(1, dtype=np.int64)
        return cls(
            edges[sort],
            np.arange(1, len(edges) + 1)[sort],
            ends,
            np.concatenate([root, parents]),
            np.concatenate([root, characters]),
        )

    def child(self, nodes: I64, characters: I64) -> I64:
        """The child of each node (N,) by its character (N,), or -1."""
        wanted = nodes << _SHIFT | characters
        if not len(self.edges):
            return np.full(len(wanted), -1)
        place = np.minimum(np.searchsorted(self.edges, wanted), len(self.edges) - 1)
        return np.where((self.edges[place] == wanted) & (nodes >= 0), self.children[place], -1)

    def grown(self, edges: I64) -> _PrefixTree:
        """The tree with children by these edges, which it lacks, behind its nodes."""
        edges = np.unique(edges)
        children = np.arange(len(edges)) + len(self.parents)
        every = np.concatenate([self.edges, edges])
        sort = np.argsort(every)
        return _PrefixTree(
            every[sort],
            np.concatenate([self.children, children])[sort],
            self.ends,
            np.concatenate([self.parents, edges >> _SHIFT]),
            np.concatenate([self.characters, edges & _CHARACTER]),
        )

    def find(self, strings: Sequence[str]) -> I64:
        """The node of each string, or -1."""
        letters = _letters(strings).astype(np.int64)
        found = np.zeros(len(letters), dtype=np.int64)
        for column in letters.T:
            more = column != 0
            found[more] = self.child(found[more], column[more])
        return found


_SHIFT = 21  # bits of a character
_CHARACTER = (1 << _SHIFT) - 1


def _ranges(starts: I64, counts: I64) -> tuple[I64, I64]:
    """The places in ranges of ``counts`` places from ``starts`` on, and before them the range of each."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts - starts, counts)


def _letters(strings: Sequence[str]) -> NDArray[np.uint32]:
    """Strings as code points (N, longest), padded with 0."""
    if not strings:
        return np.zeros((0, 1), dtype=np.uint32)
    array = np.array(strings, dtype=np.str_)
    return array.view(np.uint32).reshape(len(strings), -1)


def _state(nodes: I64) -> I64:
    """States of nodes; a node of -1 is UNKNOWN, the empty prefix is CLOSED."""
    return np.where(nodes > 0, nodes - 1 + _FIRST, np.where(nodes == 0, CLOSED, UNKNOWN))


class _States(NamedTuple):
    """The states: the prefixes of forms and units, and their rows and spellings (`Trie`).

    ``cut`` are the steps between prefixes of which the last character is written in part.
    """

    tree: _PrefixTree
    rows: I32
    spelled: I32
    cut: _Steps

    @classmethod
    def of(cls, forms: Sequence[str], links: I64) -> _States:
        listed, known = frozenset(forms), frozenset(units())
        strings = [*forms, *(unit for unit in units() if unit not in listed)]
        tree = _PrefixTree.of(strings)
        followed = np.array([each in known or not _UNSPACED.match(each) for each in strings], dtype=bool)
        tree, steps = _Steps.of(tree, tree.ends[followed], links)
        nodes = np.zeros(len(tree.parents), dtype=np.int32)
        nodes[tree.ends[: len(forms)]] = np.arange(1, len(forms) + 1)
        found, plain, cut = spellings(tree.parents, tree.characters)
        joins = np.isin(tree.characters, [ord(sign) for sign in _JOINING_SIGNS]) & (nodes == 0)
        joins |= tree.characters >= _MARK
        lent = (nodes == 0) & (found >= 0) & ~plain & ~joins
        nodes[lent] = borrowed_rows(found[lent], len(forms))
        # neither a sign that joins letters nor part of a character belongs to the word as it stands
        nodes[joins] = nodes[tree.parents[joins]]
        every = np.arange(SPELLINGS)
        none = np.full(_FIRST, -1)
        none[CLOSED] = 0
        rows = np.concatenate([[0] * _FIRST, nodes[1:], *[borrowed_rows(every, len(forms))] * 2])
        spelled = np.concatenate([none, np.where(cut, CUT, found)[1:], every, np.full(SPELLINGS, CUT)])
        return cls(tree, rows.astype(np.int32), spelled.astype(np.int32), steps)

    def find(self, forms: Sequence[str]) -> I64:
        """The state of each open word, or UNKNOWN."""
        states = _state(self.tree.find(forms))
        for i in np.flatnonzero(states == UNKNOWN).tolist():
            found = spelling(forms[i])[0]
            if found >= 0:
                cut = _UNSPACED.match(forms[i]) is not None
                states[i] = len(self.rows) - (1 if cut else 2) * SPELLINGS + found
        return states


# Characters that a tokenizer cuts

Split = Mapping[tuple[int, ...], str]
_MARK = 0xF0000  # characters from here on stand for parts of characters


def _links(split: Split) -> I64:
    """The tokens (N, 4) that write such characters, by character.

    Each is between two parts of its character: 0 is none of it, then come marks, and last the character.
    """
    marks, links = dict[tuple[int, ...], int](), list[tuple[int, ...]]()
    for ids, written in split.items():
        if len(form := _form(written)) == 1:
            parts = [marks.setdefault(ids[:i], _MARK + len(marks)) for i in range(1, len(ids))]
            found = [0, *parts, ord(form)]
            links += ((ord(form), *link) for link in zip(found, ids, found[1:], strict=False))
    return np.array(sorted(links), dtype=np.int64).reshape(-1, 4)


class _Steps(NamedTuple):
    """Tokens (N,) that are parts of a character, and the nodes before and after them.

    ``unspaced`` says whether the word began in a script without spaces before the character.
    """

    before: I64
    tokens: I64
    after: I64
    unspaced: NDArray[np.bool_]

    @classmethod
    def of(cls, tree: _PrefixTree, ends: I64, links: I64) -> tuple[_PrefixTree, _Steps]:
        """The steps along the prefixes of strings that end at these nodes, and the tree with their nodes.

        A character may begin a word even if it begins no listed one.
        """
        characters, before, tokens, after = links.T
        inside = np.zeros(len(tree.parents), dtype=bool)
        while not inside[ends].all():
            inside[ends] = True
            ends = tree.parents[ends]
        found = np.flatnonzero(inside & (tree.parents > 0) & np.isin(tree.characters, characters))
        first = np.unique(characters)
        wanted = np.concatenate([tree.characters[found], first])
        starts, stops = (np.searchsorted(characters, wanted, side=side) for side in ("left", "right"))
        which, link = _ranges(starts, stops - starts)
        prefix = np.concatenate([tree.parents[found], 0 * first])[which]
        lacking = tree.child(prefix, after[link]) < 0
        tree = tree.grown(prefix[lacking] << _SHIFT | after[link][lacking])
        top = prefix
        while (above := tree.parents[top]).any():
            top = np.where(above > 0, above, top)
        begins = tree.characters[top]
        unspaced = [each for each in np.unique(begins).tolist() if _UNSPACED.match(chr(each))]
        written = before[link] > 0
        nodes = np.where(written, tree.child(prefix, before[link]), prefix)
        return tree, cls(nodes, tokens[link], tree.child(prefix, after[link]), np.isin(begins, unspaced))


# Pieces

# The signs between letters that join them into one word (UAX 29), as they are in forms.
_JOINING = r"[\p{WB=MidLetter}\p{WB=MidNumLet}\p{WB=Single_Quote}]"
_JOINING_SIGNS = frozenset("'.:·՟״‘‧")
_ONE_JOINING = regex.compile(_JOINING, regex.VERSION1)
_SIGN = regex.compile(rf"[{_JOINING}\p{{WB=MidNum}}]", regex.VERSION1)  # those that join letters or digits
_SIGN_AND_DIGIT = regex.compile(rf"{_SIGN.pattern}\p{{WB=Numeric}}", regex.VERSION1)
_ANY_LETTER = r"[[\p{WB=ALetter}\p{WB=Hebrew_Letter}]--\p{Han}][\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*+"
_LETTERS = regex.compile(rf"(?:{_ANY_LETTER})++", regex.VERSION1)
_POINTS = r"[\u0640\u064B-\u0652\u0670]"  # Arabic; a form has none
_ONLY_POINTS = regex.compile(rf"{_POINTS}++")
_MARKS = r"[[\p{M}--\p{Inherited}]--\p{LB=SA}]++"
_CONTINUES = regex.compile(
    rf"(?:{_JOINING}|{_POINTS}++|{_MARKS})?+ (?:{_ANY_LETTER}{_JOINING}?+)++ | {_MARKS}",
    regex.VERSION1 | regex.VERBOSE,
)
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{WB=Katakana}\p{LB=SA}]", regex.VERSION1)
_NOT_ASCII = regex.compile(r"[[\p{L}\p{M}\p{Han}]--\p{ASCII}]", regex.VERSION1)
_ALL_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{WB=Katakana}\p{Thai}]++", regex.VERSION1)
_UNDECODED = "\N{REPLACEMENT CHARACTER}"
_MOST_PARTS = 8  # of a token; kernels take a turn for each
_PARTS = regex.compile(
    r"\ufffd++|(?:(?![\ufffd\p{Han}\p{Hiragana}\p{WB=Katakana}\p{Thai}]).)++|.", regex.V1 | regex.S
)
_LETTER = regex.compile(r"[\p{WB=ALetter}\p{WB=Hebrew_Letter}]", regex.VERSION1)
_WORD_CHARACTER = regex.compile(r"[\p{WB=ALetter}\p{WB=Hebrew_Letter}\p{WB=Numeric}]", regex.VERSION1)


def _parts(pieces: Sequence[str], special: Collection[int], leads: Collection[int]) -> tuple[I32, list[str]]:
    """The parts of each token (V, m), and the pieces of all parts; ``leads`` begin split characters."""
    named, rows = list(pieces), [[token] for token in range(len(pieces))]
    ids = {piece: token for token, piece in enumerate(pieces) if token not in special}
    for token, piece in enumerate(pieces):
        if _ONLY_POINTS.fullmatch(piece):
            rows[token] = []  # they change no form
        if token in special or not (token in leads or _UNSPACED.search(piece)):
            continue
        found = _PARTS.findall(piece)
        found[_MOST_PARTS - 1 :] = filter(None, ["".join(found[_MOST_PARTS - 1 :])])
        for part in found if len(found) > 1 else ():
            if part not in ids or _UNDECODED in part:
                ids[part] = len(named)
                named.append(part)
        rows[token] = [ids[part] for part in found] if len(found) > 1 else [token]
    columns = np.array(list(zip_longest(*rows, fillvalue=-1)), dtype=np.int32)
    return np.ascontiguousarray(columns.T), named  # kernels read it row by row


class _Effects(NamedTuple):
    """What tokens do: arrays of `Trie`, and the tokens that continue a word by what they add to its form."""

    breaks: NDArray[np.bool_]
    after_break: I32
    inner: I32
    added: list[str]
    continuing: I64
    joining: I64
    numeric: I64
    factors: I32
    terms: I32

    @classmethod
    def of(cls, pieces: Sequence[str], special: frozenset[int], states: _States) -> _Effects:
        breaks = np.zeros(len(pieces), dtype=bool)
        after = np.full(len(pieces), CLOSED, dtype=np.int32)
        inner = np.full(len(pieces), -1, dtype=np.int32)
        factors, terms = np.full(len(pieces), -1, dtype=np.int32), np.zeros(len(pieces), dtype=np.int32)
        added: list[str] = []
        continuing: list[int] = []
        joining: list[int] = []
        numeric: list[int] = []  # signs, and tokens that begin with a sign and a digit: a number goes on
        opened: list[tuple[int, str]] = []  # (token, the form of the word that it opens after its break)
        held: list[tuple[int, str]] = []  # (token, the form of the first whole word in it)
        for token, piece in enumerate(pieces):
            if token in special or not piece:
                breaks[token] = True
            elif piece[0] == " " and _LETTERS.fullmatch(piece, 1):
                breaks[token] = True
                opened.append((token, _form(piece[1:])))
            elif _ONE_JOINING.fullmatch(piece):
                breaks[token], after[token] = True, ENDED
                joining.append(token)
                numeric.append(token)
                continuing.append(token)
                added.append(_form(piece))
            elif _CONTINUES.fullmatch(piece):
                if piece.isascii() or unicodedata.is_normalized("NFKC", piece):
                    continuing.append(token)
                    added.append(_form(piece))
                    terms[token], factors[token] = spelling(added[-1])
                    opened.append((token, form_of(piece)))
            elif _begins_with_break(piece):
                breaks[token] = True
                run = _ALL_UNSPACED.match(piece)
                for i in range(1, run.end() + 1 if run else 0):
                    continuing.append(token)
                    added.append(piece[:i].translate(simplified()))  # as `words` finds units
                if _SIGN.fullmatch(piece) or _SIGN_AND_DIGIT.match(piece):
                    numeric.append(token)
                # after the break: the state, a whole word in the piece, and the word that it opens
                inside = [] if _UNDECODED in piece else words(piece)
                forms = [word.form for word in inside]
                rest = piece[inside[-1].end :] if inside else piece
                if inside and (not rest or _ONE_JOINING.fullmatch(rest)):
                    opened.append((token, forms.pop() + (_form(rest) if rest else "")))
                    after[token] = ENDED if rest else UNKNOWN
                elif _UNDECODED in piece:
                    after[token] = UNKNOWN
                if forms:
                    held.append((token, forms[0 if _UNSPACED.search(piece) else -1]))
        tokens = np.array([token for token, _ in opened], dtype=np.int64)
        found_states = states.find([form for _, form in opened])
        after[tokens] = found_states
        # "word'" where no listed word continues so: the word is whole, and ended
        unlisted = (found_states == UNKNOWN) | (found_states >= len(states.rows) - 2 * SPELLINGS)
        for place in np.flatnonzero(unlisted).tolist():
            token, form = opened[place]
            if form[-1:] in _JOINING_SIGNS:
                after[token] = ENDED
                held.append((token, form[:-1]))
        inner[[token for token, _ in held]] = states.rows[states.find([form for _, form in held])]
        steps = states.cut
        begins = steps.tokens[steps.before == 0]
        breaks[begins] = ~np.isin(begins, steps.tokens[(steps.before > 0) & ~steps.unspaced])
        after[begins] = _state(steps.after[steps.before == 0])
        continued, joins, counts = (np.array(each, dtype=np.int64) for each in (continuing, joining, numeric))
        return cls(breaks, after, inner, added, continued, joins, counts, factors, terms)


def _form(piece: str) -> str:
    """What a piece adds to the form of a word, with a sign at its beginning or end."""
    if piece.isascii():
        return piece.lower()
    return form_of(piece) if piece[0].isalpha() else form_of(f"a{piece}")[1:]


def _begins_with_break(piece: str) -> bool:
    """Whether a piece ends the open word before it adds a letter or digit to it."""
    if _UNSPACED.match(piece):
        return True
    first = _WORD_CHARACTER.search(piece)
    head = piece[: first.start()] if first else piece
    if _UNDECODED in head:
        head = head[: head.index(_UNDECODED)]
    if open_tail(f"a{head}") != f"a{head}" or len(_SIGN.findall(head)) > 1:
        return True
    # one sign that does not join a letter with what follows
    follows_letter = first is not None and _LETTER.match(first.group()) is not None
    return _SIGN.match(head) is not None and not (_ONE_JOINING.fullmatch(head) and follows_letter)


# Transitions


def _transitions(known: _States, effects: _Effects) -> tuple[I64, I64, I64]:
    """(state, token, state after) of all tokens that continue a word to a listed prefix."""
    listed = known.tree
    tree = _PrefixTree.of(effects.added)
    tokens = effects.continuing[np.argsort(tree.ends, kind="stable")]
    counts = np.bincount(tree.ends, minlength=len(tree.parents))
    starts = np.concatenate([[0], np.cumsum(counts)])
    parts: list[tuple[I64, I64, I64]] = []
    # pairs (prefix u, prefix v of u's continuation): the string from u to v is the node `spelled` of `tree`
    u = v = np.arange(len(listed.parents))
    spelled = np.zeros(len(v), dtype=np.int64)
    first = np.searchsorted(listed.edges, np.arange(len(listed.parents) + 1) << _SHIFT)
    while len(v):
        source, edge = _ranges(first[v], first[v + 1] - first[v])
        spelled = tree.child(spelled[source], listed.edges[edge] & _CHARACTER)
        found = spelled >= 0
        u, v, spelled = u[source][found], listed.children[edge][found], spelled[found]
        pair, token = _ranges(starts[spelled], counts[spelled])
        parts.append((_state(u)[pair], tokens[token], _state(v)[pair]))
    # the first of equal ones counts: of those of a token that extends a word in part, the longest
    cut = known.cut
    parts.append((_state(cut.before), cut.tokens, _state(cut.after)))
    # signs where they join nothing, and tokens that begin with one and open a word
    written = zip(effects.continuing.tolist(), effects.added, strict=True)
    begins = [(token, form[1:]) for token, form in written if len(form) > 1 and form[0] in _JOINING_SIGNS]
    beginning, opened = np.array([token for token, _ in begins], dtype=np.int64), [form for _, form in begins]
    signs, numbers = len(effects.joining), len(effects.numeric)
    for state in (CLOSED, ENDED):
        parts.append((np.full(signs, state), effects.joining, np.full(signs, CLOSED)))
        parts.append((np.full(len(begins), state), beginning, known.find(opened)))
    parts.append((np.full(numbers, UNKNOWN), effects.numeric, np.full(numbers, UNKNOWN)))
    states, moved, targets = (np.concatenate([part[i] for part in reversed(parts)]) for i in range(3))
    return states, moved, targets
