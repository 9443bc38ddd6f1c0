"""The result types that every scheme, host and command shares."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

__all__ = [
    "Attribution",
    "Coverage",
    "Detection",
    "DraftCount",
    "Extent",
    "ForgeryTest",
    "Generation",
    "Passage",
    "TokenScore",
    "TokenScores",
    "Verdict",
]

_LONG = 48  # tokens; prose of this length has about three times the effective length that a verdict needs


class Verdict(enum.StrEnum):
    """A detector's answer."""

    MARKED = "marked"
    NOT_MARKED = "not marked"
    TOO_SHORT = "too short"
    UNSUPPORTED_LANGUAGE = "unsupported language"

    @property
    def conclusive(self) -> bool:
        """Whether it answers the question: marked, or not marked."""
        return self in (Verdict.MARKED, Verdict.NOT_MARKED)


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
        return {
            "text": self.text,
            "start": self.start,
            "end": self.end,
            "score": round(self.score, 4),
            "scored": self.scored,
        }


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
class Passage:
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

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Coverage:
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

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "extent": self.extent and self.extent.value,
            "share": self.share,
            "p_rest": self.p_rest,
            "passages": [passage.to_dict() for passage in self.passages],
        }

    def __str__(self) -> str:
        places = ", ".join(f"characters {passage.start} to {passage.end}" for passage in self.passages)
        if self.extent is Extent.PART:
            return f"part of it, {places}"
        return "throughout" if self.extent is Extent.WHOLE else f"clearest in {places}"


@dataclass(frozen=True, slots=True)
class ForgeryTest:
    """Whether the key's holder marked a text, or perhaps somebody who learned the mark from marked texts.

    The mark is tested twice, independently: where a forger learns it first (``z_head``) and where last
    (``z_tail``). ``p_tail`` is the p-value of the latter, corrected for all uses of the key that were tried
    (small rings weigh them by their heads), and ``p_alike`` the share of the holder's own texts whose tail
    falls behind the head as far as here.
    """

    attributable: bool
    z_head: float
    z_tail: float
    p_tail: float
    p_alike: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __str__(self) -> str:
        return "attributable" if self.attributable else "not attributable"


