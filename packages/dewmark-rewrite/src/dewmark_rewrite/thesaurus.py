"""English words that may stand for one another, tagged in their sentence and inflected alike.

The list (``data/english.txt``) was written for this purpose: its groups are words that replace each other in
most of their uses, without regard to the rarer ones. A tagger says which part of speech and inflection a word
has in its sentence; its synonym gets the same inflection. What the list cannot know, a language model judges
afterwards (`dewmark_rewrite.fluency`).

Boundary: a text in, candidates out. No key, no model of the text.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from dewmark.errors import InputError
from dewmark_rewrite.protection import is_name
from dewmark_rewrite.sentences import TextSpan, sentences, tokens

# CLAWS tags of the tagger to our class and the inflection's Penn tag.
_TAGS = {
    "NN1": ("n", "NN"), "NN2": ("n", "NNS"), "AJ0": ("a", "JJ"), "AJC": ("a", "JJR"), "AJS": ("a", "JJS"),
    "AV0": ("r", "RB"), "VVB": ("v", "VB"), "VVI": ("v", "VB"), "VVZ": ("v", "VBZ"), "VVD": ("v", "VBD"),
    "VVN": ("v", "VBN"), "VVG": ("v", "VBG"),
}  # fmt: skip
_CLASSES = "vnarx+"
_LEAST_SENTENCE = 5  # words of a sentence to which words are added or from which they are taken
_NO_COMMA = frozenset({"and", "now", "plus", "so", "then"})  # openings without one
_ME = ("I", "I'", "I’")
_HELPERS = ("VB", "VH", "VM")  # be, have, and verbs such as "can"
_PARTICLE = "AVP"
_BETWEEN = frozenset({"AJ0", "AJC", "AJS", "AV0", "ORD", "CRD", "NN1", "VVN", "VVG"})  # article and noun
_SINGLE = frozenset(["a", "an", "another", "each", "every", "one"])
_MASS = frozenset(
    {
        *("advice", "aid", "amusement", "anger", "assistance", "backing", "bravery", "clothing", "comfort"),
        *("conduct", "courage", "earnings", "ease", "equipment", "evidence", "expertise", "gear", "growth"),
        *("guidance", "income", "information", "liberty", "merchandise", "pay", "personnel", "pressure"),
        *("progress", "research", "revenue", "staff", "surroundings", "thanks", "usage", "work"),
    }
)
_VOWEL = re.compile(
    r"(?!uni[^nm]|use|usu|eu|one\b|once|ut[aei])[aeiou]|hour|honest|honor|heir", re.IGNORECASE
)
_LONGEST = 5  # words of a phrase
_NOUNS = frozenset({"NN1", "NN2"})
_JOINED = _NOUNS | {"AJ0"}  # the words of an item of a list
_WIDEST, _MOST_ITEMS = 3, 5  # words of an item, and items of a list
_SAYING = frozenset(
    {
        *("argue", "assume", "believe", "claim", "explain", "feel", "hope", "insist", "know", "mean", "note"),
        *("realize", "say", "suspect", "think"),
    }
)
_BEGINNING = frozenset({"begin", "continue", "hate", "love", "prefer", "start"})  # "to do" or "doing"
_PAIRED = frozenset({"AV0", "VVG", "VVI", "VVN"})
_MOVING = frozenset({"also", "always", "never", "now", "often", "sometimes", "soon", "still"})
_NUMBERS = {"this": "NN1", "that": "NN1", "these": "NN2", "those": "NN2"}
_FINITE = frozenset(
    {"VVZ", "VVB", "VVD", "VBZ", "VBB", "VBD", "VHZ", "VHB", "VHD", "VM0"}
)  # verbs of a clause
_SUBJECTS = frozenset({"he", "she", "they", "we", "I", "you", "it"})
_PLURALS = {"person": "people"}
_DEGREES = frozenset({"extremely", "highly", "quite", "rather", "very"})
_ABSOLUTE = ("al", "ary", "ic")  # endings of most adjectives that have no degrees


@dataclass(frozen=True)
class Candidate:
    """A change of a text: characters [start, end), which read ``old``, become ``new``.

    ``cost`` is what a language model loses by it, in nats; 0 until one has judged it.
    """

    start: int
    end: int
    old: str
    new: str
    cost: float = 0.0

    @property
    def span(self) -> TextSpan:
        """The characters that it replaces."""
        return TextSpan(self.start, self.end)


@dataclass(frozen=True)
class TaggedWord:
    """A token of a sentence with its tag."""

    span: TextSpan
    text: str
    lemma: str
    tag: str


class Thesaurus:
    """Groups of words by class (v, n, a, r, x) and lemma or spelling; class + are words to add, by place."""

    def __init__(self, groups: dict[str, dict[str, list[str]]]) -> None:
        self._groups = groups

    @classmethod
    def load(cls, file: Path | None = None) -> Thesaurus:
        """The list that comes with the package, or a file in its format."""
        if file is None:
            return _packaged()
        try:
            return cls(_parse(file.read_text(encoding="utf-8"), str(file)))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the synonyms in {file}: {error}") from None

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def candidates(self, text: str, *, protected: Sequence[TextSpan]) -> list[Candidate]:
        """What could stand in each place of a text that is not protected."""
        found: list[Candidate] = []
        for sentence in sentences(text):
            tagged = _tagged(text, sentence)
            begins = text[: sentence.start].rstrip(" \t")[-1:] in ("", "\n")  # nothing before to refer to
            for i in range(len(tagged)):
                added = () if begins and i == 0 else (self._added,)
                changes = (self._of_word, self._of_phrase, *added, self._left_out)
                for end, new in (
                    *(pair for each in changes for pair in each(tagged, i)),
                    *_turned(tagged, i),
                    *_small_words(tagged, i),
                ):
                    span = TextSpan(tagged[i].span.start, tagged[end].span.end)
                    old = text[span.start : span.end]
                    if new.casefold() == old.casefold() or any(span.overlaps(other) for other in protected):
                        continue
                    if begins and i == 0 and new in _NUMBERS:
                        continue
                    new = new[0].upper() + new[1:] if i == 0 or old[0].isupper() else new
                    found.append(Candidate(span.start, span.end, old, new))
        return list(dict.fromkeys(found))

    def _of_word(self, tagged: Sequence[TaggedWord], i: int) -> Iterator[tuple[int, str]]:
        """Other words for token i, inflected like it, with the place of the last token that they replace."""
        token = tagged[i]
        kind, inflection = _TAGS.get(token.tag, ("", ""))
        if not kind or _named(tagged, i) or "-" in token.text:
            return
        after = tagged[i + 1] if i + 1 < len(tagged) else None
        if kind == "v" and after is not None and after.tag == _PARTICLE:
            return
        lemma = token.lemma.lower()
        if not _inflects(lemma, inflection, token.text.lower()):
            return
        here = {each.lemma.lower() for each in tagged}  # a word twice in a sentence reads badly
        for other in self._groups[kind].get(lemma, ()):
            new = None if other in here else _inflected(other, inflection)
            if new and _same_part(token.text, new, inflection) and _agrees(tagged, i, new, other, inflection):
                yield i, new

    def _of_phrase(self, tagged: Sequence[TaggedWord], i: int) -> Iterator[tuple[int, str]]:
        """The same for words and phrases that are listed as they are spelled."""
        if _named(tagged, i):
            return
        spelled: list[str] = []
        for end in range(i, min(i + _LONGEST, len(tagged))):
            token = tagged[end]
            if not token.text[0].isalpha() or (end > i and token.text != token.text.lower()):
                return
            spelled.append(token.text.lower().replace("’", "'"))
            for new in self._groups["x"].get(" ".join(spelled), ()):
                if _article_fits(tagged, i, new) and _number_fits(tagged, end, new):
                    yield end, new

    def _added(self, tagged: Sequence[TaggedWord], i: int) -> Iterator[tuple[int, str]]:
        """Word i with one before it that a sentence can do without: "also", "of course"."""
        here = tagged[i]
        if not here.text[0].isalpha() or _short(tagged):
            return
        if i == 0:
            if not (_named(tagged, 0) or here.tag.startswith("NP")):
                lower = here.text if here.text[:2] in _ME else here.text[0].lower() + here.text[1:]
                for other in self._groups["+"].get("opening", ()):
                    yield i, f"{other}{' ' if other in _NO_COMMA else ', '}{lower}"
            return
        before = tagged[i - 1]
        if before.text[0].isalpha() and not _named(tagged, i):
            for place in _places(before, here):
                for other in self._groups["+"].get(place, ()):
                    if _article_fits(tagged, i, other) and _may_be_added(tagged, i, other):
                        yield i, f"{other} {here.text}"

    def _left_out(self, tagged: Sequence[TaggedWord], i: int) -> Iterator[tuple[int, str]]:
        """Word i + 1 without word i, which could have been added before it."""
        if not 0 < i < len(tagged) - 1 or _short(tagged) or not tagged[i - 1].text[0].isalpha():
            return
        before, here, after = tagged[i - 1 : i + 2]
        listed = (self._groups["+"].get(place, ()) for place in _places(before, after))
        if any(here.text in words for words in listed) and _article_fits([before, after], 1, after.text):
            yield i + 1, after.text


def apply(text: str, changes: Sequence[Candidate], within: TextSpan | None = None) -> str:
    """A text, or what lies ``within`` a span of it, with some changes made, none of which overlap."""
    at, end = within or (0, len(text))
    pieces: list[str] = []
    for change in sorted(changes, key=lambda change: change.start):
        pieces += (text[at : change.start], change.new)
        at = change.end
    return "".join((*pieces, text[at:end]))


@functools.cache
def _packaged() -> Thesaurus:
    file = resources.files("dewmark_rewrite") / "data" / "english.txt"
    return Thesaurus(_parse(file.read_text(encoding="utf-8"), "the packaged list"))


def _parse(text: str, name: str) -> dict[str, dict[str, list[str]]]:
    groups: dict[str, dict[str, dict[str, None]]] = {kind: {} for kind in _CLASSES}
    for number, line in enumerate(text.splitlines(), start=1):
        kind, _, rest = line.partition("#")[0].strip().partition(" ")
        if not kind:
            continue
        heads, arrow, others = rest.partition(">")
        listed = [word.replace("_", " ") for word in heads.split()]
        allowed = [word.replace("_", " ") for word in others.split()] if arrow else listed
        if kind not in groups or not listed or len({*listed, *allowed}) < 2:
            raise InputError(f"{name}, line {number}: write a class (v n a r x +) and at least two words")
        for word in listed:
            known = groups[kind].setdefault(word, {})
            known.update(dict.fromkeys(other for other in allowed if other != word))
    return {kind: {word: list(others) for word, others in table.items()} for kind, table in groups.items()}


# Tagging and inflection


@functools.cache
def _tagger() -> Any:  # noqa: ANN401 - the library has no types
    from HanTa.HanoverTagger import HanoverTagger

    return HanoverTagger("morphmodel_en.pgz")


def _tagged(text: str, sentence: TextSpan) -> list[TaggedWord]:
    spans = tokens(text, sentence)
    words = [text[span.start : span.end].replace("’", "'") for span in spans]
    return [
        TaggedWord(span, text[span.start : span.end], lemma, tag)
        for span, (_, lemma, tag) in zip(spans, _tagger().tag_sent(words), strict=True)
    ]


@functools.lru_cache(maxsize=1 << 16)
def _inflected(lemma: str, inflection: str) -> str | None:
    """A lemma's form, if it has exactly one that is sure; phrases and adverbs stay as they are."""
    if inflection in ("NN", "VB", "JJ", "RB"):
        return lemma
    if inflection.startswith("VB") and " " in lemma:  # the verb of a phrase: "find out"
        verb, _, rest = lemma.partition(" ")
        form = _inflected(verb, inflection)
        return form and f"{form} {rest}"
    if " " in lemma or "-" in lemma or (inflection == "NNS" and lemma in _MASS):
        return None
    if inflection == "NNS" and lemma in _PLURALS:
        return _PLURALS[lemma]
    import lemminflect

    forms = lemminflect.getInflection(lemma, inflection, inflect_oov=False)
    if forms and inflection in ("JJR", "JJS") and forms[0].startswith(("more", "most")):
        return None
    return str(forms[0]) if forms else None


