"""The facade: a text in, the same text with a mark out, and what it took.

Three engines find candidates: `substitution` and `edit` single words, `paraphrase` whole sentences. One
search chooses among them by the detector's own score, and the ordinary detector has the last word.
"""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dewmark import ConfigError, Detection, Detector, Key
from dewmark.capabilities import for_member
from dewmark.detect import score_texts
from dewmark.errors import InputError
from dewmark.hosts.expectations import open_reader
from dewmark.scheme import BoundScheme
from dewmark.text.languages import UNDETERMINED, guess_language, language_name
from dewmark.text.words import words
from dewmark.workspace import Progress, silent
from dewmark_rewrite.documents import RewritableDocument
from dewmark_rewrite.fluency import CausalReading, Judge, causal_judge
from dewmark_rewrite.paraphrase import ChatEndpoint, Writer, drafts, endpoint_writer, local_writer
from dewmark_rewrite.protection import MeaningCheck, protected_spans
from dewmark_rewrite.search import Read, SearchLimits, Step, pruned, search, size
from dewmark_rewrite.sentences import sentences
from dewmark_rewrite.thesaurus import Candidate, Thesaurus, apply

if TYPE_CHECKING:
    from dewmark import Watermark
    from dewmark.encoders.base import Encoder

ENGINES = ("substitution", "edit", "paraphrase")
_MOST_AFTER, _MOST_IN_ALL = 2.5, 9.5  # nats of loss from which a change reads badly
_LEAST_OPENING = -9.5  # log-probability of a change's first token, unless that of the old one is as low
_MOST_RARER = 6.0  # nats by which the first token of a synonym may be less likely than the old one
_MOST_ALIKE = 3  # changes of a text that bring the same words
_PRICE = {"substitution": 0.01, "edit": 0.0, "paraphrase": 0.0}  # of a nat, in z
_SHORTEST = 20  # words that a text must have


@runtime_checkable
class OneMatrix(Protocol):
    """A bound scheme of words, whose member or payload can be tested alone."""

    own: Any
    members_chosen: int | None

    def leading_member(self, text: str) -> int:
        """The member of the key's ring under which a text scores highest."""

    def under(self, own: Any) -> BoundScheme:  # noqa: ANN401 - the numbers of the scheme's own
        """The same scheme under a plain key with these numbers."""


Review = Callable[[Candidate, float], bool]
"""Decides on a change, given the text's p-value without it."""


@dataclass(frozen=True)
class Options:
    """What to change and how far to go.

    The search ends when the detector's p-value reaches ``target_p``, or when ``budget``, a share of the
    words, is changed. ``keep`` are terms that stay, ``judge`` the language model that reads substitutions
    (None reads nothing), ``encoder`` and ``similarity`` what holds sentences to their meaning. ``member``
    and ``payload`` are those of `Watermark.generate`; of a ring, the member under which the text scores
    highest marks if none is named. ``synonyms`` replaces the packaged list. ``drafts``, ``endpoint`` and
    ``seed`` concern `paraphrase`.
    """

    engine: str = "substitution"
    target_p: float = 1e-4
    budget: float | None = None
    keep: Sequence[str] = ()
    judge: str | Judge | None = "smollm2-135m"
    encoder: str | Encoder = "use-m3"
    similarity: float = 0.85
    member: int | None = None
    payload: int | None = None
    synonyms: Path | None = None
    drafts: int = 8
    endpoint: ChatEndpoint | None = None
    seed: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ConfigError(f"engine must be {', '.join(ENGINES)}, got {self.engine!r}")
        if not 0.0 < self.target_p < 1.0:
            raise ConfigError(f"target_p must lie between 0 and 1, got {self.target_p}")
        if self.budget is not None and not 0.0 < self.budget <= 1.0:
            raise ConfigError(f"budget is a share of the words above 0 and up to 1, got {self.budget}")
        if not -1.0 <= self.similarity <= 1.0:
            raise ConfigError(f"similarity is a cosine from -1 to 1, got {self.similarity}")
        if self.drafts < 1:
            raise ConfigError(f"drafts must be at least 1, got {self.drafts}")

    @property
    def share(self) -> float:
        """The share of words that may change: a tenth, or all of them for `paraphrase`."""
        return self.budget or (1.0 if self.engine == "paraphrase" else 0.1)