@dataclass(frozen=True, slots=True)
class Detection:
    """The verdict on one text and the numbers behind it.

    ``score`` is the scheme's mean token score, ``z`` the standardised test statistic, ``p_value`` the share
    of keys that would score the text at least as high if it were unmarked, ``effective_length`` the number of
    independent tokens with the same amount of evidence, and ``fpr`` the false-positive rate of ``verdict``.
    ``coverage`` says where in a marked text the mark is, if that was asked and passages were found.

    ``language`` is the text's language by its ISO 639 code, None if it is not clear or does not matter to the
    scheme. ``language_known`` says whether the scheme's lexicon or encoder knows it. If it does not, the
    verdict is `Verdict.UNSUPPORTED_LANGUAGE` where the text has too little evidence, and where one key may
    score all texts of that language alike and was not audited (`dewmark.text.languages.LanguagePolicy`).

    If the key has members, payloads or epochs, ``p_value`` is corrected for all ``tried`` combinations, and
    ``member``, ``payload`` and ``epoch`` say which marked the text; None if it is not marked, if the key has
    no such thing, or if the text does not tell clearly. ``payload_confidence`` is the posterior probability
    of the payload. ``attribution`` says whether the key's holder marked the text; None if not tested.

    ``reader`` is the language model that read the text to say what was expected in each place, if one did.
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
    coverage: Coverage | None = field(default=None, repr=False)
    tried: int = 1
    member: int | None = None
    payload: int | None = None
    payload_confidence: float | None = None
    epoch: str | None = None
    attribution: ForgeryTest | None = field(default=None, repr=False)
    reader: str | None = None

    @property
    def is_marked(self) -> bool:
        """Whether the verdict is `Verdict.MARKED`."""
        return self.verdict is Verdict.MARKED

    def judged(self, verdict: Verdict, p_value: float) -> Detection:
        """The same after a further correction; a text that is no longer marked has no origin either."""
        if verdict is Verdict.MARKED:
            return dataclasses.replace(self, verdict=verdict, p_value=p_value)
        return dataclasses.replace(
            self,
            verdict=verdict,
            p_value=p_value,
            coverage=None,
            member=None,
            payload=None,
            payload_confidence=None,
            epoch=None,
            attribution=None,
        )

    @property
    def leaves_no_room(self) -> bool:
        """Whether a text is long enough and still has too little evidence: code, lists, repetition."""
        return self.verdict is Verdict.TOO_SHORT and self.tokens_scored >= _LONG

    def to_dict(self, *, tokens: bool = False) -> dict[str, Any]:
        """Plain JSON values; None for numbers that are not finite."""
        row: dict[str, Any] = {
            "verdict": self.verdict.value,
            "p_value": _finite(self.p_value),
            "z": _finite(self.z),
            "score": _finite(self.score),
            "effective_length": _finite(self.effective_length),
            "tokens_scored": self.tokens_scored,
            "test": self.test,
            "fpr": self.fpr,
            "scheme": self.scheme,
            "key_fingerprint": self.key_fingerprint,
            "language": self.language,
            "language_known": self.language_known,
            "tried": self.tried,
            "member": self.member,
            "payload": self.payload,
            "payload_confidence": self.payload_confidence,
            "epoch": self.epoch,
            "attribution": self.attribution and self.attribution.to_dict(),
            "reader": self.reader,
            "coverage": self.coverage and self.coverage.to_dict(),
        }
        if tokens:
            row["tokens"] = [token.to_dict() for token in self.tokens]
        return row

    def __str__(self) -> str:
        where = f", {self.coverage}" if self.coverage else ""
        read = f" read by {self.reader}," if self.reader else ""
        return (
            f"{self.verdict}{self.origin}{where} (p = {self.p_value:.3g}, z = {self.z:.2f}, effective length "
            f"{self.effective_length:.0f} of {self.tokens_scored} tokens,{read} {self.test} test, "
            f"key {self.key_fingerprint})"
        )

    @property
    def origin(self) -> str:
        """What is known of who marked the text, such as ``, member 17, payload 0x2f, attributable``."""
        known = [] if self.epoch is None else [f"epoch {self.epoch}"]
        known += [] if self.member is None else [f"member {self.member}"]
        known += [] if self.payload is None else [f"payload {self.payload:#x}"]
        if self.attribution is not None:
            unread = self.reader is None and not self.attribution.attributable
            known += [f"{self.attribution}{' without a reader' if unread else ''}"]
        return "".join(f", {each}" for each in known)


@dataclass(frozen=True, slots=True)
class Attribution:
    """Which of several keys, if any, marked a text.

    ``detections`` holds one result per key, in the given order; ``best`` is the one with the smallest p-value
    and ``index`` its position. ``p_value`` is corrected for the number of keys and decides ``verdict``.
    """

    detections: tuple[Detection, ...] = field(repr=False)
    index: int
    p_value: float
    verdict: Verdict

    @property
    def best(self) -> Detection:
        """The result under the best key."""
        return self.detections[self.index]

    @property
    def keys(self) -> int:
        """The number of keys tried."""
        return len(self.detections)

    @property
    def is_marked(self) -> bool:
        """Whether the verdict is `Verdict.MARKED`."""
        return self.verdict is Verdict.MARKED

    def to_dict(self, *, tokens: bool = False) -> dict[str, Any]:
        """Plain JSON values: the best key's result, with verdict and p-value corrected for all keys."""
        best = self.best.to_dict(tokens=tokens)
        corrected = {"verdict": self.verdict.value, "p_value": _finite(self.p_value)}
        return {**best, **corrected, "p_value_of_key": best["p_value"], "keys": self.keys}

    def __str__(self) -> str:
        return f"{self.verdict} (p = {self.p_value:.3g} over {self.keys} keys; best {self.best})"


@dataclass(frozen=True, slots=True)
class DraftCount:
    """The cost of choosing between drafts: the sentences of a text, all their drafts, and the failures.

    ``gave_up`` counts the sentences for which no draft within the limit carried the mark.
    """

    sentences: int
    drafts: int
    gave_up: int

    def to_dict(self) -> dict[str, int]:
        """Plain JSON values."""
        return {"sentences": self.sentences, "drafts": self.drafts, "gave_up": self.gave_up}

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

    ``drafts`` is set if the scheme chose between drafts of sentences.
    """

    prompt: str
    text: str
    token_ids: tuple[int, ...] = field(repr=False)
    seed: int
    scheme: str
    config_hash: str
    drafts: DraftCount | None = None

    @property
    def tokens(self) -> int:
        """The number of generated tokens, without the end-of-text token."""
        return len(self.token_ids)

    def __str__(self) -> str:
        return self.text


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