def _inflects(lemma: str, inflection: str, form: str) -> bool:
    """Whether a form is the lemma in this inflection, so that the tagger's lemma can be trusted."""
    if inflection in ("NN", "VB", "JJ", "RB"):
        return lemma == form
    import lemminflect

    return form in lemminflect.getInflection(lemma, inflection, inflect_oov=False)


def _short(tagged: Sequence[TaggedWord]) -> bool:
    """Whether a sentence is too short to add to: a heading, an item of a list."""
    return sum(token.text[0].isalpha() for token in tagged) < _LEAST_SENTENCE


def _places(before: TaggedWord, here: TaggedWord) -> Iterator[str]:
    """What kinds of place there are between two words, as the list calls them."""
    helped = before.tag.startswith(_HELPERS)
    if (here.tag.startswith("VV") and before.tag not in ("AT0", "DPS", "AJ0")) or helped:
        yield "verb"
    if here.tag in ("AJ0", "AV0"):
        yield "adjective"
    if here.tag in _NOUNS and before.tag == "DPS":
        yield "possession"
    if here.tag == "PRP" and (before.tag in _NOUNS or before.tag.startswith("VV")):
        yield "preposition"
    if here.tag == "VVN" and before.tag in _NOUNS:
        yield f"participle {before.tag}"


