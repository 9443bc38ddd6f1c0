"""The result types that every scheme, host and command shares."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, overload

__all__ = [
    "EMPIRICAL",
    "Calibration",
    "Coverage",
    "Detection",
    "DraftCount",
    "ForgeryTest",
    "Generation",
    "Looks",
    "Plain",
    "Seeds",
    "TokenScore",
    "Verdict",
    "length_in_words",
]

Seeds = Sequence[int] | None
"""A seed for each row of a batch; None draws them."""


@dataclass(frozen=True, slots=True)
class Plain:
    """A result that consists of plain values and of other results."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; None for numbers that are not finite."""
        return {each.name: _plain(getattr(self, each.name)) for each in dataclasses.fields(self)}


def _plain(value: Any) -> Any:  # noqa: ANN401 - any field
    if isinstance(value, Plain):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, enum.Enum):
        return value.value
    return None if isinstance(value, float) and not math.isfinite(value) else value


_LONG = 48  # tokens; prose of this length has about three times the effective length that a verdict needs


EMPIRICAL = "empirical"
"""The test that ranks a whole text among unmarked ones (`dewmark_audit.calibration`)."""


class Verdict(enum.StrEnum):
    """A detector's answer."""

    MARKED = "marked"
    NOT_MARKED = "not_marked"
    TOO_SHORT = "too_short"
    UNSUPPORTED_LANGUAGE = "unsupported_language"

    conclusive: bool
    """Whether it answers the question: marked, or not marked."""

    def __init__(self, value: str) -> None:
        self.conclusive = value in ("marked", "not_marked")

    @property
    def words(self) -> str:
        """The answer in a sentence."""
        return self.value.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Looks(Plain):
    """Everything that one text was examined for, all of which its p-value pays for (`dewmark.verdict`).

    ``attempts`` are versions of the text, such as translations back; ``passages`` says that they were
    searched.
    """

    keys: int = 1
    attempts: int = 1
    passages: bool = False

    def __str__(self) -> str:
        """All looks beyond one, such as ``50 keys, 2 attempts and all passages``; empty if there are none."""
        several = [f"{n} {name}" for n, name in ((self.keys, "keys"), (self.attempts, "attempts")) if n > 1]
        several += ["all passages"] if self.passages else []
        return " and ".join(part for part in (", ".join(several[:-1]), *several[-1:]) if part)


class TokenScore(NamedTuple):
    """One unit (token, word or sentence) of a text and its evidence.

    ``start`` and ``end`` are character offsets into the scored text. ``score`` is standard normal on unmarked
    text and larger on marked text; it is 0.0 if ``scored`` is False (no context yet, or a special token).
    """

    text: str
    start: int
    end: int
    score: float
    scored: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**self._asdict(), "score": round(self.score, 4)}