@dataclass(frozen=True)
class Rewritten:
    """A rewritten text, its changes in the order of their choice, and the detector before and after.

    ``words`` are those of the original, ``changed`` how many of them are different now, and ``member`` the
    member of the key's ring that marked it.
    """

    text: str
    steps: tuple[Step, ...]
    words: int
    changed: int
    before: Detection
    after: Detection
    target_p: float
    engine: str
    member: int | None = None
    data: bytes = field(default=b"", repr=False)

    @property
    def reached(self) -> bool:
        """Whether the text has the p-value that was asked for."""
        return self.after.p_value <= self.target_p

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        changes = [
            {name: getattr(step.change, name) for name in ("start", "end", "old", "new")}
            | {"loss": step.change.cost, "z": step.z}
            for step in self.steps
        ]
        return {
            "text": self.text,
            "engine": self.engine,
            "target_p": self.target_p,
            "reached": self.reached,
            "member": self.member,
            "words": self.words,
            "changed": self.changed,
            "changes": changes,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
        }


class Rewriter:
    """Rewrites texts under one key; models are loaded on first use and kept."""

    def __init__(
        self, mark: Key | Detector | Watermark, options: Options | None = None, *, progress: Progress = silent
    ) -> None:
        """``mark`` is a key for the default scheme, or a detector or watermark of any scheme."""
        self.options = options or Options()
        self.mark = Detector.from_key(mark) if isinstance(mark, Key) else mark
        self._progress = progress
        self._mark_as(self.options.member)

    def rewrite(self, text: str | RewritableDocument, *, review: Review | None = None) -> Rewritten:
        """The text with the mark."""
        document = RewritableDocument(text) if isinstance(text, str) else text
        text, options = document.text, self.options
        number = len(words(text))
        if number < _SHORTEST:
            raise InputError(f"the text has {number} words: a mark needs at least {_SHORTEST}")
        if options.engine != "paraphrase":
            check_english(text)
        before = self.mark.detect(text)
        bound = for_member(self.mark.scheme, member=options.member, payload=options.payload)
        if isinstance(bound, OneMatrix) and bound.members_chosen:
            self._mark_as(bound.leading_member(text))
        candidates, read = self.candidates(document)
        limits = SearchLimits(
            words=math.floor(options.share * number),
            enough=self._enough,
            price=_PRICE[options.engine],
            read=read,
            allowed=functools.partial(self._allowed, text, review),
        )
        steps = search(text, candidates, self._score, limits, guess=self._guess)
        if options.engine == "edit":
            steps = pruned(text, steps, self._score, limits)
        changes = [step.change for step in steps]
        made = apply(text, changes)
        return Rewritten(
            text=made,
            steps=tuple(steps),
            words=number,
            changed=sum(map(size, changes)),
            before=before,
            after=self.mark.detect(made),
            target_p=options.target_p,
            engine=options.engine,
            member=self._member,
            data=document.with_changes(changes),
        )

    def candidates(self, document: RewritableDocument) -> tuple[list[Candidate], Read]:
        """All changes that the engine offers, and what chooses those that read well."""
        text, options = document.text, self.options
        numbers = options.engine != "paraphrase"
        protected = [*protected_spans(text, terms=options.keep, numbers=numbers), *document.fixed]
        if options.engine == "paraphrase":
            found = drafts(
                text,
                self._writer,
                self._meaning,
                number=options.drafts,
                protected=protected,
                progress=self._progress,
            )
            return list(found), list
        listed = Thesaurus.load(options.synonyms).candidates(text, protected=protected)
        if self._judge is None:
            return listed, list
        reading = self._judge(text)
        openings = reading.openings([*listed, *(replace(each, new=each.old) for each in listed)])
        known = zip(listed, openings, openings[len(listed) :], strict=False)
        likely = [
            each
            for each, new, old in known
            if new >= _LEAST_OPENING or (each.old not in each.new and new >= old - _MOST_RARER)
        ]
        return likely, functools.partial(readable, reading=reading)

    def _mark_as(self, member: int | None) -> None:
        """Score as one member of the key's ring, as if the key were that member's alone."""
        bound = for_member(self.mark.scheme, member=member, payload=self.options.payload)
        self._member = member
        self._bound = bound.under(bound.own) if isinstance(bound, OneMatrix) else bound

    def _score(self, texts: Sequence[str]) -> list[float]:
        return [found.z for found in score_texts(self._bound, texts)]

    def _guess(self, texts: Sequence[str]) -> list[float]:
        """z without a reader, which is nearly as good for sorting candidates, and four times as fast."""
        plain = self._bound
        if plain.scheme.takes_reader:
            plain = plain.reading_with(open_reader("none"))
        return [found.z for found in score_texts(plain, texts)]

    def _enough(self, text: str, z: float) -> bool:
        """Whether a text has the p-value that was asked for, once its z alone may suffice."""
        target = self.options.target_p
        return 0.5 * math.erfc(z / math.sqrt(2.0)) <= target and self.mark.detect(text).p_value <= target

    def _allowed(
        self, text: str, review: Review | None, change: Candidate, before: Sequence[Candidate]
    ) -> bool:
        alike = sum(_brought(each) == _brought(change) for each in before)
        if self.options.engine != "paraphrase" and (
            alike >= _MOST_ALIKE or not self._keeps_meaning(text, change, before)
        ):
            return False
        return review is None or review(change, self.mark.detect(apply(text, before)).p_value)

    def _keeps_meaning(self, text: str, change: Candidate, before: Sequence[Candidate]) -> bool:
        sentence = next(span for span in sentences(text) if span.overlaps(change.span))
        inside = [each for each in (*before, change) if each.span.overlaps(sentence)]
        return self._meaning.keeps(text[sentence.start : sentence.end], apply(text, inside, sentence))

    @functools.cached_property
    def _meaning(self) -> MeaningCheck:
        from dewmark import load_encoder

        encoder: str | Encoder | None = self.options.encoder if self.options.similarity > -1.0 else None
        if isinstance(encoder, str):
            encoder = load_encoder(encoder, progress=self._progress, device=self.options.device)
        return MeaningCheck(encoder, self.options.similarity)

    @functools.cached_property
    def _judge(self) -> Judge | None:
        named = self.options.judge
        if isinstance(named, str):
            return causal_judge(named, device=self.options.device, progress=self._progress)
        return named

    @property
    def _writer(self) -> Writer:
        from dewmark import Watermark

        seed = secrets.randbits(31) if self.options.seed is None else self.options.seed
        if self.options.endpoint is not None:
            return endpoint_writer(self.options.endpoint, seed=seed)
        if not isinstance(self.mark, Watermark):
            raise ConfigError("paraphrase needs a model that writes: give a Watermark, or an endpoint")
        return local_writer(self.mark, seed=seed, member=self._member, payload=self.options.payload)


def rewrite(text: str, mark: Key | Detector | Watermark, **options: Any) -> Rewritten:  # noqa: ANN401
    """The same text, marked; ``options`` are those of `Options`."""
    return Rewriter(mark, Options(**options)).rewrite(text)


def readable(candidates: Sequence[Candidate], reading: CausalReading) -> list[Candidate]:
    """The candidates that read well, with their costs."""
    return [
        replace(each, cost=loss.word + loss.after)
        for each, loss in zip(candidates, reading.losses(candidates), strict=True)
        if loss.after <= _MOST_AFTER and loss.word + loss.after <= _MOST_IN_ALL
    ]


def check_english(text: str) -> None:
    """Raise `InputError` for a text in another language than English."""
    language = guess_language(text)
    if language not in ("en", UNDETERMINED):
        raise InputError(
            f"the text is in {language_name(language)}: synonyms are English only, use the engine paraphrase"
        )


def _brought(change: Candidate) -> frozenset[str]:
    """The words that a change brings, or takes away if it brings none."""
    old, new = (frozenset(part.lower().replace(",", "").split()) for part in (change.old, change.new))
    return new - old or old