def _named(tagged: Sequence[TaggedWord], i: int) -> bool:
    """Whether a token is a name, or begins a sentence with the first word of one ("Country Boom")."""
    token = tagged[i].text
    after = tagged[i + 1].text if i + 1 < len(tagged) else ""
    joined = token[0].isupper() and is_name(after, first=False) and not after.startswith("I")
    return is_name(token, first=i == 0) or joined


def _same_part(old: str, new: str, inflection: str) -> bool:
    """Whether a new past form leaves open what the old one did: a tagger mistakes "started" for "begun"."""
    return inflection not in ("VBD", "VBN") or not old.endswith("ed") or new.endswith("ed")


def _items(tagged: Sequence[TaggedWord], i: int) -> list[tuple[int, int]]:
    """The items of a list that begins with token i, by their first and last token: "wind, snow and rain".

    An item is one to three nouns and adjectives. Items are alike: equally long, so that a word before them
    belongs to all or to none, and they end in a noun, or none does.
    """
    found: list[tuple[int, int]] = []
    at, closed = i, False
    while True:
        end = at
        while end < len(tagged) and tagged[end].tag in _JOINED and "-" not in tagged[end].text:
            end += 1
        nouns = end > at and tagged[end - 1].tag in _NOUNS
        named = any(is_name(token.text, first=False) for token in tagged[at:end])
        mixed = any(a.tag in _NOUNS and b.tag not in _NOUNS for a, b in itertools.pairwise(tagged[at:end]))
        if not 0 < end - at <= _WIDEST or named or mixed:
            return []
        if found and (end - at, nouns) != (found[0][1] + 1 - i, tagged[found[0][1]].tag in _NOUNS):
            return []
        found.append((at, end - 1))
        if closed:
            return found
        joint = [token.text for token in tagged[end : end + 2]]
        if joint[:1] == [","]:
            closed = joint[1:] in (["and"], ["or"])
            at = end + 1 + closed
        elif joint[:1] in (["and"], ["or"]):
            at, closed = end + 1, True
        else:
            return []