@dataclass(frozen=True, slots=True, eq=False)
class TokenScores(Sequence[TokenScore]):
    """The units of a text with their scores, each made when it is looked at: few readers look at any."""

    text: str
    offsets: Sequence[tuple[int, int]]
    scores: Sequence[float]
    scored: Sequence[bool]

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> TokenScore: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[TokenScore, ...]: ...
    def __getitem__(self, index: int | slice) -> TokenScore | tuple[TokenScore, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(len(self))[index])
        start, end = self.offsets[index]
        return TokenScore(self.text[start:end], start, end, self.scores[index], self.scored[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


class Extent(enum.StrEnum):
    """How much of a marked text the mark explains."""

    WHOLE = "whole"
    PART = "part"


@dataclass(frozen=True, slots=True)
class Passage(Plain):
    """A marked passage: characters [start, end) of the text.

    ``p_value`` is corrected for the search over all passages and keys: the share of keys under which any
    passage of an unmarked text like this one looks as striking. ``p_alone`` is the p-value of this passage
    without that correction. ``share`` is the expected share of marked tokens among its ``tokens``.
    """

    start: int
    end: int
    text: str
    z: float
    p_value: float
    p_alone: float
    effective_length: float
    tokens: int
    share: float
    key_fingerprint: str


@dataclass(frozen=True, slots=True)
class Coverage(Plain):
    """Where in a marked text the mark is.

    ``extent`` is `Extent.PART` if the rest of the text, outside the ``passages``, carries no evidence and
    would if it were marked like them; `Extent.WHOLE` if the rest is marked too, or too short to matter; and
    None if the text does not tell. ``share`` is the expected share of marked tokens in the text, counting
    those outside the passages as unmarked. ``p_rest`` is the p-value of the rest.
    """

    extent: Extent | None
    share: float
    p_rest: float | None
    passages: tuple[Passage, ...]

    def __str__(self) -> str:
        places = ", ".join(f"characters {passage.start} to {passage.end}" for passage in self.passages)
        if self.extent is Extent.PART:
            return f"part of it, {places}"
        return "throughout" if self.extent is Extent.WHOLE else f"clearest in {places}"


@dataclass(frozen=True, slots=True)
class ForgeryTest(Plain):
    """Whether the key's holder marked a text, or perhaps somebody who learned the mark from marked texts.

    Whoever learned which meanings a key prefers can write texts with that mark. Only the holder knows which
    exact words it prefers in each context: ``z_form`` is their score, standard normal for all other writers,
    and ``p_form`` its p-value, corrected for all uses of the key, which their meaning weighs.
    """

    attributable: bool
    z_form: float
    p_form: float

    def __str__(self) -> str:
        return "attributable" if self.attributable else "not attributable"


@dataclass(frozen=True, slots=True)
class Detection(Plain):
    """The verdict on one text and the numbers behind it.

    ``score`` is the scheme's mean token score, ``z`` the standardised test statistic, ``p_value`` the share
    of keys that would score the text at least as high if it were unmarked, ``effective_length`` the number of
    independent tokens with the same amount of evidence, and ``fpr`` the false-positive rate of ``verdict``.
    ``coverage`` says where in a marked text the mark is, if that was asked and passages were found.

    ``language`` is the text's language by its ISO 639 code, None if it is not clear or does not matter to the
    scheme. ``language_known`` says whether the scheme's lexicon or encoder knows it. If it does not, the
    verdict is `Verdict.UNSUPPORTED_LANGUAGE` where the text has too little evidence, and where one key may
    score all texts of that language alike and was not audited (`dewmark.text.languages.LanguagePolicy`).
    ``carrying`` is the share of its words that can carry the mark, None if the scheme does not say.
    ``z_meaning`` and ``z_form`` are the two scores behind z, by the meaning of words and by the exact words;
    None where there is none.

    If the key has members, payloads or epochs, ``p_value`` is corrected for all ``n_hypotheses``
    combinations, and ``member``, ``payload`` and ``epoch`` say which marked the text; None if it is not
    marked, if the key has no such thing, or if the text does not tell clearly. ``payload_confidence`` is the
    posterior probability of the payload. ``forgery`` says whether the key's holder marked the text; None if
    not tested. ``looks`` is what ``p_value`` pays for besides: keys, versions of the text, and its passages.

    ``reader`` is the language model that predicted each word of the text, if one did.
    """

    verdict: Verdict
    p_value: float
    z: float
    score: float
    effective_length: float
    tokens_scored: int
    test: str
    fpr: float
    scheme: str
    key_fingerprint: str
    tokens: Sequence[TokenScore] = field(default=(), repr=False)
    language: str | None = None
    language_known: bool | None = None
    carrying: float | None = None
    z_meaning: float | None = None
    z_form: float | None = None
    looks: Looks = Looks()
    n_hypotheses: int = 1
    member: int | None = None
    payload: int | None = None
    payload_confidence: float | None = None
    epoch: str | None = None
    forgery: ForgeryTest | None = field(default=None, repr=False)
    reader: str | None = None
    coverage: Coverage | None = field(default=None, repr=False)

    @property
    def is_marked(self) -> bool:
        """Whether the verdict is `Verdict.MARKED`."""
        return self.verdict is Verdict.MARKED

    @property
    def leaves_no_room(self) -> bool:
        """Whether a text is long enough and still has too little evidence: code, lists, repetition."""
        return self.verdict is Verdict.TOO_SHORT and max(len(self.tokens), self.tokens_scored) >= _LONG

    @property
    def words(self) -> str:
        """The verdict in words; a long text without evidence is not called too short."""
        return "no room for a mark" if self.leaves_no_room else self.verdict.words

    def to_dict(self, *, tokens: bool = False) -> dict[str, Any]:
        names = (each.name for each in dataclasses.fields(self) if each.name != "tokens")
        row = {name: _plain(getattr(self, name)) for name in names}
        if tokens:
            row["tokens"] = [token.to_dict() for token in self.tokens]
        return row

    def __str__(self) -> str:
        where = f", {self.coverage}" if self.coverage else ""
        read = f" read by {self.reader}," if self.reader else ""
        return (
            f"{self.words}{self.origin}{where} (p = {self.p_value:.3g}, z = {self.z:.2f}, "
            f"{length_in_words(self.effective_length, self.tokens_scored)},{read} "
            f"{self.test} test, key {self.key_fingerprint})"
        )

    @property
    def origin(self) -> str:
        """What is known of who marked the text, such as ``, member 17, payload 0x2f, attributable``."""
        known = [] if self.epoch is None else [f"epoch {self.epoch}"]
        known += [] if self.member is None else [f"member {self.member}"]
        known += [] if self.payload is None else [f"payload {self.payload:#x}"]
        if self.forgery is not None:
            known += [f"{self.forgery}"]
        return "".join(f", {each}" for each in known)


def length_in_words(effective: float, tokens: int) -> str:
    """The effective length beside the number of scored tokens.

    It is the larger one where tokens lean against each other, so that their sum varies less over keys.
    """
    share = "from" if effective >= tokens + 0.5 else "of"
    return f"effective length {effective:.0f} {share} {tokens} tokens"


class Calibration(Protocol):
    """The z of unmarked texts under one key, among which a text is ranked (`dewmark_audit.calibration`)."""

    @property
    def test(self) -> str:
        """The test whose z is ranked."""

    def apply(self, detection: Detection) -> Detection:
        """The detection with its rank as p-value, and the resulting verdict."""


@dataclass(frozen=True, slots=True)
class DraftCount(Plain):
    """The cost of choosing between drafts: the sentences of a text, all their drafts, and the failures.

    ``gave_up`` counts the sentences for which no draft within the limit carried the mark.
    """

    sentences: int
    drafts: int
    gave_up: int

    def __add__(self, other: DraftCount) -> DraftCount:
        return DraftCount(
            self.sentences + other.sentences, self.drafts + other.drafts, self.gave_up + other.gave_up
        )

    def __str__(self) -> str:
        mean = self.drafts / self.sentences if self.sentences else 0.0
        return f"{self.sentences} sentences, {mean:.1f} drafts each, {self.gave_up} without the mark"


@dataclass(frozen=True, slots=True)
class Generation:
    """One completion; ``text`` does not include the prompt.

    ``drafts`` is set if the scheme chose between drafts of sentences. ``room`` is the z at which its mark is
    to be expected, None if it was not measured, and ``unmarked`` why the text counts as unmarked though it
    was written with a mark: ``no_room`` (`dewmark.room`).
    """

    prompt: str
    text: str
    token_ids: tuple[int, ...] = field(repr=False)
    seed: int
    scheme: str
    config_hash: str
    drafts: DraftCount | None = None
    room: float | None = field(default=None, compare=False)  # rounding depends on the batch
    unmarked: str | None = None

    @property
    def marked(self) -> bool:
        """Whether the text carries a mark that can be found."""
        return self.scheme != "none" and self.unmarked is None

    @property
    def tokens(self) -> int:
        """The number of generated tokens, without the end-of-text token."""
        return len(self.token_ids)

    def __str__(self) -> str:
        return self.text