def _turned(tagged: Sequence[TaggedWord], i: int) -> Iterator[tuple[int, str]]:
    """Other orders: the items of a list, two verbs or adverbs joined by "and", an adverb and an auxiliary."""
    here, *after = tagged[i : i + 3]
    before = tagged[i - 1] if i else None
    if before is None or (before.tag not in _JOINED and before.text not in (",", "and", "or", "/")):
        items = _items(tagged, i)
        texts = [" ".join(token.text for token in tagged[a : b + 1]) for a, b in items]
        for a, b in itertools.combinations(range(len(items)), 2):
            order = list(texts)
            order[a], order[b] = texts[b], texts[a]
            if len(items) == 2 and tagged[items[0][1] + 1].text == "and":
                yield items[-1][1], f"both {texts[0]} and {texts[1]}"
            if _article_fits(tagged, i, order[0]) and len(items) <= _MOST_ITEMS:
                between = [tagged[items[n][1] + 1 : items[n + 1][0]] for n in range(len(items) - 1)]
                joints = [
                    "".join(t.text if t.text == "," else f" {t.text}" for t in part) for part in between
                ]
                yield (
                    items[-1][1],
                    " ".join(f"{text}{joint}" for text, joint in zip(order, [*joints, ""], strict=True)),
                )
    if before is None or len(after) < 2 or not (here.text + after[0].text + after[1].text).islower():
        return
    joined, other = after
    if here.tag in _PAIRED and other.tag == here.tag and joined.text in ("and", "or"):
        yield i + 2, f"{other.text} {joined.text} {here.text}"
    for adverb, helper in ((here, joined), (joined, here)):
        moves = adverb.tag == "AV0" and (adverb.text.endswith("ly") or adverb.text in _MOVING)
        if moves and helper.tag.startswith(_HELPERS) and other.tag.startswith("V") and before.text != ",":
            yield i + 1, f"{joined.text} {here.text}"


def _small_words(tagged: Sequence[TaggedWord], i: int) -> Iterator[tuple[int, str]]:
    """Words of grammar that a sentence can do with or without ("that", "to"), and "to do" as "doing"."""
    here, *after = tagged[i : i + 3]
    if not after or (i > 0 and here.text != here.text.lower()):
        return
    following, second = after[0], after[1] if len(after) > 1 else None
    says = here.lemma in _SAYING and here.tag.startswith("VV")
    named = here.tag in _NOUNS and i > 0 and tagged[i - 1].tag != "PRP"
    verb = second is not None and second.tag in _FINITE
    if (says and _clause(tagged, i + 1)) or (named and verb and following.text in _SUBJECTS):
        yield i, f"{here.text} that"
    elif following.text == "that" and (
        (says and _clause(tagged, i + 2)) or (named and second is not None and second.text in _SUBJECTS)
    ):
        yield i + 1, here.text
    clause = i > 0 and tagged[i - 1].tag in _NOUNS and following.tag in _FINITE
    if clause and here.text in ("that", "which"):
        yield i, "which" if here.text == "that" else "that"
    if here.lemma == "help" and following.tag == "VVI":
        yield i, f"{here.text} to"
    elif here.lemma == "help" and following.text == "to" and second is not None and second.tag == "VVI":
        yield i + 1, here.text
    if here.lemma in _BEGINNING and here.tag in ("VVB", "VVD", "VVZ", "VVI", "VVN"):
        if following.text == "to" and second is not None and second.tag == "VVI":
            if doing := _inflected(second.lemma, "VBG"):
                yield i + 2, f"{here.text} {doing}"
        elif following.tag == "VVG":
            yield i + 1, f"{here.text} to {following.lemma}"


def _clause(tagged: Sequence[TaggedWord], i: int) -> bool:
    """Whether a clause with a subject and a verb of its own seems to begin with token i."""
    if i >= len(tagged) or tagged[i].text in _SUBJECTS:
        return i < len(tagged)
    if tagged[i].tag not in ("AT0", "DPS", "NN2", "NP0"):
        return False
    rest = itertools.takewhile(lambda token: token.text[0].isalpha(), tagged[i + 1 : i + 7])
    return any(token.tag in _FINITE for token in rest)


def _agrees(tagged: Sequence[TaggedWord], i: int, new: str, lemma: str, inflection: str) -> bool:
    """Whether the words before a place fit another word there."""
    if inflection == "NN" and lemma in _MASS:
        j = i - 1
        while j >= 0 and tagged[j].tag in _BETWEEN:
            j -= 1
        if j >= 0 and tagged[j].text.lower() in _SINGLE:
            return False
    return _article_fits(tagged, i, new)


def _number_fits(tagged: Sequence[TaggedWord], i: int, new: str) -> bool:
    """Whether "these" or "this" in the place of token i stands before a noun of its number."""
    if new not in _NUMBERS:
        return True
    rest = itertools.dropwhile(lambda token: token.tag in ("AJ0", "AV0", "ORD"), tagged[i + 1 :])
    noun = next(rest, None)
    return noun is not None and noun.tag == _NUMBERS[new] and noun.text.islower() and noun.text.isalpha()


def _may_be_added(tagged: Sequence[TaggedWord], i: int, new: str) -> bool:
    """Whether a word fits before token i: not twice in a sentence, no "now" in the past, no "very legal"."""
    before, here = tagged[i - 1], tagged[i]
    past = here.tag == "VVD" or before.tag in ("VBD", "VHD")
    absolute = here.tag == "AJ0" and new in _DEGREES and here.text.endswith(_ABSOLUTE)
    return not (absolute or (past and new == "now") or any(token.text.lower() == new for token in tagged))


def _article_fits(tagged: Sequence[TaggedWord], i: int, new: str) -> bool:
    before = tagged[i - 1].text.lower() if i else ""
    return before not in ("a", "an") or (before == "an") == (_VOWEL.match(new) is not None)
